"""Pages go from one service to another, as its client asks for them."""

import asyncio
import contextlib
import gc
import json
import subprocess
import time
import unittest

import attnd
import numpy
import service


def linked(path):
    answer = subprocess.run(
        [service.BUILD / "attnctl", "peers", "--json", "--socket", path],
        stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return json.loads(answer.stdout)[0]["state"] == "up"


def eventually(holds, seconds=20):
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise AssertionError("it has not come")
        time.sleep(0.005)


class Bring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.there = stack.enter_context(service.service())
        cls.here = stack.enter_context(service.service("--peer", f"there={cls.there}"))
        eventually(lambda: linked(cls.here))

    def setUp(self):
        self.sessions = [attnd.Session(path, "test") for path in (self.there, self.here)]
        for session in self.sessions:
            self.addCleanup(session.close)
        self.giver, self.claimer = (
            attnd.PagePool(session, 2, 8, 16, 2, 64) for session in self.sessions
        )

    def fill(self, pages):
        """Every element of the pages, K and V of all layers: [layer, K or V, page, ...]."""
        random = numpy.random.default_rng(5)
        values = random.standard_normal((2, 2, len(pages), 16, 2, 64)).astype(numpy.float16)
        for layer in range(2):
            for tensor, part in zip(self.giver.kv_cache(layer), values[layer]):
                tensor.numpy()[pages] = part
        return values

    def check(self, pages, values):
        for layer in range(2):
            for tensor, part in zip(self.claimer.kv_cache(layer), values[layer]):
                numpy.testing.assert_array_equal(tensor.numpy()[pages], part)

    def all_free(self, pool):
        try:
            pool.free_pages(pool.alloc_pages(8))
        except attnd.NoSpace:
            return False
        return True

    def test_the_bytes_of_a_ticket_come_in_the_order_of_its_offer(self):
        pages = self.giver.alloc_pages(3)[::-1]
        values = self.fill(pages)
        ticket = self.giver.offer_pages(pages)
        with self.assertRaises(attnd.Unsupported):
            self.claimer.claim_pages(ticket)
        brought = self.claimer.bring_pages(ticket).wait(20)
        self.check(brought, values)
        eventually(lambda: self.all_free(self.giver))
        with self.assertRaises(attnd.Expired):
            self.claimer.bring_pages(ticket).wait(20)

    def test_it_can_be_awaited(self):
        pages = self.giver.alloc_pages(2)
        values = self.fill(pages)

        async def bring():
            return await self.claimer.bring_pages(self.giver.offer_pages(pages))

        self.check(asyncio.run(bring()), values)

    def test_layers_come_when_they_are_said_to_be_whole(self):
        pages = self.giver.alloc_pages(2)
        ticket = self.giver.offer_layers(pages)
        brought = self.claimer.bring_pages(ticket, early=True).wait(20)
        values = self.fill(pages)
        with self.assertRaises(attnd.Busy):
            self.claimer.offer_pages(brought)
        self.giver.layers_ready(ticket, 1).wait(20)
        with self.assertRaises(attnd.Busy):
            self.claimer.offer_pages(brought)
        self.giver.layers_ready(ticket, 2).wait(20)

        def whole():
            try:
                self.claimer.claim_pages(self.claimer.offer_pages(brought))
            except attnd.Busy:
                return False
            return True

        eventually(whole)
        self.check(brought, values)
        self.giver.free_pages(pages)
        eventually(lambda: self.all_free(self.giver))

    def test_pages_that_nobody_asks_for_go_back(self):
        pages = self.giver.alloc_pages(2)
        operation = self.claimer.bring_pages(self.giver.offer_pages(pages))
        eventually(lambda: self.all_free(self.giver))
        barrier = self.giver.alloc_pages(1)
        self.claimer.bring_pages(self.giver.offer_pages(barrier)).wait(20)  # what is before it, too
        self.assertTrue(operation.done)
        del operation
        gc.collect()
        with self.assertRaises(attnd.NoSpace):
            self.claimer.alloc_pages(8)
        self.assertEqual(len(self.claimer.alloc_pages(7)), 7)

    def test_a_ticket_of_no_service_was_never_there_or_its_service_is_not(self):
        with self.assertRaises(attnd.Expired):
            self.claimer.bring_pages(b"\xff" * 16).wait(20)
        with service.service("--peer", "nobody=/nowhere") as path:
            session = attnd.Session(path, "test")
            pool = attnd.PagePool(session, 2, 8, 16, 2, 64)
            with self.assertRaises(attnd.PeerLost):
                pool.bring_pages(b"\xff" * 16).wait(20)


if __name__ == "__main__":
    unittest.main()
