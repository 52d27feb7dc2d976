"""Calls at the edges of what has a meaning: each is right, or refused by its name."""

import concurrent.futures
import functools
import gc
import inspect
import os
import pickle
import unittest
import warnings
from unittest import mock

import numpy as np

import attnd
from attnd import _convert
from reported import DIM, HEADS, HEADS_KV, SIZE, ReportedTest

THREE = [0, 1, 3], [0, 2, 3], [5, 9, 2], [4, 7]  # two requests: a row of 12 tokens, two of 7
MASK = 12 + 2 * 7


class ArgumentsTest(ReportedTest):
    def plan(self, **said):
        self.attention.plan(*THREE, HEADS, **{"causal": True, "wait": True, **said})

    def refused(self, name, call, *errors):
        with self.assertRaisesRegex(errors or (TypeError, ValueError), rf"\b{name}\b"):
            call()

    def test_a_number_keeps_all_of_it_or_is_none(self):
        for bad in (np.complex64(1 + 2j), np.complex128(1), np.array("1.5"), np.array(b"1"),
                    np.timedelta64(2, "s"), np.array(1.5, object)):  # fmt: skip
            with self.subTest(bad=bad):
                self.refused("f", lambda: _convert.real("f", bad), TypeError)
                self.refused("f", lambda: _convert.integer("f", bad, 0, 9), TypeError)

    def test_a_number_that_raises_is_named(self):
        class Number:
            def __float__(self):
                raise ZeroDivisionError

            __index__ = __float__

        self.refused("sm_scale", lambda: self.plan(sm_scale=Number()), TypeError)
        self.refused("window_left", lambda: self.plan(window_left=Number()), TypeError)

    def test_what_has_no_order_is_no_pair(self):
        for bad in ({1: 2, 3: 4}, {1, 2}, b"12"):
            self.refused("q_strides", lambda: self.plan(q_strides=bad), TypeError)

    def test_options_of_a_position_encoding_go_with_it(self):
        for name, value in (("rope_scale", 2.0), ("rope_theta", 500.0), ("rope_dim", 16),
                            ("rope_old_context", 64), ("rope_append", True)):  # fmt: skip
            self.refused(name, lambda: self.plan(**{name: value}), ValueError)
            self.refused(name, lambda: self.plan(pos_encoding_mode="ALIBI", **{name: value}))
        for name in ("rope_low_freq_factor", "rope_high_freq_factor"):
            self.refused(name, lambda: self.plan(pos_encoding_mode="ROPE_LLAMA", **{name: 1.0}))
        slopes = np.ones(HEADS, np.float32)
        self.refused("alibi_slopes", lambda: self.plan(alibi_slopes=slopes), ValueError)
        self.plan(rope_append=False, rope_scale=None)

    def test_a_mask_is_of_bools_and_a_packed_one_of_bytes(self):
        for value in (2, 255):
            bad = np.full(MASK, value, np.uint8)
            self.refused("custom_mask", lambda: self.plan(custom_mask=bad), ValueError)
        packed = np.ones(2 + 2, bool)
        self.refused("packed_custom_mask", lambda: self.plan(packed_custom_mask=packed), TypeError)
        self.plan(custom_mask=np.ones(MASK, np.uint8))
        q = self.q(3)
        self.close_to(
            self.attention.run(q, 0)[0][:1], self.wanted(q[:1], [5, 9], 12)
        )

    def test_an_output_whose_elements_share_bytes_is_refused(self):
        self.plan()
        q, lse = self.q(3), np.zeros((1, 1), np.float32)
        shared = np.lib.stride_tricks.as_strided(
            np.zeros(999, np.float16), (3, HEADS, DIM), (2 * DIM, 2 * DIM, 2)
        )
        self.refused("out", lambda: self.attention.run(q, 0, shared), ValueError)
        wide = np.lib.stride_tricks.as_strided(lse, (3, HEADS), (0, 0))
        self.refused("lse", lambda: self.attention.run(q, 0, lse=wide), ValueError)
        apart = np.zeros((3, HEADS, DIM, 2), np.float16)[..., 0]
        self.attention.run(q, 0, apart)
        self.close_to(apart[:1], self.wanted(q[:1], [5, 9], 12))

    def test_outputs_that_share_bytes_are_refused(self):
        self.plan()
        q, behind, more = self.q(3), 3 * HEADS * DIM * 2, 3 * HEADS * 4
        many = np.zeros(behind + more, np.uint8)
        out = many[:behind].view(np.float16).reshape(3, HEADS, DIM)
        for at in (0, behind - 4, behind):
            lse = many[at : at + more].view(np.float32).reshape(3, HEADS)
            if at < behind:
                self.refused("lse", lambda: self.attention.run(q, 0, out, lse), ValueError)
                self.refused("lse", lambda: self.attention.merge_state(q, lse, q, lse, out, lse))
        self.attention.run(q, 0, out, lse)
        self.close_to(out[:1], self.wanted(q[:1], [5, 9], 12))

    def test_a_stream_is_of_a_gpu(self):
        self.plan()
        self.refused("stream", lambda: self.attention.run(self.q(3), 0, stream=5), ValueError)

    def test_k_and_v_of_a_pool_are_of_one_type(self):
        k, v = (self.session.empty((4, SIZE, 1, DIM), x) for x in ("float16", "bfloat16"))
        make = attnd.PagePool.from_tensors
        self.refused("V of bfloat16", lambda: make(self.session, [(k, v)]), ValueError)
        for bad in (None, 5):
            self.refused("layers", lambda: make(self.session, bad), TypeError)

    def test_an_advance_calls_its_arrays_by_their_names(self):
        self.plan(reserve_pages=1)
        for starts, pages in (([0, 1, 0], []), ([0, 2, 2], [1, 3]), ([0, 1, 1], [99])):
            said = "page_indices" if pages == [99] else "page_indptr"
            with self.subTest(starts=starts), self.assertRaisesRegex(attnd.Range, said) as why:
                self.attention.advance([12, 7], starts, pages, wait=True)
            self.assertEqual(why.exception.field, said)

    def test_what_the_service_refuses_has_the_names_of_this_package(self):
        def field(call):
            with self.assertRaises(attnd.Error) as why:
                call()
            self.assertIn(f": {why.exception.field}", str(why.exception))
            again = pickle.loads(pickle.dumps(why.exception))
            self.assertEqual((str(again), again.field), (str(why.exception), why.exception.field))
            return why.exception.field

        pool = attnd.PagePool(self.session, 1, 4, SIZE, 2, 64)
        plan = attnd.BatchAttention(pool).plan
        batch = [0, 1], [0, 1], [0], [1]
        self.assertEqual(field(lambda: plan(*batch, 3)), "num_qo_heads")
        strided = {"out_strides": (64, 1), "wait": True}
        self.assertEqual(field(lambda: plan(*batch, 2, **strided)), "out")
        make = functools.partial(attnd.PagePool, self.session, 1, 4, SIZE)
        self.assertEqual(field(lambda: make(0, 64)), "num_kv_heads")
        self.assertEqual(field(lambda: make(1, 24)), "head_dim")
        self.assertEqual(field(lambda: make(1, 64, head_dim_vo=48)), "head_dim_vo")

    def test_tensors_of_any_library_are_copied_or_named(self):
        class Lent:
            """What another library gives: no array interface."""

            def __init__(self, x):
                self.__dlpack__, self.__dlpack_device__ = x.__dlpack__, x.__dlpack_device__

        class Described:
            def __init__(self, x, **more):
                self.keep, self.__array_interface__ = x, {**x.__array_interface__, **more}

        self.plan()
        q, out = self.q(3), np.zeros((3, HEADS, DIM), np.float16)
        for given in (Lent(q), Described(q)):
            self.attention.run(given, 0, Lent(out))
            self.close_to(out[:1], self.wanted(q[:1], [5, 9], 12))
            out[:] = 0
        for more in ({"data": None}, {"mask": np.ones(3)}, {"data": (0, False)}):
            self.refused("q", lambda: self.attention.run(Described(q, **more), 0), TypeError)
        only = Described(out, data=(out.ctypes.data, True))
        self.refused("out", lambda: self.attention.run(q, 0, only), ValueError)
        self.assertFalse(out.any())

    def test_a_namespace_is_of_its_own_pool(self):
        one, two = (attnd.PagePool(self.session, 1, 8, 4, 1, 16) for _ in range(2))
        cache = attnd.PrefixCache(one)
        token = cache.share(writable=True)
        attnd.PrefixCache.attach(one, token)
        self.refused("token", lambda: attnd.PrefixCache.attach(two, token), ValueError)

    def test_names_and_paths_are_named(self):
        for bad in (5, "\ud800", "a\0b"):
            self.refused("name", lambda: attnd.Session(self.path, bad))
        for bad in (5, ["x"], "a\0b"):
            self.refused("socket", lambda: attnd.Session(bad))


class EndsTest(ReportedTest):
    """Objects that are used when what they name has gone."""

    def test_leases_that_nobody_asked_for_go_back_to_their_own_pool(self):
        pool = attnd.PagePool(self.session, 1, 8, 4, 1, 16)
        cache = attnd.PrefixCache(pool)
        keys = cache.keys(np.arange(8))
        cache.publish(keys, pool.alloc_pages(2)).wait()
        left = cache.match(keys)
        cache.pin(keys).wait()  # behind it
        pool.release()
        cache.release()
        del pool, cache
        other = attnd.PagePool(self.session, 1, 8, 4, 1, 16)
        other.alloc_pages(8)
        del left
        gc.collect()
        with self.assertRaises(attnd.NoSpace):  # all of its pages are leased still
            other.alloc_pages(1)

    def test_arrays_that_are_changed_in_place_are_read_as_they_are(self):
        """What numpy lets one do to an array that plan() has been given before."""
        many, others = (np.array(x, np.int32) for x in ([5, 2, 9, 3], [1, 7, 4]))
        q = self.q(1)

        def strides(indices):
            indices.strides = (8,)

        def data(indices):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy says that it is not to be done
                indices.data = others[:2].data

        def state(indices):
            indices.__setstate__((1, (2,), np.dtype(np.int32), False, others[1:].tobytes()))

        starts, last = np.array([0, 2], np.int32), np.array([4], np.int32)
        for change, now in ((strides, [5, 9]), (data, [1, 7]), (state, [7, 4])):
            with self.subTest(change=change.__name__):
                indices = many[:2] if change is strides else many[:2].copy()
                rows = np.array([0, 1], np.int32)
                for wanted in ([5, 2], now):
                    for _ in range(2):
                        self.attention.plan(rows, starts, indices, last, HEADS, causal=True)
                        o, _ = self.attention.run(q, 0)
                        self.close_to(o, self.wanted(q, wanted, 12))
                    if wanted is not now:
                        change(indices)

    def test_tensors_that_are_gone_are_not_those_that_are_not_given(self):
        self.attention.plan(*THREE, HEADS, causal=True, wait=True)
        q, values = self.session.empty((3, HEADS, DIM)), self.q(3)
        q.numpy()[:] = values
        for lse in (None, self.session.empty((3, HEADS), "float32")):
            out = self.session.empty((3, HEADS, DIM))
            self.attention.run(q, 0, out, lse)
            del out, lse
            others = [self.session.empty((3, HEADS, DIM)) for _ in range(3)]  # at its number
            o, _ = self.attention.run(q, 0)
            self.close_to(o[:1], self.wanted(values[:1], [5, 9], 12))
            self.assertFalse(any(x.numpy().any() for x in others))
        out = self.session.empty((3, HEADS, DIM))
        self.attention.run(q, 0, out)
        del q
        with self.assertRaisesRegex(TypeError, r"\bq is NoneType"):
            self.attention.run(None, 0, out)

    def test_threads_run_what_one_of_them_has_planned(self):
        self.attention.plan(*THREE, HEADS, causal=True, wait=True)
        rows = [self.q(3) for _ in range(48)]
        want = [self.wanted(q[:1], [5, 9], 12) for q in rows]

        def submitted(q):
            mine, out = (self.session.empty((3, HEADS, DIM)) for _ in "qo")
            mine.numpy()[:] = q
            self.attention.submit(mine, 0, out).wait(20)
            return np.array(out.numpy())

        for run in (lambda q: np.array(self.attention.run(q, 0)[0]), submitted):
            with concurrent.futures.ThreadPoolExecutor(6) as threads:
                for o, wanted in zip(threads.map(run, rows), want):
                    self.close_to(o[:1], wanted)

    def test_threads_prepare_one_after_the_other(self):
        self.attention.plan(*THREE, HEADS, causal=True, wait=True)
        one, cuda, free = self.attention._one, "attnd._on_stream.cuda_or_error", []

        def prepare(layer, tensors):
            with concurrent.futures.ThreadPoolExecutor(1) as another:
                free.append(another.submit(one.acquire, blocking=False).result())

        with mock.patch.object(self.attention, "_prepare", prepare), mock.patch(cuda) as library:
            library.return_value.attnd_cuda_stream_open.return_value = 0
            self.attention.prepare(None, 0, None)
        self.assertEqual(free, [False])

    def test_a_pool_is_released_when_operations_of_its_closed_batches_are_over(self):
        pool = attnd.PagePool(self.session, 1, 8, SIZE, HEADS_KV, DIM, leased=False)
        attention = attnd.BatchAttention(pool)
        attention.plan([0, 1], [0, 1], [3], [5], HEADS, wait=True)
        q, out = (self.session.empty((1, HEADS, DIM)) for _ in "qo")
        operation = attention.submit(q, 0, out)
        attention.close()
        operation.wait(20)
        pool.release()

    def test_what_a_closed_session_had_is_released_in_silence(self):
        session = attnd.Session(self.path)
        pool = attnd.PagePool(session, 1, 8, SIZE, 1, 16)
        attention, cache = attnd.BatchAttention(pool), attnd.PrefixCache(pool)
        attention.plan([0, 1], [0, 1], pool.alloc_pages(1), [5], HEADS, wait=True)
        session.close()
        attention.close()
        cache.release()
        pool.release()

    def test_what_is_not_over_has_no_result(self):
        self.attention.plan(*THREE, HEADS, wait=True)
        q, out = (self.session.empty((3, HEADS, DIM)) for _ in "qo")
        operation = self.attention.submit(q, 0, out)  # nobody has collected it
        with self.assertRaisesRegex(ValueError, "run is not over"):
            operation.result()
        operation.wait(20)
        self.assertIsNone(operation.result())

    def test_calls_of_a_gpu_say_what_is_missing(self):
        if attnd._library.cuda() is not None:
            self.skipTest("libattnd-cuda and a driver are here")
        self.attention.plan(*THREE, HEADS, wait=True)
        for call in (lambda: self.attention.launch(1), self.attention.lane_error,
                     lambda: self.attention.prepare(None, 0, None)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "libattnd-cuda"):
                call()
        self.attention.close()
        for call in lambda: self.attention.launch(1), self.attention.lane_error:
            with self.assertRaisesRegex(ValueError, "closed"):
                call()


# What says nothing of the service.
_OF_PYTHON = frozenset((
    "adopt", "close", "closed", "destroy_doomed", "dtype", "device", "find", "forget", "lease",
    "left", "listen", "nbytes", "place", "rows", "take", "torch",
))  # fmt: skip


class ChildTest(ReportedTest):
    def calls(self, objects):
        """Each public method and property of each object, called with None for what it must be
        given."""
        for thing in objects:
            for name in dir(type(thing)):
                found = inspect.getattr_static(type(thing), name)
                if name.startswith("_") or name in _OF_PYTHON or isinstance(found, classmethod):
                    continue
                if not callable(found):
                    if isinstance(found, property):
                        yield f"{type(thing).__name__}.{name}", lambda: getattr(thing, name)
                    continue
                takes = inspect.signature(getattr(thing, name)).parameters.values()
                needs = sum(x.default is x.empty and x.kind == x.POSITIONAL_OR_KEYWORD
                            for x in takes)  # fmt: skip
                yield f"{type(thing).__name__}.{name}", lambda: getattr(thing, name)(*[None] * needs)

    def test_every_public_call_of_a_child_says_forked(self):
        leased = attnd.PagePool(self.session, 1, 16, SIZE, 1, DIM)
        cache = attnd.PrefixCache(leased)
        self.attention.plan(*THREE, HEADS, wait=True)
        q, out = (self.session.empty((3, HEADS, DIM)) for _ in "qo")
        over, flying = (self.attention.submit(q, 0, out) for _ in range(2))
        over.wait(20)
        found = cache.match(cache.keys(np.arange(SIZE)))
        memory = self.session.memory(64)
        objects = [self.session, self.pool, leased, self.attention, cache, memory, q, over, flying,
                   found]  # fmt: skip
        reads, writes = os.pipe()
        child = os.fork()
        if child == 0:
            wrong, count = ["not finished"], 0
            try:
                for name, call in self.calls(objects):
                    count += 1
                    try:
                        call()
                        wrong.append(name)
                    except attnd.Forked:
                        pass
                    except BaseException as why:
                        wrong.append(f"{name} raised {why!r}")
                wrong.remove("not finished")
            except BaseException as why:
                wrong.append(repr(why))
            finally:
                os.write(writes, f"{count} {wrong}".encode()[:4096])
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writes)
        with open(reads) as said:
            count, _, wrong = said.read().partition(" ")
        self.assertEqual(wrong, "[]")
        self.assertGreater(int(count), 50)
        flying.wait(20)
        found.wait(20)


if __name__ == "__main__":
    unittest.main()
