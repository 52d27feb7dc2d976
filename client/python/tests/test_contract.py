"""What models ask of attention beside a causal mask, against float64: pools of fp8, their scales,
head dimensions, MLA, masks, rotations, and two results that become one. ATTND_SEED repeats a run.
"""

import unittest

import numpy as np

import attnd
from reference import Batch, attention as exact, fp8_values, rotated
from service import ServiceTest
from test_attention import SEED

try:
    import torch
except ImportError:
    torch = None
PAGES, PAGE, HEADS, HEADS_KV, DIM = 48, 8, 8, 2, 64
FP8 = {"float8_e4m3fn": 3, "float8_e5m2": 2}


def nearest_fp8(x, values):
    """Bytes of the nearest of @values, ties to the even byte, saturated; x is finite."""
    finite = np.where(np.isfinite(values), values, np.inf)
    finite[128] = np.inf  # -0 comes from the sign
    sign = np.signbit(x)
    positive = finite[:128]
    limited = np.minimum(np.abs(x), positive[np.isfinite(positive)].max())
    distance = np.abs(limited[..., None] - positive)
    first = distance.argmin(-1)
    second = np.minimum(first + 1, 127)
    tie = np.take_along_axis(distance, second[..., None], -1)[..., 0] == distance.min(-1)
    return (np.where(tie & (first % 2 == 1), second, first) + 128 * sign).astype(np.uint8)


class ContractTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(SEED)

    def normal(self, *shape):
        return self.draw.normal(size=shape).astype(np.float16)

    def pool(self, *dims, dtype="float16"):
        """A pool of random bytes that are numbers, and its two planes in float64."""
        pool = attnd.PagePool(
            self.session, 2, PAGES, PAGE, HEADS_KV, dims[0], dtype, leased=False,
            head_dim_vo=dims[-1],
        )  # fmt: skip
        planes = []
        for plane in (x.numpy() for x in pool.kv_cache(1)):
            numbers = self.normal(*plane.shape)
            if dtype in FP8:
                values = fp8_values(FP8[dtype])
                plane[:] = nearest_fp8(numbers.astype(float), values)
                numbers = values[plane]
            else:
                plane[:] = numbers
            planes.append(numbers.astype(float))
        return pool, planes

    def check(self, got, wanted, tolerance=2e-3):
        for have, want in zip(got, wanted):
            np.testing.assert_allclose(
                np.asarray(have, np.float64), want, rtol=tolerance, atol=tolerance
            )

    def test_pools_of_fp8_are_read_with_the_scales_of_tensor_and_head(self):
        scales = self.draw.uniform(0.25, 4, (2, HEADS_KV)).astype(np.float32)
        of_layers = np.stack([scales * 9, scales])
        for dtype in FP8:
            pool, (k, v) = self.pool(DIM, dtype=dtype)
            attention = attnd.BatchAttention(pool)
            for said, of_k, of_v in (
                ({}, 1, 1),
                ({"k_scale": 0.5, "v_scale": 3.0}, 0.5, 3),
                ({"kv_scales": scales}, scales[0][:, None], scales[1][:, None]),
                ({"kv_scales": of_layers, "v_scale": 2.0}, scales[0][:, None],
                 2 * scales[1][:, None]),
            ):  # fmt: skip
                with self.subTest(dtype=dtype, said=list(said)):
                    batch = Batch(self.draw, PAGES, PAGE)
                    q = self.normal(batch.rows, HEADS, DIM)
                    attention.plan(*batch.csr(), HEADS, causal=True, kv_data_type=dtype, **said)
                    self.check(
                        attention.run(q, pool.kv_cache(1), lse=True),
                        batch.expected(q, k * of_k, v * of_v),
                    )

    def test_slopes_of_the_caller_are_those_of_its_heads(self):
        """Where q is 0 a score is a slope times a distance."""
        slopes = np.float32(2.0) ** -np.arange(9, 9 + HEADS)  # the second half of 16 heads
        of_layers, keys = np.stack([slopes * 0, slopes]), 21
        attention = attnd.BatchAttention(self.pool(DIM)[0])
        q = np.zeros((1, HEADS, DIM), np.float16)
        for said in (slopes.astype(np.float32), of_layers.astype(np.float32)):
            attention.plan(
                [0, 1], [0, 3], [7, 3, 5], [keys - 2 * PAGE], HEADS, causal=True,
                pos_encoding_mode="ALIBI", alibi_slopes=said,
            )  # fmt: skip
            _, lse = attention.run(q, attention.pool.kv_cache(1), lse=True)
            wanted = np.log2(np.exp(-slopes[:, None] * np.arange(keys)).sum(1))
            self.check([np.asarray(lse)], [wanted[None]], 1e-5)

    def test_a_row_sees_the_keys_of_its_own_chunk(self):
        """Where q is 0 a row's lse is the logarithm of how many keys it sees."""
        attention = attnd.BatchAttention(self.pool(DIM)[0])
        for chunk in 1, 6, 8, 100:
            attention.plan(
                [0, 5], [0, 3], [7, 3, 5], [5], HEADS, causal=True, attention_chunk_size=chunk
            )
            _, lse = attention.run(
                np.zeros((5, HEADS, DIM), np.float16), attention.pool.kv_cache(1), lse=True
            )
            places = 2 * PAGE + np.arange(5)
            wanted = np.log2(places % chunk + 1)[:, None].repeat(HEADS, 1)
            self.check([np.asarray(lse)], [wanted], 1e-5)

    def test_append_quantises_to_the_nearest_of_what_the_scale_leaves(self):
        for dtype, mantissa in FP8.items():
            values, pool = fp8_values(mantissa), self.pool(DIM, dtype=dtype)[0]
            attention, scales = attnd.BatchAttention(pool), np.float32([[0.5, 2], [1, 4]])
            attention.plan(
                [0, 4], [0, 1], [7], [4], HEADS, causal=True, kv_scales=scales, k_scale=0.25
            )
            rows = [100 * self.normal(4, HEADS_KV, DIM) for _ in range(2)]
            rows[0][0, 0, :2] = 60000, -60000  # beyond the largest
            attention.append(*rows, 1)
            attention.run(self.normal(4, HEADS, DIM), 1)
            for x, plane, of in zip(rows, pool.kv_cache(1), (scales[0] * 0.25, scales[1])):
                divided = x.astype(float) / of[:, None]  # powers of two: exact
                np.testing.assert_array_equal(plane.numpy()[7, :4], nearest_fp8(divided, values))

    def test_rows_beside_fp8_are_of_the_type_that_plan_says(self):
        pool, (k, v) = self.pool(DIM, dtype="float8_e4m3fn")
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        q = self.draw.normal(size=(batch.rows, HEADS, DIM)).astype(np.float32)
        upper = (q.view(np.uint32) >> 16).astype(np.uint16)  # numpy has no bfloat16
        q = (upper.astype(np.uint32) << 16).view(np.float32)
        for _ in range(2):  # of the same shape, and of another type each time
            attention.plan(*batch.csr(), HEADS, causal=True, q_data_type="bfloat16")
            o, lse = attention.run(upper, 1, lse=True)
            o = (o.astype(np.uint32) << 16).view(np.float32)
            self.check((o, lse), batch.expected(q, k, v), 1e-2)
            with self.assertRaisesRegex(ValueError, "of bfloat16"):
                attention.run(self.normal(batch.rows, HEADS, DIM), 1)
            attention.plan(*batch.csr(), HEADS, causal=True)
            half = q.astype(np.float16)
            self.check(attention.run(half, 1, lse=True), batch.expected(half, k, v))
        for name, dtype in (("q_data_type", "float8_e4m3fn"), ("kv_data_type", "float16")):
            with self.assertRaisesRegex(ValueError, name):
                attention.plan(*batch.csr(), HEADS, **{name: dtype})

    @unittest.skipIf(torch is None, "PyTorch is not here")
    def test_tensors_of_fp8_are_pytorchs_and_pools_lie_in_them(self):
        batch = Batch(self.draw, PAGES, PAGE)
        q = self.normal(batch.rows, HEADS, DIM)
        for dtype in FP8:
            shape = PAGES, PAGE, HEADS_KV, DIM
            own = [self.session.empty(shape, dtype) for _ in range(2)]
            k, v = (x.torch() for x in own)
            self.assertEqual((k.dtype, k.data_ptr()), (getattr(torch, dtype), own[0].data_ptr()))
            for x in (k, v):
                x.copy_(torch.tensor(self.normal(*shape)).to(x.dtype))
            wanted = batch.expected(q, k.double().numpy(), v.double().numpy())
            as_bytes = k.view(torch.uint8), v.view(torch.uint8)
            for layer, said in (((k, v), {}), (as_bytes, {"dtype": k.dtype})):
                pool = attnd.PagePool.from_tensors(self.session, [layer], **said)
                self.assertEqual(pool.dtype, dtype)
                attention = attnd.BatchAttention(pool)
                attention.plan(*batch.csr(), HEADS, causal=True, kv_data_type=k.dtype)
                self.check(attention.run(q, layer, lse=True), wanted)
        with self.assertRaisesRegex(TypeError, "uint8"):
            attnd.PagePool.from_tensors(self.session, [as_bytes])

    def test_head_dimensions_of_all_sizes_and_unequal_ones(self):
        for dims in ((16,), (80,), (96,), (256,), (192, 128), (576, 512)):
            with self.subTest(dims=dims):
                pool, (k, v) = self.pool(*dims)
                self.assertEqual((pool.head_dim, pool.head_dim_vo), (dims[0], dims[-1]))
                attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE, 3, 20)
                q = self.normal(batch.rows, HEADS, dims[0])
                attention.plan(
                    *batch.csr(), HEADS, head_dim_qk=dims[0], head_dim_vo=dims[-1], causal=True
                )
                o, lse = attention.run(q, pool.kv_cache(1), lse=True)
                self.assertEqual(o.shape, (batch.rows, HEADS, dims[-1]))
                self.check((o, lse), batch.expected(q, k, v))
                if len(dims) > 1:
                    with self.assertRaisesRegex(ValueError, "head_dim_vo"):
                        attention.plan(*batch.csr(), HEADS, head_dim_vo=dims[0])

    def test_mla_reads_v_out_of_ks_rows(self):
        latent = self.session.empty((PAGES, PAGE, 1, 576)).numpy()
        latent[:] = self.normal(*latent.shape)
        pool = attnd.PagePool.from_tensors(self.session, [(latent, latent[..., :512])])
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE, 3, 20)
        q = self.normal(batch.rows, 16, 576)
        attention.plan(*batch.csr(), 16, causal=True, sm_scale=192**-0.5)
        self.check(
            attention.run(q, 0, lse=True),
            batch.expected(q, latent, latent[..., :512], scale=192**-0.5),
        )

    def test_tensors_that_are_no_one_pool_are_refused(self):
        def some(*shape, dtype="float16"):
            return self.session.empty(shape, dtype).numpy()

        for layers, what in (
            ([], "none"),
            ([(some(4, 8, 2, 64), some(4, 8, 2, 64)), (some(4, 8, 2, 64), some(4, 8, 2, 80))],
             "layer 1"),
            ([(some(4, 8, 2, 64), some(4, 8, 1, 64))], "K has"),
            ([some(4, 2, 8, 2, 64), some(5, 2, 8, 2, 64)], "layer 1"),
        ):  # fmt: skip
            with self.assertRaisesRegex(ValueError, what):
                attnd.PagePool.from_tensors(self.session, layers)

    def test_masks_are_flashinfers_and_causality_is_theirs(self):
        pool, (k, v) = self.pool(DIM)
        attention = attnd.BatchAttention(pool)
        for packed in (False, True):
            batch = Batch(self.draw, PAGES, PAGE)
            masks = [
                self.draw.random((rows, tokens)) < 0.6
                for rows, tokens in zip(batch.qo_len, batch.kv_len)
            ]
            if packed:
                bits = [np.packbits(x.reshape(-1), bitorder="little") for x in masks]
                said = {"packed_custom_mask": np.concatenate(bits)}
            else:
                said = {"custom_mask": np.concatenate([x.reshape(-1) for x in masks])}
            own = self.session.empty(len(list(said.values())[0]), "uint8").numpy()
            own[:] = list(said.values())[0]
            q = self.normal(batch.rows, HEADS, DIM)
            for given in (said, {next(iter(said)): own}, {**said, "causal": True}):
                attention.plan(*batch.csr(), HEADS, **given)
                self.check(
                    attention.run(q, 1, lse=True),
                    batch.expected(q, k, v, causal=False, masks=masks),
                )
            with self.assertRaisesRegex(ValueError, next(iter(said))):
                attention.plan(*batch.csr(), HEADS, **{next(iter(said)): own[:-1]})
            attention.plan(*batch.csr(), HEADS, causal=True)  # and without again
            self.check(attention.run(q, 1, lse=True), batch.expected(q, k, v))

    @unittest.skipIf(torch is None, "PyTorch is not here")
    def test_a_mask_of_pytorch_is_a_mask(self):
        pool, (k, v) = self.pool(DIM)
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        sizes = zip(batch.qo_len, batch.kv_len)
        masks = [self.draw.random(size) < 0.6 for size in sizes]
        q = self.normal(batch.rows, HEADS, DIM)
        mask = torch.cat([torch.tensor(x).reshape(-1) for x in masks])
        attention.plan(*batch.csr(), HEADS, custom_mask=mask)
        self.check(
            attention.run(q, 1, lse=True), batch.expected(q, k, v, causal=False, masks=masks)
        )

    def test_keys_and_queries_are_rotated_where_the_model_says(self):
        pool, (k, v) = self.pool(DIM)
        attention = attnd.BatchAttention(pool)
        for said, meant in (
            ({}, {}),
            ({"rope_theta": 500.0, "rope_scale": 4.0}, {"theta": 500.0, "scale": 4.0}),
            ({"rope_dim": 32}, {"dim": 32}),
            ({"rope_theta": 5e5, "rope_scale": 8.0, "rope_low_freq_factor": 1.0,
              "rope_high_freq_factor": 4.0, "rope_old_context": 64},
             {"theta": 5e5, "scale": 8.0, "llama31": (1.0, 4.0, 64)}),
        ):  # fmt: skip
            with self.subTest(said=said):
                batch = Batch(self.draw, PAGES, PAGE)
                q = self.normal(batch.rows, HEADS, DIM)
                attention.plan(
                    *batch.csr(), HEADS, causal=True, pos_encoding_mode="ROPE_LLAMA", **said
                )
                self.check(attention.run(q, 1, lse=True), batch.expected(q, k, v, rope=meant))

    def test_what_append_rotates_is_not_rotated_again(self):
        pool, _ = self.pool(DIM)
        attention, tokens = attnd.BatchAttention(pool), 12
        q = self.normal(tokens, HEADS, DIM)
        k, v = (self.normal(tokens, HEADS_KV, DIM) for _ in range(2))
        attention.plan(
            [0, tokens], [0, 2], [5, 30], [tokens - PAGE], HEADS, causal=True,
            pos_encoding_mode="ROPE_LLAMA", rope_append=True,
        )  # fmt: skip
        attention.append(k, v, 1)
        self.check(attention.run(q, 1, lse=True), exact(q, k, v, True, DIM**-0.5, rope={}))
        stored = [x.numpy()[[5, 30]].reshape(-1, HEADS_KV, DIM)[:tokens] for x in pool.kv_cache(1)]
        self.check(stored, (rotated(k, np.arange(tokens)), v))

    def test_two_results_over_different_keys_become_one(self):
        pool, (k, v) = self.pool(DIM)
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE, 1, 40)
        batch.qo_len, batch.rows = [3], 3
        batch.kv_len, batch.pages = [3 * PAGE], [list(range(3))]
        q, half = self.normal(3, HEADS, DIM), [0, 3]
        wanted, sums = batch.expected(q, k, v, causal=False)
        for ln in (False, True):
            parts = []
            for pages in ([0, 1], [2]):
                attention.plan(half, [0, len(pages)], pages, [PAGE], HEADS, natural_lse=ln)
                parts += attention.run(q, 1, lse=True)
            factor = np.log(2) if ln else 1
            self.check(attention.merge_state(*parts), (wanted, sums * factor))
            out, lse = attention.merge_state(*parts, out=parts[0], lse=parts[1])  # in place
            self.assertIs(out, parts[0])
            self.check((parts[0], parts[1]), (wanted, sums * factor))
        own = [self.session.empty((3, HEADS, DIM)), self.session.empty((3, HEADS), "float32")]
        with self.assertRaises(attnd.Overlap) as raised:
            attention.merge_state(*own, *parts[2:], out=own[0], lse=own[0].memory.tensor(
                (3, HEADS), "float32"))  # fmt: skip
        self.assertEqual(raised.exception.operation, "merge")
        with self.assertRaisesRegex(ValueError, "lse is"):
            attention.merge_state(parts[0], parts[0], *parts[2:])


if __name__ == "__main__":
    unittest.main()
