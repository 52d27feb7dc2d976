"""Reported: what a call that fails leaves behind, of plans, tensors and leases."""

import asyncio
import gc
import unittest

import numpy as np

import attnd
from reported import DIM, HEADS, HEADS_KV, PAGES, SIZE, ReportedTest


class MemoryTest(ReportedTest):
    def test_appends_of_host_arrays_are_as_many_as_one_likes(self):
        pool = attnd.PagePool(self.session, 64, PAGES, SIZE, HEADS_KV, DIM, leased=False)
        attention, k = attnd.BatchAttention(pool), self.q(7)[:, :HEADS_KV]
        for page in range(20):
            attention.plan([0, 7], [0, 1], [page], [7], HEADS, causal=True)
            for layer in range(64):
                attention.append(k, k, layer)
        attention.run(self.q(7), 0)
        for page in range(20):
            self.assertTrue((pool.kv_cache(63)[0].numpy()[page, :7] == k).all())

    def test_an_append_that_is_refused_among_many_is_told_by_the_next_run(self):
        pool = attnd.PagePool(self.session, 1, PAGES, SIZE, HEADS_KV, DIM)
        attention, k = attnd.BatchAttention(pool), self.q(1)[:, :HEADS_KV]
        page = pool.alloc_pages(1)
        attention.plan([0, 1], [0, 1], page, [3], HEADS, causal=True)
        pool.share_pages(page)
        for _ in range(40):
            attention.append(k, k, 0)
        with self.assertRaises(attnd.SharedPage):
            attention.run(self.q(1), 0)
        pool.free_pages(page)
        attention.append(k, k, 0)
        attention.run(self.q(1), 0)

    def test_a_plan_that_is_refused_leaves_the_one_before_as_it_was(self):
        pool = attnd.PagePool(self.session, 1, 16, SIZE, HEADS_KV, DIM, leased=False)
        attention, q = attnd.BatchAttention(pool), np.ones((1, HEADS, DIM), np.float16)
        attention.plan([0, 1], [0, 1], [3], [5], HEADS, wait=True)
        wanted = attention.run(q, 0)[0]
        refused = (
            lambda: attention.plan([0, 9], [0, 9], [3] * 8 + [99], [5], HEADS, wait=True),
            lambda: attention.plan([0, 9], [0, 1], [3], [5], 5, wait=True),
            lambda: attention.plan([0, 9], [0, 1], [3], [5], HEADS, sinks=np.zeros(3)),
            lambda: attention.plan([0, 1], [0, 1], [3], [5], HEADS, q_strides=(1, -1)),
            lambda: attention.plan([0, 1], [0, 1], [3], [5], HEADS, reserve_pages=1 << 27),
        )
        for call in refused:
            with self.assertRaises((attnd.Error, ValueError, TypeError)):
                call()
            self.assertTrue((attention.run(q, 0)[0] == wanted).all())

    def test_strides_of_a_plan_that_was_refused_are_not_the_next_ones(self):
        pool = attnd.PagePool(self.session, 1, 16, SIZE, HEADS_KV, DIM, leased=False)
        attention, q = attnd.BatchAttention(pool), self.session.empty((2, HEADS, DIM))
        pool.kv_cache(0)[1].numpy()[:] = np.arange(16)[:, None, None, None]
        arrays = [0, 1, 2], [0, 1, 2], [3, 7], [5, 5]
        attention.plan(*arrays, HEADS, wait=True)
        with self.assertRaises(attnd.Error):
            attention.plan(*arrays[:2], [3, 99], [5, 5], HEADS, wait=True,
                q_strides=(HEADS * DIM * 2, DIM), out_strides=(HEADS * DIM * 2, DIM))  # fmt: skip
        attention.plan(*arrays, HEADS, wait=True)
        out, _ = attention.run(q, 0, self.session.empty((2, HEADS, DIM)))
        self.assertEqual(out.numpy()[:, 0, 0].tolist(), [3.0, 7.0])

    def test_an_arena_that_is_too_small_says_how_much_to_ask_for(self):
        session = attnd.Session(self.path, "small", arena_bytes=1 << 16)
        self.addCleanup(session.close)
        pool = attnd.PagePool(session, 1, 16, 1, 1, DIM, leased=False)
        attention = attnd.BatchAttention(pool)
        with self.assertRaises(attnd.NoSpace) as raised:
            attention.plan([0, 1], [0, 40000], [1] * 40000, [1], 1)
        fault = raised.exception
        self.assertEqual(fault.field, "arena")
        again = attnd.Session(self.path, "enough", arena_bytes=fault.value)
        self.addCleanup(again.close)
        attention = attnd.BatchAttention(attnd.PagePool(again, 1, 16, 1, 1, DIM, leased=False))
        attention.plan([0, 1], [0, 40000], [1] * 40000, [1], 1, wait=True)

    def test_a_plan_that_is_too_large_says_what_is(self):
        with self.assertRaises(attnd.Range) as refused:
            self.attention.plan([0, 2**22 + 1], [0, 1], [0], [1], HEADS)
        fault = refused.exception
        self.assertEqual((fault.field, fault.value, fault.limit), ("rows", 2**22 + 1, 2**22))
        none = np.zeros(2**20, np.int32)
        with self.assertRaises(attnd.NoSpace) as refused:
            self.attention.plan(np.append(none, 0), np.append(none, 0), [], none, HEADS)
        self.assertEqual(refused.exception.field, "arena")

    def test_a_pool_may_be_made_again_over_the_same_memory(self):
        memory = self.session.memory(1 << 16)
        k, v = (memory.tensor((4, SIZE, HEADS_KV, DIM), offset=at) for at in (0, 8192))
        for _ in range(3):
            pool = attnd.PagePool.from_tensors(self.session, [(k, v)])
            attention = attnd.BatchAttention(pool)
            attention.plan([0, 1], [0, 1], [0], [3], HEADS, wait=True)
            attention.run(self.q(1), (k, v))
            attention.close()
            del attention, pool
            gc.collect()
            self.session.empty(4)

    def test_leases_of_a_match_whose_waiter_is_gone_go_back(self):
        pool = attnd.PagePool(self.session, 1, 16, 4, 1, DIM)
        cache = attnd.PrefixCache(pool)
        keys, pages = cache.keys(np.arange(8)), pool.alloc_pages(2)
        cache.publish(keys, pages).wait()
        pool.free_pages(pages)

        async def cancelled():
            async def match():
                return await cache.match(keys)

            task = asyncio.create_task(match())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        for _ in range(3):
            asyncio.run(cancelled())
            cache.match(keys)  # nobody looks
            cache.match(keys).wait(20)  # behind it
            pool.free_pages(pages)
        gc.collect()
        with self.assertRaises(attnd.NotLeased):  # no lease of them is left
            pool.free_pages(pages[:1])
        found = cache.match(keys).wait(20)
        self.assertEqual(found.pages.tolist(), pages.tolist())
        pool.free_pages(found.pages)

    def test_leases_are_freed_and_shared_all_or_none_of_more_than_a_call_takes(self):
        many = attnd._abi.LEASE_PAGES_MAX + 10
        pool = attnd.PagePool(self.session, 1, many + 1, 1, 1, 16)
        pages = pool.alloc_pages(many)
        foreign = np.append(pages, (set(range(many + 1)) - set(pages.tolist())).pop())
        for call in (pool.share_pages, pool.free_pages):
            with self.assertRaises(attnd.NotLeased):
                call(foreign)
        pool.free_pages(pages)
        self.assertEqual(len(pool.alloc_pages(many + 1)), many + 1)


if __name__ == "__main__":
    unittest.main()
