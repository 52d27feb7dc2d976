"""Pools: leases, sharing between processes, tickets."""

import gc
import multiprocessing
import unittest

import numpy as np

import attnd
from service import ServiceTest


def claim_and_answer(path, token, ticket, answers):
    with attnd.Session(path, "claims") as session:
        pool = attnd.PagePool.attach(session, token)
        pages = pool.claim_pages(ticket)
        k, _ = pool.kv_cache(1)
        answers.put((pages.tolist(), k.numpy()[pages, 0, 0, 0].tolist()))


class PoolTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.pool = attnd.PagePool(self.session, 2, 32, 16, 2, 64)

    def test_a_page_is_free_when_its_last_lease_is_given_back(self):
        pages = self.pool.alloc_pages(32)
        self.pool.share_pages(pages[:4])
        self.pool.free_pages(pages)
        with self.assertRaises(attnd.NoSpace) as raised:
            self.pool.alloc_pages(32)
        self.assertEqual(raised.exception.limit, 28)
        self.pool.free_pages(pages[:4])
        self.assertEqual(sorted(self.pool.alloc_pages(32)), list(range(32)))
        with self.assertRaises(attnd.NotLeased):
            self.pool.free_pages([3, 3])

    def test_leases_of_more_pages_than_a_call_takes_are_all_or_none(self):
        pool = attnd.PagePool(self.session, 1, 40000, 1, 1, 64)
        pages = pool.alloc_pages(36000)
        self.assertEqual(len(set(pages.tolist())), 36000)
        with self.assertRaises(attnd.NoSpace):
            pool.alloc_pages(20000)
        pool.free_pages(pages)
        self.assertEqual(len(pool.alloc_pages(40000)), 40000)

    def test_another_process_claims_pages_and_reads_their_bytes(self):
        pages = self.pool.alloc_pages(3)
        k, _ = self.pool.kv_cache(1)
        k.numpy()[pages, 0, 0, 0] = [1.5, 2.5, 3.5]
        spawn = multiprocessing.get_context("spawn")
        answers = spawn.Queue()
        arguments = self.path, self.pool.share(), self.pool.offer_pages(pages[::-1]), answers
        process = spawn.Process(target=claim_and_answer, args=arguments)
        process.start()
        found, values = answers.get(timeout=60)
        process.join()
        self.assertEqual((found, values), (pages[::-1].tolist(), [3.5, 2.5, 1.5]))
        with self.assertRaises(attnd.Expired):
            self.pool.claim_pages(arguments[2])

    def test_a_ticket_of_another_pool_is_refused_and_its_pages_come_back(self):
        other = attnd.PagePool(self.session, 1, 8, 16, 2, 64)
        ticket = other.offer_pages(other.alloc_pages(8))
        with self.assertRaises(ValueError):
            self.pool.claim_pages(ticket)
        self.assertEqual(len(other.alloc_pages(8)), 8)

    def test_tensors_may_be_a_pool_again_when_the_first_pool_of_them_is_released(self):
        shape, memory = (8, 16, 2, 64), self.session.memory(2 * 8 * 16 * 2 * 64 * 2)
        layer = memory.tensor(shape), memory.tensor(shape, offset=memory.nbytes // 2)
        for _ in range(2):
            attnd.PagePool.from_tensors(self.session, [layer]).release()
            gc.collect()
            self.assertIs(self.session.find(layer[0].data_ptr(), 1), memory)

    def test_a_tensor_of_the_session_with_k_and_v_in_it_is_a_layer(self):
        both = self.session.empty((8, 2, 16, 2, 64))
        pool = attnd.PagePool.from_tensors(self.session, [both])
        for i, plane in enumerate(pool.kv_cache(0)):
            plane.numpy()[3, 5, 1] = 7 + i
            self.assertEqual(both.numpy()[3, i, 5, 1].tolist(), [7 + i] * 64)
        self.assertEqual([pool.layer_of(x) for x in (both, both.numpy())], [0, 0])

    def test_a_pool_that_is_released_stays_for_those_who_look_at_it(self):
        view = self.pool.kv_cache(0)[0].numpy()
        token = self.pool.share()
        self.pool.release()
        view[:] = 3
        attnd.PagePool.attach(self.session, token)
        del view
        gc.collect()
        with self.assertRaises(attnd.Unknown):
            attnd.PagePool.attach(self.session, token)

    def test_a_pool_with_a_plan_is_not_released(self):
        attention = attnd.BatchAttention(self.pool)
        attention.plan([0, 1], [0, 1], self.pool.alloc_pages(1), [16], 2)
        attention.run(np.zeros((1, 2, 64), np.float16), 0)
        with self.assertRaisesRegex(ValueError, "plan"):
            self.pool.release()
        attention.close()
        self.pool.release()

    def test_a_token_of_another_length_is_refused_here(self):
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            attnd.PagePool.attach(self.session, b"short")


if __name__ == "__main__":
    unittest.main()
