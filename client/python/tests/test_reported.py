"""What reports of other libraries' users have shown to be wrong here, each as it was found: the
right value, or an error that names the field."""

import asyncio
import ctypes as c
import gc
import mmap
import os
import sys
import threading
import time
import unittest

import numpy as np

import attnd
from backends import need
from reference import attention as exact
from service import ServiceTest, service

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None

HEADS, HEADS_KV, DIM, SIZE, PAGES = 4, 2, 64, 8, 64


class ReportedTest(ServiceTest):
    options = ("--threads=1",)

    def setUp(self):
        super().setUp()
        self.draw = np.random.default_rng(5)
        self.pool = attnd.PagePool(self.session, 1, PAGES, SIZE, HEADS_KV, DIM, leased=False)
        self.k, self.v = (x.numpy() for x in self.pool.kv_cache(0))
        for x in (self.k, self.v):
            x[:] = self.draw.normal(size=x.shape)
        self.attention = attnd.BatchAttention(self.pool)

    def q(self, rows):
        return self.draw.normal(size=(rows, HEADS, DIM)).astype(np.float16)

    def wanted(self, q, pages, tokens, **said):
        keys, values = (x[pages].reshape(-1, HEADS_KV, DIM)[:tokens] for x in (self.k, self.v))
        return exact(q, keys, values, True, said.pop("scale", DIM**-0.5), **said)[0]

    def close_to(self, got, wanted):
        np.testing.assert_allclose(got.astype(float), wanted, rtol=1e-3, atol=1e-3)

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

    def test_a_loop_that_ends_with_an_await_leaves_the_next_loops_alone(self):
        large, small = attnd.BatchAttention(self.pool), self.attention
        large.plan([0, 2048], [0, 64], np.arange(64), [8], 64, wait=True)
        small.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        big = [self.session.empty((2048, 64, DIM)) for _ in range(2)]
        q, o = (self.session.empty((2, HEADS, DIM)) for _ in range(2))

        async def wait(operation):
            await operation

        async def leave():
            asyncio.create_task(wait(large.submit(big[0], 0, big[1])))
            await asyncio.sleep(0.001)

        async def cancel():
            task = asyncio.create_task(wait(large.submit(big[0], 0, big[1])))
            await asyncio.sleep(0.005)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        for ends in (leave, cancel):
            asyncio.run(ends())
            small.run(q, 0, o)  # a blocking call goes on
            for _ in range(2):  # and so do later loops
                begin = time.monotonic()
                asyncio.run(asyncio.wait_for(wait(small.submit(q, 0, o)), 20))
                self.assertLess(time.monotonic() - begin, 15)
        with self.assertRaises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(wait(large.submit(big[0], 0, big[1])), 0.001))
        asyncio.run(asyncio.wait_for(wait(small.submit(q, 0, o)), 20))
        self.assertEqual([n for n in self.session._loops.values() if n], [])

    def test_a_loop_that_was_left_open_gives_the_session_to_the_next(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, o = (self.session.empty((2, HEADS, DIM)) for _ in range(2))

        async def wait(operation):
            await operation

        loops = [asyncio.new_event_loop() for _ in range(2)]
        for loop in (*loops, loops[0]):
            loop.run_until_complete(
                asyncio.wait_for(wait(self.attention.submit(q, 0, o)), 20)
            )
        for loop in loops:
            loop.close()

    def test_loops_of_two_threads_and_a_blocking_thread_each_get_their_own(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, lock, failures = self.session.empty((2, HEADS, DIM)), threading.Lock(), []

        def submit(out):
            with lock:
                return self.attention.submit(q, 0, out)

        async def awaits(out):
            for _ in range(60):
                await asyncio.wait_for(self.wait_for(submit(out)), 20)

        def work(blocking):
            out = self.session.empty((2, HEADS, DIM))
            try:
                if not blocking:
                    asyncio.run(awaits(out))
                for _ in range(60 if blocking else 0):
                    submit(out).wait(20)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(x,)) for x in (False, False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual((failures, [x for x in threads if x.is_alive()]), ([], []))

    def test_loops_that_end_while_others_wait_leave_nobody_behind(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, lock, failures = self.session.empty((2, HEADS, DIM)), threading.Lock(), []
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)  # threads meet in the middle of things

        async def awaits(out):
            with lock:
                operation = self.attention.submit(q, 0, out)
            await asyncio.wait_for(self.wait_for(operation), 20)

        def work():
            out = self.session.empty((2, HEADS, DIM))
            try:
                for _ in range(300):
                    asyncio.run(awaits(out))
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual((failures, [x for x in threads if x.is_alive()]), ([], []))

    async def wait_for(self, operation):
        await operation

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


class KindsTest(ServiceTest):
    """The same kinds elsewhere."""

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

    def test_every_call_of_a_child_says_forked_whatever_it_is_given(self):
        pool = attnd.PagePool(self.session, 1, 16, SIZE, 1, DIM)
        pages, cache = pool.alloc_pages(2), attnd.PrefixCache(pool)
        attention, tensor = attnd.BatchAttention(pool), self.session.empty((1, 1, DIM))
        attention.plan([0, 1], [0, 1], pages[:1], [3], 1, wait=True)
        operation = attention.submit(tensor, 0, self.session.empty((1, 1, DIM)))
        keys = cache.keys(np.arange(SIZE))
        calls = [
            lambda: attention.plan(None, 5, "x", [], -1), lambda: attention.run(None, "x"),
            lambda: attention.submit(None, -1, None), lambda: attention.append(1, 2, 3),
            lambda: attention.advance(None), lambda: attention.merge_state(1, 2, 3, 4),
            lambda: pool.alloc_pages(-1), lambda: pool.share_pages("x"), pool.release,
            lambda: pool.free_pages(None), lambda: pool.offer_pages(pages, -1),
            lambda: pool.claim_pages("x"), lambda: pool.share(5), lambda: pool.kv_cache(-1),
            lambda: attnd.PagePool(self.session, "x", 0, 0, 0, 0),
            lambda: attnd.PagePool.attach(self.session, 5),
            lambda: attnd.PagePool.from_tensors(self.session, 5),
            lambda: attnd.BatchAttention(pool, -1), lambda: attnd.PrefixCache(pool, -1),
            lambda: attnd.PrefixCache.attach(pool, 5), lambda: cache.keys("x"),
            lambda: cache.match(None), lambda: cache.publish(keys, "x"), lambda: cache.share(7),
            lambda: cache.claim(3), cache.release, lambda: self.session.empty(-1),
            lambda: self.session.memory("x"), lambda: self.session.info, self.session.fileno,
            lambda: self.session.tables, lambda: operation.wait(-1), operation.cancel,
            tensor.numpy, tensor.data_ptr, lambda: np.asarray(tensor),
        ]  # fmt: skip
        child = os.fork()
        if child == 0:
            wrong = 255
            try:
                for i, call in enumerate(calls):
                    wrong = i + 1
                    try:
                        call()
                        os._exit(wrong)
                    except attnd.Forked:
                        pass
                os._exit(0)
            finally:
                os._exit(wrong)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        operation.wait(20)


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        need("transformers")
        from attnd.transformers import register

        register()
        torch.set_num_threads(1)
        context = service()
        cls.path = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def setUp(self):
        self.session = attnd.Session(self.path)
        self.addCleanup(self.session.close)
        torch.manual_seed(1)
        self.ids = torch.randint(3, 97, (1, 60))

    def model(self, kind="Llama", **more):
        said = dict(
            vocab_size=97, hidden_size=128, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=HEADS, num_key_value_heads=HEADS_KV, head_dim=DIM,
            max_position_embeddings=128, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        config = getattr(transformers, f"{kind}Config")(**{**said, **more})
        torch.manual_seed(1)
        return getattr(transformers, f"{kind}ForCausalLM")(config).eval()

    def cache(self, pages=64):
        from attnd.transformers import PagedCache

        pool = attnd.PagePool(self.session, 2, pages, 16, HEADS_KV, DIM)
        return PagedCache(pool, HEADS)

    def forward(self, model, cache, batch, ids, **said):
        model.set_attn_implementation("attnd")
        positions = cache.step(batch)
        with torch.no_grad():
            return model(
                input_ids=ids, position_ids=positions, past_key_values=cache, use_cache=True, **said
            ).logits[0]

    def eager(self, model, ids):
        model.set_attn_implementation("eager")
        with torch.no_grad():
            return model(input_ids=ids, use_cache=False).logits[0]

    def close_to(self, got, wanted):
        scale = wanted.abs().max()
        np.testing.assert_allclose(got / scale, wanted / scale, atol=1e-2)

    def test_padding_is_refused_and_a_mask_of_ones_is_none(self):
        model, cache, ids = self.model(), self.cache(), self.ids[:, :12]
        mask = torch.ones(1, 12, dtype=torch.long)
        got = self.forward(model, cache, [(cache.sequence(), 12)], ids, attention_mask=mask)
        self.close_to(got, self.eager(model, ids))
        mask[0, :5] = 0
        with self.assertRaisesRegex(NotImplementedError, "attention_mask has zeros"):
            self.forward(model, cache, [(cache.sequence(), 12)], ids, attention_mask=mask)

    def test_a_mask_of_four_dimensions_is_refused(self):
        cache = self.cache()
        with self.assertRaisesRegex(NotImplementedError, "attention_mask is a tensor of"):
            self.forward(self.model(), cache, [(cache.sequence(), 12)], self.ids[:, :12],
                attention_mask=torch.zeros(1, 1, 12, 12))  # fmt: skip

    def test_a_model_that_wants_gradients_is_refused(self):
        model, cache = self.model(), self.cache()
        model.set_attn_implementation("attnd")
        positions = cache.step([(cache.sequence(), 12)])
        with self.assertRaisesRegex(NotImplementedError, "no gradients"):
            model(input_ids=self.ids[:, :12], position_ids=positions, past_key_values=cache)

    def test_a_step_that_finds_no_page_changes_no_sequence(self):
        model, cache, ids = self.model(), self.cache(3), self.ids
        a, b = cache.sequence(), cache.sequence()
        packed = torch.cat([ids[:, :10], ids[:, 10:20]], 1)
        self.forward(model, cache, [(a, 10), (b, 10)], packed)
        for _ in range(2):
            with self.assertRaises(attnd.NoSpace):
                cache.step([(a, 1), (b, 40)])
            self.assertEqual((a.length, b.length, len(a.pages), len(b.pages)), (10, 10, 1, 1))
        for bad in ([(a, 1), (a, 1)], [(a, 1), (b, -1)], [(a, 1), (b, 1.5)], [(a, 1), (None, 1)]):
            with self.assertRaises((TypeError, ValueError)):
                cache.step(bad)
        cache.end(b)
        got = self.forward(model, cache, [(a, 1)], ids[:, 10:11])
        self.close_to(got, self.eager(model, ids[:, :11])[10:])

    def test_a_pass_that_raises_is_rolled_back(self):
        model, cache, ids = self.model(), self.cache(4), self.ids
        a = cache.sequence()
        self.forward(model, cache, [(a, 10)], ids[:, :10])
        before = list(a.pages)
        with self.assertRaises(IndexError):
            self.forward(model, cache, [(a, 30)], ids[:, 10:40] + 1000)
        cache.rollback()
        self.assertEqual((a.length, a.pages), (10, before))
        self.assertEqual(len(cache.pool.alloc_pages(3)), 3)  # they came back
        got = self.forward(model, cache, [(a, 1)], ids[:, 10:11])
        self.close_to(got, self.eager(model, ids[:, :11])[10:])

    def test_a_pass_without_a_step_is_refused(self):
        model, cache = self.model(), self.cache()
        a = cache.sequence()
        self.forward(model, cache, [(a, 10)], self.ids[:, :10])
        with self.assertRaisesRegex(ValueError, r"step\(\) comes before"), torch.no_grad():
            model(input_ids=self.ids[:, :10], past_key_values=cache)

    def test_positions_that_are_not_the_steps_are_refused(self):
        model, cache = self.model(), self.cache()
        a = cache.sequence()
        self.forward(model, cache, [(a, 10)], self.ids[:, :10])
        cache.step([(a, 2)])
        with self.assertRaisesRegex(ValueError, "position_ids"), torch.no_grad():
            model(input_ids=self.ids[:, 10:12], past_key_values=cache,
                position_ids=torch.arange(2)[None])  # fmt: skip

    def test_models_are_refused_when_they_are_made_or_told_so(self):
        own = transformers.BloomConfig(vocab_size=97, hidden_size=64, n_layer=1, n_head=4)
        chunks = transformers.Llama4TextConfig(
            vocab_size=97, hidden_size=64, intermediate_size=32, intermediate_size_mlp=32,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            num_local_experts=2, attention_chunk_size=8,
        )  # fmt: skip
        for kind, config, words in (
            (transformers.BloomForCausalLM, own, "attends by itself"),
            (transformers.Llama4ForCausalLM, chunks, "chunked_attention"),
        ):
            with self.assertRaisesRegex(NotImplementedError, words):
                kind._from_config(config, attn_implementation="attnd")
            with self.assertRaisesRegex(NotImplementedError, words):
                kind._from_config(config, attn_implementation="eager").set_attn_implementation(
                    "attnd"
                )
        said = self.model().config
        made = transformers.LlamaForCausalLM._from_config(said, attn_implementation="attnd")
        self.assertEqual(made.config._attn_implementation, "attnd")

    def test_sinks_are_what_they_are_however_they_were_written(self):
        model = self.model("GptOss", sliding_window=8, num_local_experts=4, num_experts_per_tok=2)
        cache, ids = self.cache(), self.ids[:, :30]
        sinks = [layer.self_attn.sinks for layer in model.model.layers]

        def by_data(x, value):
            x.data.copy_(torch.full_like(x, value))

        def in_inference_mode(x, value):
            with torch.inference_mode():
                x.data.fill_(value)

        for value, write in ((1.0, by_data), (4.0, by_data), (-6.0, in_inference_mode)):
            for x in sinks:
                write(x, value)
            got = self.forward(model, cache, [(cache.sequence(), 30)], ids)
            self.close_to(got, self.eager(model, ids))

    def test_temporaries_at_one_address_are_not_taken_for_each_other(self):
        from attnd._layers import Ways

        pool = attnd.PagePool(self.session, 1, 4, 16, HEADS_KV, DIM)
        ways, sinks = Ways(pool, HEADS), torch.ones(HEADS).bfloat16()
        for i in range(30):
            sinks.fill_(float(i))
            table = ways.sinks(0, sinks.float()).torch()
            self.assertEqual(table[0].tolist(), [float(i)] * HEADS)


if __name__ == "__main__":
    unittest.main()
