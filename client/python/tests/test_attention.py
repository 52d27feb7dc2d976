"""BatchAttention against float64: layouts, growth, cascade, append, advance, and what is refused.

ATTND_SEED repeats a run.
"""

import gc
import os
import random
import unittest
import weakref

import numpy as np

try:
    import torch
except ImportError:
    torch = None

import attnd
from reference import Batch, attention as exact
from service import ServiceTest

SEED = int(os.environ.get("ATTND_SEED", random.SystemRandom().randrange(1 << 32)))
print(f"ATTND_SEED={SEED}", flush=True)
PAGES, PAGE, HEADS, HEADS_KV, DIM = 64, 8, 8, 2, 64
FORMS = (np.asarray, torch.from_numpy) if torch else (np.asarray,)


class AttentionTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(SEED)
        self.pool = attnd.PagePool(self.session, 2, PAGES, PAGE, HEADS_KV, DIM, leased=False)
        self.attention = attnd.BatchAttention(self.pool)
        self.k, self.v = (x.numpy() for x in self.pool.kv_cache(1))
        for plane in (self.k, self.v):
            plane[:] = self.draw.normal(size=plane.shape)

    def normal(self, *shape):
        return self.draw.normal(size=shape).astype(np.float16)

    def check(self, batch, q, o, lse=None, **how):
        wanted, sums = batch.expected(q, self.k, self.v, **how)
        np.testing.assert_allclose(np.asarray(o, np.float64), wanted, rtol=1e-3, atol=1e-3)
        if lse is not None:
            np.testing.assert_allclose(lse, sums, rtol=1e-3, atol=1e-3)

    def test_batches_that_grow_and_shrink_are_attention(self):
        for requests, longest in ((1, 8), (5, 70), (2, 20), (9, 40), (3, 120)):
            for causal in (True, False):
                batch = Batch(self.draw, PAGES, PAGE, requests, longest)
                q = self.normal(batch.rows, HEADS, DIM)
                self.attention.plan(*batch.csr(), HEADS, causal=causal)
                o, lse = self.attention.run(q, self.pool.kv_cache(1), lse=True)
                self.check(batch, q, o, lse, causal=causal)

    def test_a_shape_is_planned_once_and_anew_behind_another_plan(self):
        for _ in range(2):
            self.attention.plan_shape(4, 9, HEADS, causal=True)
            self.assertEqual(self.attention.rows, 9)
        batch = Batch(self.draw, PAGES, PAGE)
        self.attention.plan(*batch.csr(), HEADS)
        self.attention.plan_shape(4, 9, HEADS, causal=True)
        self.assertEqual(self.attention.rows, 9)

    def test_flashinfers_names_and_a_scale_of_ones_own(self):
        batch = Batch(self.draw, PAGES, PAGE)
        qo, kv, indices, last = batch.csr()
        self.attention.plan(
            qo_indptr=qo, kv_indptr=kv, kv_indices=indices, kv_last_page_len=last,
            num_qo_heads=HEADS, num_kv_heads=HEADS_KV, head_dim_qk=DIM, head_dim_vo=DIM,
            page_size=PAGE, causal=True, sm_scale=0.3, q_data_type=np.float16,
            kv_data_type="float16", )  # fmt: skip
        q, out = self.normal(batch.rows, HEADS, DIM), np.full(
            (batch.rows, HEADS, DIM), np.nan, np.float16
        )
        lse = np.full((batch.rows, HEADS), np.nan, np.float32)
        o, sums = self.attention.run(q=q, kv_cache=(self.k, self.v), out=out, lse=lse)
        self.assertIs(o, out)
        self.assertIs(sums, lse)
        self.check(batch, q, out, lse, scale=0.3)

    def test_windows_soft_caps_alibi_and_sinks_are_flashinfers(self):
        sinks = self.draw.normal(size=HEADS).astype(np.float32)
        of_layers = self.session.empty((2, HEADS), "float32")
        of_layers.numpy()[:] = np.stack([sinks + 50, sinks])
        for said, meant in (
            ({"window_left": 5}, {"window_left": 5}),
            ({"window_left": 0}, {"window_left": 0}),
            ({"logits_soft_cap": 1.5}, {"logits_soft_cap": 1.5}),
            ({"pos_encoding_mode": "ALIBI"}, {"alibi": True}),
            ({"sinks": sinks}, {"sinks": sinks}),
            ({"sinks": of_layers}, {"sinks": sinks}),
            ({"window_left": 9, "logits_soft_cap": 2.0, "sinks": of_layers.numpy()},
             {"window_left": 9, "logits_soft_cap": 2.0, "sinks": sinks}),
            ({"fixed_split_size": 64}, {}),
            ({"fixed_split_size": 32}, {}),
            ({"window_left": -1, "logits_soft_cap": 0.0, "q_scale": 1.0}, {}),
            ({"fixed_split_size": 64}, {}),
        ):  # fmt: skip
            with self.subTest(said=said):
                batch = Batch(self.draw, PAGES, PAGE)
                q = 3 * self.normal(batch.rows, HEADS, DIM)
                self.attention.plan(*batch.csr(), HEADS, causal=True, **said)
                o, lse = self.attention.run(q, self.pool.kv_cache(1), lse=True)
                self.check(batch, q, o, lse, **meant)

    def test_options_that_do_not_fit_are_refused_by_name(self):
        batch = Batch(self.draw, PAGES, PAGE)
        for said, what in (
            ({"pos_encoding_mode": "SINES"}, "pos_encoding_mode is SINES"),
            ({"sinks": np.zeros(HEADS + 1, np.float32)}, "sinks is"),
            ({"logits_soft_cap": -2.0}, "logits_soft_cap"),
        ):
            with self.subTest(said=said), self.assertRaisesRegex(ValueError, what):
                self.attention.plan(*batch.csr(), HEADS, causal=True, wait=True, **said)

    def test_the_same_arrays_are_read_again_whatever_was_written_into_them(self):
        for wait in (False, True):
            for form in FORMS:
                with self.subTest(form=form.__name__, wait=wait):
                    self.read_again(form, wait)

    def read_again(self, form, wait):
        csr = [np.array(x, np.int32) for x in ([0, 2, 3], [0, 3, 5], [7, 1, 9, 4, 4], [5, 2])]
        given = [form(x) for x in csr]  # the same bytes
        batch = Batch(self.draw, PAGES, PAGE, 2)
        q, o = (self.session.empty((8, HEADS, DIM)) for _ in range(2))
        q.numpy()[:] = self.normal(8, HEADS, DIM)
        for qo, pages, last in (
            ([2, 1], [[7, 1, 9], [4, 4]], [5, 2]),
            ([2, 1], [[3, 2, 60], [4, 8]], [8, 1]),  # other pages and lengths
            ([4, 1], [[3, 2, 60], [4, 8]], [8, 1]),  # other rows
            ([1, 1], [[3, 2], [60]], [1, 4]),  # fewer pages
        ):
            csr[0][1:] = np.cumsum(qo)
            csr[1][1:] = np.cumsum([len(x) for x in pages])
            csr[2][: csr[1][2]] = sum(pages, [])
            csr[3][:] = last
            batch.qo_len, batch.rows, batch.pages = qo, sum(qo), pages
            batch.kv_len = [(len(x) - 1) * PAGE + n for x, n in zip(pages, last)]
            rows = [x.memory.tensor((batch.rows, HEADS, DIM)) for x in (q, o)]
            for _ in range(3):
                self.attention.plan(*given, HEADS, causal=True, wait=wait)
                self.attention.run(rows[0], 1, rows[1])
                self.check(batch, rows[0].numpy(), rows[1].numpy())
                rows[1].numpy()[:] = np.nan
        csr[2][0] = PAGES
        if wait:
            with self.assertRaises(attnd.Range):
                self.attention.plan(*given, HEADS, causal=True, wait=True)
        csr[1][2] = 6
        with self.assertRaisesRegex(ValueError, "beyond the 5 entries"):
            self.attention.plan(*given, HEADS, causal=True, wait=wait)
        with self.assertRaisesRegex(ValueError, "the plan wants"):  # the same q, planned otherwise
            csr[1][2], csr[0][2], csr[2][0] = 3, 4, 3
            self.attention.plan(*given, HEADS, causal=True, wait=wait)
            self.attention.run(rows[0], 1, rows[1])

    @unittest.skipUnless(torch, "no PyTorch")
    def test_a_tensor_of_pytorch_that_is_given_other_storage_is_read_there(self):
        batch = Batch(self.draw, PAGES, PAGE, 3)
        csr = [torch.zeros_like(torch.tensor(x, dtype=torch.int32)) for x in batch.csr()]
        csr[0][:] = csr[1][:] = torch.arange(4)
        csr[3][:] = 1
        q = self.normal(batch.rows, HEADS, DIM)
        for _ in range(2):
            self.attention.plan(*csr, HEADS, causal=True)
        before = [tensor.untyped_storage() for tensor in csr]  # what lay there is there still
        for tensor, x in zip(csr, batch.csr()):
            tensor.set_(torch.tensor(x, dtype=torch.int32))
        self.attention.plan(*csr, HEADS, causal=True)
        self.check(batch, q, self.attention.run(q, 1)[0])
        del before

    @unittest.skipUnless(torch, "no PyTorch")
    def test_tables_of_other_types_are_numbers_all_the_same(self):
        batch = Batch(self.draw, PAGES, PAGE, 3)
        q = self.normal(batch.rows, HEADS, DIM)
        for dtype in (torch.int64, torch.int16, torch.float32, torch.float64):
            with self.subTest(dtype=dtype):
                csr = [torch.tensor(x, dtype=dtype) for x in batch.csr()]
                self.attention.plan(*csr, HEADS, causal=True, wait=True)
                self.check(batch, q, self.attention.run(q, 1)[0])

    def test_a_run_repeated_minds_strides_that_are_planned_anew(self):
        batch = Batch(self.draw, PAGES, PAGE)
        wide = self.session.empty((batch.rows, HEADS + 1, DIM))
        wide.numpy()[:] = self.normal(*wide.shape)
        strides = (HEADS + 1) * DIM, DIM
        apart = wide.memory.tensor((batch.rows, HEADS, DIM), strides=(*strides, 1))
        dense, o = wide.memory.tensor((batch.rows, HEADS, DIM)), self.session.empty(apart.shape)
        for q, planned, other in ((dense, None, apart), (apart, strides, dense)) * 2:
            self.attention.plan(*batch.csr(), HEADS, causal=True, q_strides=planned)
            for _ in range(2):
                self.attention.run(q, 1, o)
                self.check(batch, q.numpy(), o.numpy())
            if planned:
                with self.assertRaisesRegex(ValueError, "planned"):
                    self.attention.run(other, 1, o)
            else:
                self.attention.run(other, 1, o)  # by a copy
                self.check(batch, other.numpy(), o.numpy())
        self.attention.run(apart, 1, o)  # as planned last, and then without
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        self.attention.run(apart, 1, o)
        self.check(batch, apart.numpy(), o.numpy())

    def test_tables_of_layers_may_be_a_view_from_the_last_to_the_first(self):
        sinks = self.session.empty((2, HEADS), "float32").numpy()
        sinks[:] = self.draw.normal(size=sinks.shape)
        batch = Batch(self.draw, PAGES, PAGE)
        q = self.normal(batch.rows, HEADS, DIM)
        self.attention.plan(*batch.csr(), HEADS, causal=True, sinks=sinks[::-1])
        self.check(batch, q, self.attention.run(q, 1)[0], sinks=sinks[0], causal=True)

    def test_a_plan_that_is_known_asks_whether_it_is_closed_and_what_it_is_given(self):
        csr = [np.array(x, np.int32) for x in ([0, 1], [0, 1], [7], [5])]
        self.attention.plan(*csr, HEADS)
        self.attention.close()
        with self.assertRaisesRegex(ValueError, "the BatchAttention is closed"):
            self.attention.plan(*csr, HEADS)
        attention = attnd.BatchAttention(self.pool)
        attention.plan(*csr, HEADS)
        del csr
        gc.collect()
        with self.assertRaisesRegex(TypeError, "qo_indptr"):
            attention.plan(None, None, None, None, HEADS)

    def test_a_plan_repeated_keeps_neither_its_arrays_nor_a_runs_tensors(self):
        csr = [np.array(x, np.int32) for x in ([0, 1], [0, 1], [7], [5])]
        q, o = (self.session.empty((1, HEADS, DIM)) for _ in range(2))
        for _ in range(2):
            self.attention.plan(*csr, HEADS)
            self.attention.run(q, 1, o)
        watched = [weakref.ref(x) for x in (*csr, q, o)]
        del csr, q, o
        gc.collect()
        self.assertEqual([x() for x in watched], [None] * 6)

    def test_tensors_of_the_session_are_used_where_they_are(self):
        batch = Batch(self.draw, PAGES, PAGE)
        q, o = (self.session.empty((batch.rows, HEADS, DIM)) for _ in range(2))
        lse = self.session.empty((batch.rows, HEADS), "float32")
        q.numpy()[:] = self.normal(batch.rows, HEADS, DIM)
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        self.attention.run(q.numpy(), 1, o.numpy(), lse)
        self.assertEqual(self.attention._tensors.spare, {})  # nothing was copied
        self.check(batch, q.numpy(), o.numpy(), lse.numpy())

    def test_tables_of_the_session_are_read_where_they_lie(self):
        with attnd.Session(self.path, tables_bytes=1 << 16) as session:
            pool = attnd.PagePool(session, 1, PAGES, PAGE, HEADS_KV, DIM, leased=False)
            attention = attnd.BatchAttention(pool)
            self.k, self.v = (x.numpy() for x in pool.kv_cache(0))
            for plane in (self.k, self.v):
                plane[:] = self.draw.normal(size=plane.shape)
            tables = np.frombuffer(session.tables, np.int32)
            self.assertEqual(tables.nbytes, 1 << 16)
            for _ in range(3):
                batch, at, arrays = Batch(self.draw, PAGES, PAGE), 0, []
                for array in batch.csr():
                    arrays.append(tables[at : at + len(array)])
                    arrays[-1][:] = array
                    at += len(array)
                attention.plan(*arrays, HEADS, causal=True, wait=True)
                tables[:] = -1
                q = self.normal(batch.rows, HEADS, DIM)
                self.check(batch, q, *attention.run(q, 0, lse=True))
        self.assertEqual(tables[-1], -1)  # as long as somebody looks
        self.assertEqual(len(self.session.tables), 0)

    def test_a_view_that_is_not_contiguous_is_copied_or_planned_as_it_is(self):
        batch = Batch(self.draw, PAGES, PAGE)
        wide = self.session.empty((batch.rows, HEADS + 3, DIM)).numpy()
        wide[:] = self.normal(*wide.shape)
        q = wide[:, 1 : 1 + HEADS]
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        self.check(batch, q, self.attention.run(q, 1)[0])
        self.attention.plan(*batch.csr(), HEADS, causal=True, q_strides=((HEADS + 3) * DIM, DIM))
        self.check(batch, q, self.attention.run(q, 1)[0])
        with self.assertRaisesRegex(ValueError, "planned"):
            self.attention.run(np.ascontiguousarray(q), 1)

    def test_a_pool_of_ones_own_tensors_in_both_layouts(self):
        for layout, shape in (("NHD", (PAGE, HEADS_KV)), ("HND", (HEADS_KV, PAGE))):
            joined = self.session.empty((PAGES, 2, *shape, DIM)).numpy()
            joined[:] = self.normal(*joined.shape)
            pool = attnd.PagePool.from_tensors(self.session, [joined], layout)
            attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
            attention.plan(*batch.csr(), HEADS, num_kv_heads=HEADS_KV, page_size=PAGE, causal=True)
            q = self.normal(batch.rows, HEADS, DIM)
            o, lse = attention.run(q, joined, lse=True)
            order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
            self.k, self.v = (joined[:, i].transpose(order) for i in range(2))
            self.check(batch, q, o, lse)

    def test_a_shared_level_and_an_own_level_are_one_sum(self):
        prefix, own = [3, 9], Batch(self.draw, 20, PAGE, 4, 30)
        own.pages = [[page + 20 for page in pages] for pages in own.pages]
        qo, kv, indices, last = own.csr()
        q = self.normal(own.rows, HEADS, DIM)
        self.attention.plan(
            [[0, own.rows], qo],
            [[0, 2], kv],
            [prefix, indices],
            [[PAGE - 3], last],
            HEADS,
            causal=True,
        )
        o, lse = self.attention.run(q, 1, lse=True)
        row = 0
        for rows, tokens, pages in zip(own.qo_len, own.kv_len, own.pages):
            parts = ((prefix, 2 * PAGE - 3), (pages, tokens))
            keys, values = (
                np.concatenate([x[p].reshape(-1, HEADS_KV, DIM)[:n] for p, n in parts])
                for x in (self.k, self.v)
            )
            wanted, sums = exact(q[row : row + rows], keys, values, True, DIM**-0.5)
            np.testing.assert_allclose(
                o[row : row + rows].astype(float), wanted, rtol=1e-3, atol=1e-3
            )
            np.testing.assert_allclose(lse[row : row + rows], sums, rtol=1e-3, atol=1e-3)
            row += rows

    def test_appended_tokens_are_seen_and_lengths_advance(self):
        tokens, pages = 3, [11, 4, 60]
        self.attention.plan(
            [0, 1], [0, 1], pages[:1], [tokens], HEADS, causal=True, reserve_pages=2
        )
        batch = Batch(self.draw, PAGES, PAGE, 1)
        batch.qo_len, batch.rows = [1], 1
        while tokens < 20:
            k, v, q = (
                self.normal(1, HEADS_KV, DIM),
                self.normal(1, HEADS_KV, DIM),
                self.normal(1, HEADS, DIM),
            )
            self.attention.append(k, v, 1)
            o, lse = self.attention.run(q, 1, lse=True)
            used = -(-tokens // PAGE)
            last = pages[used - 1], (tokens - 1) % PAGE
            np.testing.assert_array_equal(self.k[last], k[0])
            batch.kv_len, batch.pages = [tokens], [pages[:used]]
            self.check(batch, q, o, lse)
            tokens += 1
            grown = -(-tokens // PAGE) - used
            self.attention.advance([tokens], [0, grown], pages[used : used + grown])

    def test_what_an_append_was_refused_for_the_run_says(self):
        pool = attnd.PagePool(self.session, 1, 4, PAGE, HEADS_KV, DIM)
        attention, page = attnd.BatchAttention(pool), pool.alloc_pages(1)
        pool.share_pages(page)
        attention.plan([0, 1], [0, 1], page, [4], HEADS, causal=True)
        attention.append(self.normal(1, HEADS_KV, DIM), self.normal(1, HEADS_KV, DIM), 0)
        with self.assertRaises(attnd.SharedPage) as raised:
            attention.run(self.normal(1, HEADS, DIM), 0)
        self.assertEqual(raised.exception.operation, "append")
        attention.run(self.normal(1, HEADS, DIM), 0)  # said once

    def test_a_plan_that_is_waited_for_is_refused_at_once(self):
        with self.assertRaises(attnd.Range):
            self.attention.plan([0, 1], [0, 1], [PAGES], [1], HEADS, wait=True)

    def test_arrays_that_do_not_belong_together_are_refused_here(self):
        for csr in (
            ([0, 1], [0, 1, 2], [1, 2], [1]),
            ([0, 1], [0, 1], [1], [1, 1]),
            ([0, 1], [0, 3], [1], [1]),
            ([], [], [], []),
        ):
            with self.assertRaises(ValueError):
                self.attention.plan(*csr, HEADS)

    def test_what_the_pool_contradicts_is_refused_by_name(self):
        batch = Batch(self.draw, PAGES, PAGE)
        for name, value in (
            ("num_kv_heads", 4),
            ("page_size", 16),
            ("head_dim_qk", 128),
            ("q_data_type", "bfloat16"),
        ):
            with self.assertRaisesRegex((ValueError, TypeError), name):
                self.attention.plan(*batch.csr(), HEADS, **{name: value})
        self.attention.plan(*batch.csr(), HEADS)
        for q in (
            self.normal(batch.rows + 1, HEADS, DIM),
            self.normal(batch.rows, HEADS, DIM).astype(np.float32),
        ):
            with self.assertRaisesRegex(ValueError, "plan wants"):
                self.attention.run(q, 1)
        with self.assertRaisesRegex(ValueError, "no layer"):
            self.attention.run(
                self.normal(batch.rows, HEADS, DIM), (self.normal(1), self.normal(1))
            )

    def test_a_batch_without_requests_has_no_rows(self):
        self.attention.plan([0], [0], [], [], HEADS)
        o, lse = self.attention.run(self.normal(0, HEADS, DIM), 1, lse=True)
        self.assertEqual((o.shape, lse.shape), ((0, HEADS, DIM), (0, HEADS)))

    def test_plans_that_are_dropped_in_flight_are_given_back(self):
        q, o = (self.session.empty((4, HEADS, DIM)) for _ in range(2))
        for _ in range(300):  # more than a session may hold at once
            attention = attnd.BatchAttention(self.pool)
            attention.plan(range(5), range(5), range(4), [1] * 4, HEADS)
            attention.submit(q, 1, o)
        del attention
        self.attention.plan(range(5), range(5), range(4), [1] * 4, HEADS)
        self.attention.run(q, 1, o)


if __name__ == "__main__":
    unittest.main()
