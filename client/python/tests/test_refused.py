"""A plan() that is refused leaves the batch before it, wherever and whenever it is refused."""

import itertools
import unittest

import numpy as np

import attnd
from reference import Batch
from service import ServiceTest

PAGES, PAGE, HEADS, HEADS_KV, DIM = 64, 8, 8, 2, 64


class RefusedTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(7)
        self.pool = attnd.PagePool(self.session, 1, PAGES, PAGE, HEADS_KV, DIM, leased=False)
        self.attention = attnd.BatchAttention(self.pool)
        self.k, self.v = (x.numpy() for x in self.pool.kv_cache(0))
        for plane in (self.k, self.v):
            plane[:] = self.draw.normal(size=plane.shape)

    def batch(self, requests):
        return Batch(self.draw, PAGES, PAGE, requests, 20)

    def right(self, batch, **how):
        q = self.draw.normal(size=(batch.rows, HEADS, DIM)).astype(np.float16)
        o, lse = self.attention.run(q, 0, lse=True)
        wanted, sums = batch.expected(q, self.k, self.v, **how)
        np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=2e-3, atol=2e-3)
        np.testing.assert_allclose(lse, sums, rtol=2e-3, atol=2e-3)

    def lies(self, batch, wait):
        """Arguments that are refused: here, by admission, or by the planner."""
        for i, at, value in ((0, 1, -1), (1, 0, 3), (2, 0, PAGES), (2, -1, -5), (3, 0, PAGE + 1),
                             (3, 0, 0)):  # fmt: skip
            arrays = [list(x) for x in batch.csr()]
            arrays[i][at] = value
            yield arrays, {}
        arrays = batch.csr()
        if wait:
            yield arrays, {"out_strides": (1, 1)}
        yield arrays, {"pos_encoding_mode": "NONSENSE"}
        yield arrays, {"fixed_split_size": 2**31}
        yield arrays, {"reserve_pages": 2**24}
        yield (arrays[0], arrays[1][:-1], *arrays[2:]), {}

    def test_the_batch_before_is_run_after_each_kind(self):
        sizes = (3, 3), (2, 9), (9, 2)
        for wait, (first, second) in itertools.product((True, False), sizes):
            batch, other = self.batch(first), self.batch(second)
            for arrays, how in self.lies(other, wait):
                self.attention.plan(*batch.csr(), HEADS, causal=True)
                self.right(batch)
                with self.subTest(wait=wait, how=how, arrays=arrays):
                    with self.assertRaises((attnd.Error, ValueError, TypeError)):
                        self.attention.plan(*arrays, HEADS, causal=True, wait=wait, **how)
                        q = np.zeros((other.rows, HEADS, DIM), np.float16)
                        self.attention.run(q, 0)
                    self.assertEqual(self.attention.rows, batch.rows)
                    self.right(batch)
                    self.attention.plan(*other.csr(), HEADS, causal=True, wait=wait)
                    self.right(other)

    def test_the_batch_before_is_advanced(self):
        batch = self.batch(3)
        for wait in (True, False):
            self.attention.plan(*batch.csr(), HEADS, causal=True)
            qo, kv, indices, last = (list(x) for x in batch.csr())
            with self.assertRaises(attnd.Error):
                self.attention.plan(qo, kv, [PAGES] + indices[1:], last, HEADS, wait=wait)
                self.attention.run(np.zeros((batch.rows, HEADS, DIM), np.float16), 0)
            shorter = [max(n - 1, rows) for n, rows in zip(batch.kv_len, batch.qo_len)]
            self.attention.advance(shorter, wait=True)
            kept, batch.kv_len = batch.kv_len, shorter
            self.right(batch)
            batch.kv_len = kept

    def test_several_that_are_refused_in_a_row_leave_the_first(self):
        batch, other = self.batch(3), self.batch(5)
        bad = [list(x) for x in other.csr()]
        bad[2][0] = PAGES
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        for count in (1, 2, 3):
            for _ in range(count):
                self.attention.plan(*bad, HEADS, causal=True)
            with self.assertRaises(attnd.Error):
                self.attention.run(np.zeros((other.rows, HEADS, DIM), np.float16), 0)
            self.right(batch)

    def test_one_that_is_refused_is_not_blamed_on_the_next(self):
        batch, other = self.batch(3), self.batch(5)
        bad = [list(x) for x in other.csr()]
        bad[3][0] = PAGE + 1
        for _ in range(20):
            self.attention.plan(*bad, HEADS, causal=True)
            self.attention.plan(*batch.csr(), HEADS, causal=True)
            self.right(batch)
            self.attention.plan(*bad, HEADS, causal=True)
            self.attention.plan(*other.csr(), HEADS, causal=True)
            self.right(other)

    def test_a_first_batch_that_is_refused_is_none(self):
        batch = self.batch(3)
        bad = [list(x) for x in batch.csr()]
        bad[2][0] = PAGES
        self.attention.plan(*bad, HEADS, causal=True)
        with self.assertRaises(attnd.Error):
            self.attention.run(np.zeros((batch.rows, HEADS, DIM), np.float16), 0)
        with self.assertRaisesRegex(ValueError, "plan.* comes before run"):
            self.attention.run(np.zeros((batch.rows, HEADS, DIM), np.float16), 0)
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        self.right(batch)

    def test_arrays_that_are_made_bad_and_good_again_in_place(self):
        batch = self.batch(3)
        arrays = [np.asarray(x, np.int32) for x in batch.csr()]
        self.attention.plan(*arrays, HEADS, causal=True)
        self.right(batch)
        for wait in (False, True):
            page, arrays[2][0] = arrays[2][0].item(), PAGES
            with self.assertRaises(attnd.Error):
                self.attention.plan(*arrays, HEADS, causal=True, wait=wait)
                self.attention.run(np.zeros((batch.rows, HEADS, DIM), np.float16), 0)
            self.right(batch)
            arrays[2][0] = page
            self.attention.plan(*arrays, HEADS, causal=True, wait=wait)
            self.right(batch)

    def test_pages_that_were_given_back_refuse_the_next_batch_only(self):
        pool = attnd.PagePool(self.session, 1, PAGES, PAGE, HEADS_KV, DIM)
        attention, own = attnd.BatchAttention(pool), pool.alloc_pages(4)
        q = np.zeros((1, HEADS, DIM), np.float16)
        for wait in (False, True):
            attention.plan([0, 1], [0, 2], own[:2], [PAGE], HEADS)
            before = attention.run(q, 0, lse=True)[1]
            with self.assertRaises(attnd.Error):
                attention.plan([0, 1], [0, 3], [*own[:2], 63], [PAGE], HEADS, wait=wait)
                attention.run(q, 0)
            np.testing.assert_array_equal(attention.run(q, 0, lse=True)[1], before)

    def test_an_arena_that_is_too_small(self):
        session = attnd.Session(self.path, "small", arena_bytes=65536)
        self.addCleanup(session.close)
        pool = attnd.PagePool(session, 1, PAGES, PAGE, HEADS_KV, DIM, leased=False)
        attention = attnd.BatchAttention(pool)
        q = np.zeros((1, HEADS, DIM), np.float16)
        attention.plan([0, 1], [0, 2], [1, 2], [PAGE], HEADS)
        before = attention.run(q, 0, lse=True)[1]
        many = 20000
        with self.assertRaises(attnd.Error):
            attention.plan([0, 1], [0, many], [1] * many, [PAGE], HEADS)
        np.testing.assert_array_equal(attention.run(q, 0, lse=True)[1], before)


if __name__ == "__main__":
    unittest.main()
