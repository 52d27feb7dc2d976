"""Reported: arguments that wrapped, were cut off, were read beyond their end, or were not looked at
again."""

import ctypes as c
import inspect
import mmap
import unittest
from unittest import mock

import numpy as np

import attnd
from reported import DIM, HEADS, HEADS_KV, SIZE, ReportedTest


class ArgumentsTest(ReportedTest):
    def at_the_edge(self, values):
        """int32 values whose last one is the last word in front of a page that faults."""
        pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
        base = c.addressof(c.c_char.from_buffer(pages))
        protect = c.CDLL(None).mprotect
        self.assertEqual(protect(c.c_void_p(base + mmap.PAGESIZE), mmap.PAGESIZE, 0), 0)
        at = mmap.PAGESIZE - 4 * len(values)
        array = np.frombuffer(pages, np.int32, len(values), at)
        array[:] = values
        return array

    def four_decodes(self):
        ones = [0, 1, 2, 3, 4]
        self.attention.plan(ones, ones, [1, 2, 3, 4], [3] * 4, HEADS, causal=True,
            reserve_pages=40, wait=True)  # fmt: skip

    def test_advance_reads_no_page_indptr_beyond_its_end(self):
        self.four_decodes()
        with self.assertRaisesRegex(ValueError, "page_indptr has 2 entries; it has 5"):
            self.attention.advance([3] * 4, self.at_the_edge([0, 1]), [9])

    def test_advance_appends_no_page_that_nobody_named(self):
        self.four_decodes()
        heap = np.zeros(64, np.int32)
        heap[0] = 9
        for pages in (heap[:1], self.at_the_edge([9])):
            with self.assertRaisesRegex(ValueError, "page_indices has 1 entries"):
                self.attention.advance([24, 3, 3, 3], [0, 30, 30, 30, 30], pages)
        q = self.q(4)
        self.close_to(self.attention.run(q, 0)[0][:1], self.wanted(q[:1], [1], 3))

    def test_page_ids_that_wrap_or_are_cut_off_are_refused(self):
        for bad in ([5 + 2**32], np.array([5 + 2**32]), np.array([5.9]), [5.9], [5 - 2**32]):
            with self.subTest(bad=bad), self.assertRaisesRegex(
                (TypeError, ValueError), r"kv_indices\[0\] is"
            ):
                self.attention.plan([0, 1], [0, 1], bad, [3], HEADS)

    def test_starts_that_wrap_are_refused(self):
        with self.assertRaisesRegex(ValueError, r"qo_indptr\[1\] is 4294967297"):
            self.attention.plan([0, 2**32 + 1, 3], [0, 1, 2], [1, 2], [3, 3], HEADS)

    def test_a_scale_that_is_an_array_changed_in_place_counts_as_it_is(self):
        q, scale = self.q(1), np.array(0.5, np.float32)
        arrays = [np.array(x, np.int32) for x in ([0, 1], [0, 2], [3, 7], [5])]
        for value in (0.5, 2.0, 0.5):
            scale[...] = value
            self.attention.plan(*arrays, HEADS, causal=True, k_scale=scale)
            o, _ = self.attention.run(q, 0)
            self.close_to(o, self.wanted(q, [3, 7], 13, scale=value * DIM**-0.5))

    def test_zero_is_a_scale(self):
        q, k = self.q(1), [3, 7]
        mean = self.v[k].reshape(-1, HEADS_KV, DIM)[:13].astype(float).mean(0).repeat(2, 0)[None]
        for said in ({"sm_scale": 0.0}, {"k_scale": 0}, {"q_scale": np.float32(0)}):
            self.attention.plan([0, 1], [0, 2], k, [5], HEADS, causal=True, **said)
            self.close_to(self.attention.run(q, 0)[0], mean)
        self.attention.plan([0, 1], [0, 2], k, [5], HEADS, causal=True, v_scale=0.0)
        self.close_to(self.attention.run(q, 0)[0], 0 * mean)

    def test_a_plan_said_again_in_other_types_is_looked_at_again(self):
        pool = attnd.PagePool(self.session, 1, 16, SIZE, HEADS_KV, DIM, leased=False)
        attention = attnd.BatchAttention(pool)
        arrays = [np.array(x, np.int32) for x in ([0, 1], [0, 1], [3], [5])]
        for _ in range(2):
            attention.plan(*arrays, HEADS, window_left=1, causal=True, sm_scale=1)
        for said in ({"num_qo_heads": float(HEADS)}, {"window_left": True}, {"window_left": 1.0},
                     {"sm_scale": True}):  # fmt: skip
            with self.subTest(said=said), self.assertRaisesRegex(TypeError, next(iter(said))):
                attention.plan(*arrays, **{"num_qo_heads": HEADS, "window_left": 1, "causal": True,
                    "sm_scale": 1, **said})  # fmt: skip

    def test_a_plan_said_again_is_only_set_and_no_option_that_changes_is_passed_over(self):
        arrays = [np.array(x, np.int32) for x in ([0, 1], [0, 1], [3], [5])]
        options = list(inspect.signature(self.attention.plan).parameters)[len(arrays) :]
        self.assertIn("shared_pages", options)
        for named in {}, dict(num_kv_heads=HEADS_KV, head_dim_qk=DIM, page_size=SIZE,
                              head_dim_vo=DIM):  # fmt: skip
            said = {"num_qo_heads": HEADS, "causal": True, "wait": True, **named}
            for option in options:
                for _ in range(2):
                    self.attention.plan(*arrays, **said)
                with mock.patch("attnd.attention.Settings", side_effect=AssertionError), \
                     mock.patch("attnd._csr.levels", side_effect=AssertionError):  # fmt: skip
                    self.attention.plan(*arrays, **said)
                with self.subTest(option=option, named=len(named)):
                    with self.assertRaises((TypeError, ValueError)):
                        self.attention.plan(*arrays, **{**said, option: object()})

    def test_keys_of_other_prompts_are_other_keys_or_refused(self):
        pool = attnd.PagePool(self.session, 1, 16, 4, 1, DIM)
        cache, tokens = attnd.PrefixCache(pool), np.arange(12)
        for bad in (tokens + 2**32, tokens + 0.7, tokens.astype(np.uint64) + np.uint64(1 << 40)):
            with self.assertRaisesRegex(ValueError, r"tokens\[0\] is"):
                cache.keys(bad)
        self.assertEqual(len(cache.keys(tokens)), 3)

    def test_a_row_of_a_tokenizer_has_its_keys(self):
        pool = attnd.PagePool(self.session, 1, 16, 4, 1, DIM)
        cache, tokens = attnd.PrefixCache(pool), np.arange(12)
        self.assertEqual(cache.keys(tokens[None]).tolist(), cache.keys(tokens).tolist())
        with self.assertRaisesRegex(ValueError, "tokens is of shape"):
            cache.keys(np.stack([tokens, tokens]))


if __name__ == "__main__":
    unittest.main()
