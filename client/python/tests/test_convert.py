"""Numbers, strings and arrays at the border: what does not fit is refused by its name."""

import sys
import types
import unittest
from unittest import mock

import numpy as np

import attnd
from attnd import _convert, _device_plan, _fused
from service import ServiceTest

HEADS, DIM, SIZE = 4, 64, 8
TWO = [0, 1, 3], [0, 2, 3], [5, 9, 2], [4, 7]  # two requests of 12 and 7 tokens
WRAPS = 2**32


class Opaque:
    """Neither a number nor an array."""


class ConvertTest(unittest.TestCase):
    def test_whole_numbers_are_pythons_numpys_and_arrays_without_dimensions(self):
        for x in (5, np.int64(5), np.uint8(5), np.array(5), np.array(5, ">i2")):
            self.assertEqual(_convert.integer("f", x, 0, 9), 5)

    def test_what_is_no_whole_number_is_a_type_error(self):
        for x in (True, np.bool_(True), np.array(True), 5.0, 5.5, np.float32(5), "5", b"5", None,
                  [5], np.array([5]), Opaque(), 5j):  # fmt: skip
            with self.subTest(x=x), self.assertRaisesRegex(TypeError, "^f is "):
                _convert.integer("f", x, 0, 9)

    def test_a_whole_number_beyond_its_limits_says_them(self):
        for x in (-1, 10, 5 + WRAPS, -WRAPS + 5, 2**64 + 5, np.int64(5 + WRAPS), 10**400):
            with self.subTest(x=x), self.assertRaisesRegex(ValueError, "^f is .* from 0 to 9$"):
                _convert.integer("f", x, 0, 9)

    def test_real_numbers_are_finite_and_fit_a_float(self):
        for x in (0.5, np.float16(0.5), np.array(0.5), np.float64(0.5)):
            self.assertEqual(_convert.real("f", x), 0.5)
        self.assertEqual(_convert.real("f", np.int8(3)), 3.0)
        for x in (float("nan"), float("inf"), -float("inf"), 1e39, 10**400, np.float64("nan")):
            with self.subTest(x=x), self.assertRaisesRegex(ValueError, "^f is "):
                _convert.real("f", x)
        for x in (True, "1", None, 1j, [1.0], np.array([1.0]), np.array(True), Opaque()):
            with self.subTest(x=x), self.assertRaisesRegex(TypeError, "^f is "):
                _convert.real("f", x)

    def test_zero_of_a_scale_is_a_number_that_c_does_not_take_for_none(self):
        self.assertGreater(np.float32(_convert.scale("f", 0.0)), 0)
        self.assertGreater(np.float32(_convert.scale("f", 1e-300)), 0)
        self.assertEqual(_convert.scale("f", 2), 2.0)

    def test_truth_is_true_false_one_or_zero(self):
        for x, is_true in ((True, True), (np.bool_(False), False), (1, True), (np.array(0), False)):
            self.assertIs(_convert.flag("f", x), is_true)
        for x in ("False", 2, -1, None, 0.0, [], np.array([True]), Opaque()):
            with self.subTest(x=x), self.assertRaisesRegex(TypeError, "^f is "):
                _convert.flag("f", x)

    def test_int32_values_of_any_type_are_the_same_values(self):
        want = [3, 0, 7]
        for kind in (list, tuple, np.int8, np.uint8, np.int16, ">i4", np.int64, np.uint64,
                     np.float16, np.float64):  # fmt: skip
            x = kind(want) if kind in (list, tuple) else np.array(want, kind)
            self.assertEqual(_convert.as_array("f", x).tolist(), want, kind)
        for x in (np.arange(6, dtype=np.int32)[::2], np.arange(5, dtype=np.int64)[::-2],
                  np.arange(3)[:, None], np.arange(3)[None], range(3)):  # fmt: skip
            self.assertEqual(_convert.as_array("f", x).tolist(), np.array(x).reshape(-1).tolist())

    def test_the_first_value_that_is_no_int32_is_named_by_its_index(self):
        for bad in (5 + WRAPS, -WRAPS, 2**31, 5.9, float("nan"), float("inf"), 2.0**31):
            with self.subTest(bad=bad), self.assertRaisesRegex(ValueError, r"^f\[1\] is "):
                _convert.int32s("f", np.array([1, bad, 3]))
        with self.assertRaisesRegex(ValueError, r"^f\[0\] is 4294967295"):
            _convert.int32s("f", np.array([2**32 - 1], np.uint32))
        for bad in (True, 1.5, 2.0, "1", None, [1]):
            with self.subTest(bad=bad), self.assertRaisesRegex(TypeError, r"^f\[1\] is "):
                _convert.int32s("f", [1, bad])
        with self.assertRaisesRegex(ValueError, r"^f\[1\] is 4294967301"):
            _convert.int32s("f", [1, 5 + WRAPS])

    def test_floats_that_may_have_been_rounded_are_refused(self):
        for kind, most in ((np.float16, 2**11), (np.float32, 2**24)):
            self.assertEqual(_convert.as_array("f", np.array([most], kind)).tolist(), [most])
            with self.assertRaisesRegex(ValueError, r"^f\[0\] is "):
                _convert.int32s("f", np.array([most + 1, most + 2], kind)[1:])
        for part in (np.longdouble(2) ** -40, np.longdouble(2) ** -60):
            with self.assertRaisesRegex(ValueError, r"^f\[0\] is "):
                _convert.int32s("f", np.array([5], np.longdouble) + part)

    def test_what_is_no_array_of_numbers_is_a_type_error(self):
        for x in ("12", b"12", {1, 2}, (i for i in range(2)), 5, np.array(5), np.array([True]),
                  np.array([1j]), np.array(["1"]), np.ma.array([1, 2], mask=[0, 1]), None, Opaque(),
                  np.array([1, 2], "m8[s]")):  # fmt: skip
            with self.subTest(x=x), self.assertRaisesRegex(TypeError, "^f "):
                _convert.int32s("f", x)
        with self.assertRaisesRegex(ValueError, "^f is of shape"):
            _convert.int32s("f", np.zeros((2, 2), int))

    def test_keys_are_pairs_of_uint64(self):
        top = 2**64 - 1
        for x in ([[1, top]], [np.array([1, top], np.uint64)], np.array([[1, top]], np.uint64),
                  [1, top]):  # fmt: skip
            self.assertEqual(_convert.keys("f", x).tolist(), [[1, top]])
        self.assertEqual(_convert.keys("f", []).shape, (0, 2))
        for x in ([[1, -1]], [[1, 2**64]], [[1, 2, 3]], np.zeros(3, np.uint64), [[1], [2]],
                  np.array([[1, -1]]), np.array([[5.0, 1]]),
                  np.zeros((1, 2, 2), np.uint64)):  # fmt: skip
            with self.subTest(x=x), self.assertRaisesRegex((TypeError, ValueError), "^f"):
                _convert.keys("f", x)


class BorderTest(ServiceTest):
    """Each number of each call."""

    def setUp(self):
        super().setUp()
        self.pool = attnd.PagePool(self.session, 2, 32, SIZE, 2, DIM)
        self.pool.alloc_pages(32)
        self.attention = attnd.BatchAttention(self.pool)
        self.q = self.session.empty((3, HEADS, DIM))
        self.out = self.session.empty((3, HEADS, DIM))

    def refuses(self, name, call, *bad):
        for x in bad:
            with self.subTest(name=name, x=x), self.assertRaisesRegex(
                (TypeError, ValueError), rf"\b{name}\b"
            ):
                call(x)

    def plan(self, **said):
        self.attention.plan(*TWO, HEADS, **{"causal": True, "wait": True, **said})

    def test_numbers_of_a_plan(self):
        numbers = "num_qo_heads", "num_kv_heads", "head_dim_qk", "page_size", "head_dim_vo"
        for name in numbers[1:]:
            has = {"num_kv_heads": 2, "page_size": SIZE}.get(name, DIM)
            self.plan(**{name: np.int64(has)})
            self.refuses(name, lambda x: self.plan(**{name: x}), has + WRAPS, float(has), True,
                str(has), -has)  # fmt: skip
        self.refuses("num_qo_heads", lambda x: self.attention.plan(*TWO, x), HEADS + WRAPS, 0, -4,
            4.0, None, "4", True)  # fmt: skip
        wrong = WRAPS, -1, True, 1.0, "1", np.array([1])
        for name in ("reserve_pages", "fixed_split_size"):
            self.refuses(name, lambda x: self.plan(**{name: x}), *wrong)
        self.refuses("fixed_split_size", lambda x: self.plan(fixed_split_size=x), 0)
        rope = dict(pos_encoding_mode="ROPE_LLAMA")
        for name in ("rope_old_context", "rope_dim"):
            self.refuses(name, lambda x: self.plan(**rope, **{name: x}), *wrong, 0)
        self.refuses("window_left", lambda x: self.plan(window_left=x), WRAPS + 4, -2, 4.0, "4",
            True)  # fmt: skip
        nan, inf = float("nan"), float("inf")
        for name in ("sm_scale", "logits_soft_cap", "q_scale", "k_scale", "v_scale"):
            self.refuses(name, lambda x: self.plan(**{name: x}), nan, inf, -1.0, "1", True, 1e39,
                np.array([1.0, 2.0]))  # fmt: skip
        for name in ("rope_scale", "rope_theta", "rope_low_freq_factor", "rope_high_freq_factor"):
            self.refuses(name, lambda x: self.plan(**rope, **{name: x}), nan, inf, -1.0, "1", True)
        for name in ("causal", "natural_lse", "shared_pages", "wait", "rope_append"):
            self.refuses(name, lambda x: self.plan(**{name: x}), "False", 2, None, 0.5)
        position = "pos_encoding_mode"
        self.refuses(position, lambda x: self.plan(**{position: x}), "alibi", 1, None)
        for name in ("q_data_type", "kv_data_type"):
            self.refuses(name, lambda x: self.plan(**{name: x}), "float64", "x.float16", 2, [])
        for name in ("q_strides", "out_strides", "lse_strides", "k_strides", "v_strides"):
            self.refuses(name, lambda x: self.plan(**{name: x}), (1,), 5, (1.5, 2), (-1, 2),
                (1, WRAPS**2), (True, 1))  # fmt: skip
        for name in ("sinks", "kv_scales", "custom_mask", "packed_custom_mask"):
            self.refuses(name, lambda x: self.plan(**{name: x}), [1.0] * 4, 5, np.zeros(5),
                np.zeros(HEADS, np.uint16), np.zeros(HEADS, int))  # fmt: skip

    def test_arrays_of_a_plan(self):
        names = "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"
        for i, name in enumerate(names):
            def call(x):
                self.attention.plan(*TWO[:i], x, *TWO[i + 1 :], HEADS, wait=True)

            flat = list(TWO[i])
            self.refuses(name, call, [flat[0] + WRAPS, *flat[1:]], [x + 0.9 for x in flat],
                np.array(flat) + WRAPS, np.array(flat) + 0.9, np.array(flat, bool), None, 5,
                np.zeros((2, 2), int), flat[:1], [[1, 2], [3]])  # fmt: skip
        for i, name in enumerate(names):
            levels = [[list(x)] * 2 for x in TWO]
            levels[i] = levels[i][:1]
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, "levels"):
                self.attention.plan(*levels, HEADS)
        nested = TWO[0], TWO[1], [list(TWO[2])], TWO[3]
        with self.assertRaisesRegex(ValueError, "^qo_indptr is not of 1 levels, as kv_indices is"):
            self.attention.plan(*nested, HEADS)

    def test_arrays_of_an_advance_are_as_long_as_they_must_be(self):
        with self.assertRaisesRegex(ValueError, r"plan\(\) comes before advance\(\)"):
            self.attention.advance([1, 1])
        self.plan(reserve_pages=2)
        advance = self.attention.advance
        for kv_len in ([13], [13, 8, 1], [], [13 + WRAPS, 8], [13.5, 8], None, [True, 8]):
            with self.subTest(kv_len=kv_len), self.assertRaisesRegex((TypeError, ValueError),
                "kv_len"):  # fmt: skip
                advance(kv_len)
        for starts in ([0, 1], [0, 1, 1, 1], [0, 0, WRAPS + 1], [0, 0, 2], [0, 0, -1], None):
            with self.subTest(starts=starts), self.assertRaisesRegex((TypeError, ValueError),
                "page_indptr"):  # fmt: skip
                advance([13, 8], starts, [7])
        for pages in ([], [7 + WRAPS], [7.5], None, "7"):
            with self.subTest(pages=pages), self.assertRaisesRegex((TypeError, ValueError),
                "page_indices"):  # fmt: skip
                advance([17, 8], [0, 1, 1], pages)
        advance([17, 8], [0, 1, 1], [7], wait=True)

    def test_layers_lanes_and_timeouts(self):
        wrong = WRAPS, -1, 2, 1.0, True, "0", None
        self.refuses("lane", lambda x: attnd.BatchAttention(self.pool, x), 64, 65536, -1, True, "0")
        with self.assertRaisesRegex(ValueError, r"plan\(\) comes before run\(\)"):
            self.attention.run(self.q, 0, self.out)
        with self.assertRaisesRegex(ValueError, r"plan\(\) comes before append\(\)"):
            self.attention.append(self.q, self.q, 0)
        self.plan()
        k = self.session.empty((3, 2, DIM))
        self.refuses("kv_cache", lambda x: self.attention.run(self.q, x, self.out), *wrong)
        self.refuses("kv_cache", lambda x: self.attention.append(k, k, x), *wrong)
        self.refuses("layer", self.pool.kv_cache, *wrong)
        self.refuses("timeout_us", lambda x: self.attention.submit(self.q, 0, self.out,
            timeout_us=x), WRAPS, -1, 0.5, True, None)  # fmt: skip
        operation = self.attention.submit(self.q, 0, self.out)
        self.refuses("timeout", operation.wait, -1, float("nan"), "1", True)
        operation.wait(np.float32(20))
        self.attention.run(self.q, np.int64(1), self.out)

    def test_a_kv_cache_is_a_layer_of_this_pool_and_k_with_its_v(self):
        self.plan()
        other = attnd.PagePool(self.session, 2, 32, SIZE, 2, DIM)
        (k0, v0), (_, v1) = self.pool.kv_cache(0), self.pool.kv_cache(1)
        self.attention.run(self.q, (k0, v0), self.out)
        self.attention.run(self.q, (k0.numpy(), v0.numpy()), self.out)
        self.refuses("kv_cache", lambda x: self.attention.run(self.q, x, self.out),
            other.kv_cache(0), (k0, v1), (v0, k0), (k0,), k0, (k0, 5),
            (k0.numpy()[:4], v0.numpy()[:4]))  # fmt: skip

    def test_tensors_of_a_run_are_named(self):
        self.plan()
        q = np.zeros((3, HEADS, DIM), np.float16)
        masked = np.ma.array(q, mask=np.zeros_like(q, bool))
        self.refuses("q", lambda x: self.attention.run(x, 0), q[:2], q.astype(np.float32), masked,
            q.astype(">f2"), None, [0.0], "q", q[..., None])  # fmt: skip
        fixed = q.copy()
        fixed.flags.writeable = False
        self.attention.run(fixed, 0)
        lse = np.zeros((3, HEADS), np.float32)
        self.refuses("out", lambda x: self.attention.run(q, 0, x), fixed, q[:2], lse, [0.0], "o")
        self.refuses("lse", lambda x: self.attention.run(q, 0, q.copy(), x), lse[:2], q, [0.0],
            lse.astype(np.float64))  # fmt: skip
        k = q[:, :2]
        for name in "kv":
            self.refuses(name, lambda x: self.attention.append(
                **{"k": k, "v": k, "kv_cache": 0, name: x}), q, k[:2], None, k.astype(float))  # fmt: skip

    def test_numbers_of_memory_pools_and_sessions(self):
        shape = dict(layers=1, pages=4, page_size=8, num_kv_heads=1, head_dim=64)
        for name in shape:
            self.refuses(name if name != "num_kv_heads" else "(num_kv_heads|heads_kv)",
                lambda x: attnd.PagePool(self.session, **{**shape, name: x}),
                shape[name] + WRAPS, -1, float(shape[name]), True, None)  # fmt: skip
            with self.subTest(name=name), self.assertRaises(attnd.Error):
                attnd.PagePool(self.session, **{**shape, name: 0})
        make = lambda **said: attnd.PagePool(self.session, **shape, **said)  # noqa: E731
        self.refuses("head_dim_vo", lambda x: make(head_dim_vo=x), 64 + WRAPS, -1, 64.0, True)
        self.refuses("dtype", lambda x: make(dtype=x), "float32", "half", 1, None)
        self.refuses("device", lambda x: make(device=x), "gpu", "CPU", 0, None)
        self.refuses("leased", lambda x: make(leased=x), "no", 2, None)
        k, v = self.session.empty((4, 8, 1, 64)), self.session.empty((4, 8, 1, 64))
        self.refuses("kv_layout", lambda x: attnd.PagePool.from_tensors(self.session, [(k, v)], x),
            "nhd", 0, None)  # fmt: skip
        empty, memory = self.session.empty, self.session.memory(4096)
        self.refuses("shape", empty, (2.0,), (-1, -1), (True,), -1, "2", None)
        self.refuses("nbytes", self.session.memory, -1, 1.0, True, WRAPS**2, "1")
        self.refuses("device", lambda x: empty(4, device=x), "gpu", 0)
        self.refuses("offset", lambda x: memory.tensor((4,), offset=x), -1, 4097, 1.0, WRAPS**2)
        self.refuses("strides", lambda x: memory.tensor((4,), strides=x), (1.0,), (-1,), (1, 1), 1)
        for name in ("ring_entries", "arena_bytes", "tables_bytes", "daemon_uid"):
            self.refuses(name, lambda x: attnd.Session(self.path, **{name: x}), -1, 1.5, True,
                WRAPS**2, "8")  # fmt: skip
        self.refuses("name", lambda x: attnd.Session(self.path, x), "a\0b", b"a", 5)
        self.refuses("socket", attnd.Session, "/tmp/a\0b")

    def test_numbers_of_leases_and_prefixes(self):
        pool = attnd.PagePool(self.session, 1, 64, SIZE, 1, DIM)
        self.refuses("count", pool.alloc_pages, -1, 2.0, True, 2**40, None)
        pages = pool.alloc_pages(2)
        for call in (pool.share_pages, pool.free_pages, pool.offer_pages):
            self.refuses("pages", call, pages.astype(np.int64) + WRAPS, pages + 0.5, None, "0",
                [True])  # fmt: skip
        self.refuses("expire_s", lambda x: pool.offer_pages(pages, x), 0, -1, float("nan"), 601,
            True, "1")  # fmt: skip
        self.refuses("ticket", pool.claim_pages, b"short", "x" * 16, [0] * 16, None)
        self.refuses("token", lambda x: attnd.PagePool.attach(self.session, x), b"", None, 16)
        self.refuses("writable", pool.share, "yes", None, 2)
        for name in ("block_pages", "pages_max", "pages_low", "block_compute_us"):
            self.refuses(name, lambda x: attnd.PrefixCache(pool, **{name: x}), -1, WRAPS + 1, 1.0,
                True, None)  # fmt: skip
        cache = attnd.PrefixCache(pool)
        self.refuses("tokens", cache.keys, np.arange(16) + WRAPS, np.arange(16) + 0.7,
            np.arange(16, dtype=np.uint64) + 2**40, np.zeros((2, 8), int), "ab", None)  # fmt: skip
        self.refuses("extra", lambda x: cache.keys([1] * 8, x), "lora", 5, None)
        keys = cache.keys(np.arange(16))
        self.assertEqual(cache.keys(np.arange(16)[None]).tolist(), keys.tolist())
        bad = keys[:, :1], keys.astype(float) + 0.5, np.zeros(3, np.uint64), None, -1
        for name in ("match", "claim", "abandon", "pin", "unpin"):
            self.refuses("keys", getattr(cache, name), *bad)
            self.refuses("lane", lambda x: getattr(cache, name)(keys, lane=x), 64, -1, True, 65536)
        self.refuses("parent", lambda x: cache.match(keys, x), keys, np.empty((0, 2), np.uint64),
            keys[0, :1])  # fmt: skip
        self.refuses("timeout_us", lambda x: cache.match(keys, timeout_us=x), WRAPS, -1, 1.5)
        self.refuses("wait", lambda x: cache.match(keys, wait=x), "no", 2, None)
        self.refuses("pages", lambda x: cache.publish(keys, x), pages[:1], pages + 0.5,
            pages.astype(np.int64) + WRAPS)  # fmt: skip


class OnGpu:
    """A tensor of a GPU, as far as one looks at it: no length, and nothing at its address."""

    def __init__(self, dtype, *shape, strides=None, address=1 << 20):
        size = np.dtype(dtype).itemsize
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": np.dtype(dtype).str, "data": (address, False), "version": 3,
            "strides": strides and tuple(size * x for x in strides),
        }  # fmt: skip


class OnGpuTest(unittest.TestCase):
    """What goes to libattnd-cuda, which a GPU is not needed for."""

    def fused(self, **said):
        """struct attnd_cuda_fused_args of 3 rows."""
        new = OnGpu("f2", 3, 2, DIM)
        given = {"k": new, "v": new, **dict.fromkeys(("cos_sin", "positions", "slots")), **said}
        pool = types.SimpleNamespace(num_kv_heads=2, head_dim=DIM)
        return _fused.args_of(pool, "float16", *given.values(), False)

    def plan(self, **said):
        """struct attnd_cuda_plan_args of 3 requests in tables of 5 pages."""
        given = {"kv_len": OnGpu("i4", 3), "page_table": OnGpu("i4", 3, 5), "qo_indptr": None,
                 "each": None, "keys": None, "errors": None, **said}  # fmt: skip
        return _device_plan.args_of(types.SimpleNamespace(page_size=SIZE), 3, *given.values())

    def test_new_rows_and_angles_arrive_as_they_lie(self):
        args = self.fused(
            k=OnGpu("f2", 3, 2, DIM, strides=(512, DIM, 1)), v=OnGpu("f2", 3, 2, DIM, address=64),
            cos_sin=OnGpu("f4", 99, 2, 16), slots=OnGpu("i4", 3, address=32),
        )  # fmt: skip
        self.assertEqual((args.rows, args.k, args.v), (3, 1 << 20, 64))
        self.assertEqual((args.k_row_stride, args.k_head_stride), (512, DIM))
        self.assertEqual((args.v_row_stride, args.v_head_stride), (2 * DIM, DIM))
        self.assertEqual((args.cos_sin, args.table_rows, args.rotary_dim), (1 << 20, 99, 32))
        self.assertEqual((args.positions, args.slots), (0, 32))

    def test_batches_of_the_gpu_arrive_as_they_lie(self):
        args = self.plan(page_table=OnGpu("i4", 3, 5, strides=(7, 1)))
        self.assertEqual((args.requests, args.rows, args.table_stride, args.keys), (3, 1, 7, 40))
        args = self.plan(kv_len=OnGpu("i4", 1), page_table=OnGpu("i4", 1, 5, strides=(7, 1)))
        self.assertEqual((args.requests, args.table_stride), (1, 5))

    def test_what_does_not_fit_is_refused_by_its_name(self):
        rows, table = (3, 2, DIM), (3, 5)
        for name, bad in (
            ("k", OnGpu("f2", 3, 2, 8)), ("v", OnGpu("f2", 2, 2, DIM)), ("k", OnGpu("f2", 3)),
            ("k_row_stride", {"k": OnGpu("f2", *rows, strides=(WRAPS + 8, DIM, 1))}),
            ("v_head_stride", {"v": OnGpu("f2", *rows, strides=(2 * DIM, WRAPS, 1))}),
            ("v_row_stride", {"v": OnGpu("f2", *rows, strides=(-8, DIM, 1))}),
            ("v", OnGpu("f2", *rows, strides=(4 * DIM, 2 * DIM, 2))),
            ("cos_sin", OnGpu("f4", 99, 32)), ("cos_sin", OnGpu("f4", 99, 3, 16)),
            ("cos_sin", OnGpu("f4", 99, 2, 16, strides=(64, 16, 1))),
            ("positions", OnGpu("i4", 2)), ("slots", OnGpu("i4", 4)),
        ):  # fmt: skip
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, rf"^{name} "):
                self.fused(**bad if isinstance(bad, dict) else {name: bad})
        for name, bad in (
            ("kv_len", OnGpu("i4", 3, 1)), ("page_table", OnGpu("i4", 2, 5)),
            ("page_table", OnGpu("i4", *table, strides=(4, 1))),
            ("page_table's stride", OnGpu("i4", *table, strides=(WRAPS + 5, 1))),
            ("qo_indptr", OnGpu("i4", 3)), ("errors", OnGpu("i4", 4)),
        ):  # fmt: skip
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, f"^{name} "):
                self.plan(**{name.partition("'")[0]: bad})
        for name in ("k", "v", "cos_sin", "positions", "slots"):
            for bad in (OnGpu("i8", *rows), np.zeros(rows, np.float16), [1, 2, 3], Opaque()):
                with self.subTest(name=name), self.assertRaisesRegex(TypeError, f"^{name} is"):
                    self.fused(**{name: bad})

    def test_tensors_that_require_a_gradient_are_refused(self):
        torch = types.SimpleNamespace(is_grad_enabled=lambda: True)
        for name, x in ("k", OnGpu("f2", 3, 2, DIM)), ("v", OnGpu("f2", 3, 2, DIM)), (
            "cos_sin", OnGpu("f4", 99, 2, 16)
        ):  # fmt: skip
            x.requires_grad = True
            with mock.patch.dict(sys.modules, torch=torch):
                with self.assertRaisesRegex(NotImplementedError, f"^{name} requires a gradient"):
                    self.fused(**{name: x})


if __name__ == "__main__":
    unittest.main()
