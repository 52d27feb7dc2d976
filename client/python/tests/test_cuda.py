"""The GPU: pools and tensors there, runs in streams, in graphs, and by operations."""

import os
import threading
import unittest

import numpy as np

import attnd
from reference import Batch
from service import ServiceTest
from test_attention import SEED

try:
    import torch
except ImportError:
    torch = None
PAGES, PAGE, HEADS, HEADS_KV, DIM = 64, 16, 8, 2, 128
GPU = bool(torch and torch.cuda.is_available() and os.environ.get("ATTND_BACKEND") == "cuda")


@unittest.skipUnless(GPU, "no GPU, no PyTorch, or ATTND_BACKEND is not cuda")
class CudaTest(ServiceTest):
    options, backend = ("--trust",), "cuda"

    @classmethod
    def setUpClass(cls):
        torch.cuda.init()
        super().setUpClass()

    def setUp(self):
        torch.zeros(1, device="cuda")  # a context is current
        torch.manual_seed(SEED)
        super().setUp()
        self.draw = np.random.default_rng(SEED)

    def normal(self, *shape):
        return torch.randn(*shape, device="cuda").half()

    def check(self, batch, planes, q, o, lse=None, **variant):
        torch.cuda.synchronize()
        k, v = (x.cpu().numpy() for x in planes)
        wanted, sums = batch.expected(q.cpu().numpy(), k, v, **variant)
        np.testing.assert_allclose(o.double().cpu().numpy(), wanted, rtol=1e-3, atol=1e-3)
        if lse is not None:
            np.testing.assert_allclose(lse.cpu().numpy(), sums, rtol=1e-3, atol=1e-3)

    def device_pool(self):
        pool = attnd.PagePool(
            self.session, 2, PAGES, PAGE, HEADS_KV, DIM, device="cuda", leased=False
        )
        planes = [[x.torch() for x in pool.kv_cache(layer)] for layer in range(2)]
        for x in sum(planes, []):
            x.copy_(self.normal(*x.shape))
        return pool, planes

    def test_a_pool_of_the_service_on_the_gpu_and_runs_in_a_stream(self):
        pool, planes = self.device_pool()
        attention = attnd.BatchAttention(pool)
        for _ in range(3):
            batch = Batch(self.draw, PAGES, PAGE)
            q = self.normal(batch.rows, HEADS, DIM)
            attention.plan(*batch.csr(), HEADS, causal=True)
            for layer in range(2):
                o, lse = attention.run(q, pool.kv_cache(layer), lse=True)
                self.check(batch, planes[layer], q, o, lse)
                attention.lane_error()

    def test_windows_soft_caps_and_sinks_of_two_layers(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        q, sinks = self.normal(batch.rows, HEADS, DIM), torch.randn(2, HEADS, device="cuda")
        for said, meant in (
            ({"window_left": 5}, {"window_left": 5}),
            ({"logits_soft_cap": 1.5}, {"logits_soft_cap": 1.5}),
            ({"sinks": sinks}, {}),
        ):
            attention.plan(*batch.csr(), HEADS, causal=True, **said)
            for layer in range(2):
                if "sinks" in said:
                    meant["sinks"] = sinks[layer].double().cpu().numpy()
                o, lse = attention.run(q, pool.kv_cache(layer), lse=True)
                self.check(batch, planes[layer], q, o, lse, **meant)
                attention.lane_error()

    def test_a_pool_of_fp8_is_read_with_its_scales(self):
        for dtype in ("float8_e4m3fn", "float8_e5m2"):
            pool = attnd.PagePool(
                self.session, 1, PAGES, PAGE, HEADS_KV, DIM, dtype, device="cuda", leased=False
            )
            planes = [x.torch() for x in pool.kv_cache(0)]
            for x in planes:
                x.copy_(self.normal(*x.shape).to(x.dtype))
            attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
            scales = torch.tensor([[0.5, 2.0], [0.75, 0.25]], device="cuda")
            attention.plan(*batch.csr(), HEADS, causal=True, k_scale=0.5, kv_scales=scales)
            q = self.normal(batch.rows, HEADS, DIM)
            o, lse = attention.run(q, pool.kv_cache(0), lse=True)
            k, v = (x.double() * of[:, None] for x, of in zip(planes, scales))
            self.check(batch, (k * 0.5, v), q, o, lse)
            attention.lane_error()

    def test_results_of_a_mask_and_its_reverse_become_the_whole(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        sizes = list(zip(batch.qo_len, batch.kv_len))
        masks = [self.draw.random(size) < 0.5 for size in sizes]
        mask = torch.cat([torch.tensor(x).reshape(-1) for x in masks]).cuda()
        q, parts = self.normal(batch.rows, HEADS, DIM), []
        for given, meant in ((mask, masks), (~mask, [~x for x in masks])):
            attention.plan(*batch.csr(), HEADS, custom_mask=given)
            o, lse = attention.run(q, 0, lse=True)
            self.check(batch, planes[0], q, o, lse, causal=False, masks=meant)
            attention.lane_error()
            parts += o, lse
        o, lse = attention.merge_state(*parts)
        self.check(batch, planes[0], q, o, lse, causal=False)

    def test_a_pool_of_ones_own_tensors_in_both_layouts(self):
        for layout, shape in (("NHD", (PAGE, HEADS_KV)), ("HND", (HEADS_KV, PAGE))):
            layers = [self.normal(PAGES, 2, *shape, DIM) for _ in range(2)]
            torch.cuda.synchronize()
            pool = attnd.PagePool.from_tensors(self.session, layers, layout)
            attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
            attention.plan(*batch.csr(), HEADS, causal=True)
            q = self.normal(batch.rows, HEADS, DIM)
            order = (0, 1, 2, 3) if layout == "NHD" else (0, 2, 1, 3)
            for cache in layers:
                o, lse = attention.run(q, cache, lse=True)
                planes = [cache[:, i].permute(order) for i in range(2)]
                self.check(batch, planes, q, o, lse)
            attention.lane_error()

    def own_session(self):
        """One whose streams execute its runs."""
        session = attnd.Session(self.path, execute="engine")
        self.addCleanup(session.close)
        return session

    def test_a_graph_plans_lengths_and_tables_that_the_gpu_knows(self):
        session = self.own_session()
        planes = [self.normal(PAGES, PAGE, HEADS_KV, DIM) for _ in range(2)]
        torch.cuda.synchronize()
        pool = attnd.PagePool.from_tensors(session, [tuple(planes)])
        attention = attnd.BatchAttention(pool)
        attention.plan_shape(8, 640, HEADS, causal=True)
        attention.plan_shape(8, 640, HEADS, causal=True)  # costs nothing
        q, o = self.normal(640, HEADS, DIM), self.normal(640, HEADS, DIM)
        lengths, begins = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (8, 9))
        table = torch.zeros(8, 6, dtype=torch.int32, device="cuda")
        errors = torch.zeros(8, dtype=torch.int32, device="cuda")

        def step():
            attention.plan_on_stream(lengths, table, begins, errors=errors)
            attention.run(q, 0, o)

        step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for _ in range(4):
            batch = Batch(self.draw, PAGES, PAGE, 8, 80)
            lengths.copy_(torch.tensor(batch.kv_len))
            begins.copy_(torch.from_numpy(batch.csr()[0]))
            for row, pages in zip(table, batch.pages):
                row[: len(pages)].copy_(torch.tensor(pages))
            graph.replay()
            torch.cuda.synchronize()
            self.check(batch, planes, q[: batch.rows], o[: batch.rows])
            self.assertFalse(errors.any().item())
        lengths[2], errors[2] = -3, 0
        graph.replay()
        torch.cuda.synchronize()
        rows = slice(*batch.csr()[0][2:4])
        self.assertTrue(o[rows].isnan().all().item())
        self.assertEqual(errors.bool().tolist(), [i == 2 for i in range(8)])
        with self.assertRaises(attnd.Range) as caught:
            attention.lane_error()
        self.assertEqual((caught.exception.field, caught.exception.index), ("kv_len", 2))

    def steps(self, kv_dtype=None, **said):
        """What an engine's module has of a GPU, over two layers; and their K and V as numbers."""
        from attnd._steps import Steps, by_engine

        session = self.own_session()
        self.assertTrue(by_engine(session))
        layers = [[self.normal(PAGES, PAGE, HEADS_KV, DIM) for _ in "kv"] for _ in range(2)]
        if kv_dtype:
            layers = [[x.to(getattr(torch, kv_dtype)) for x in layer] for layer in layers]
        torch.cuda.synchronize()
        held = [[x.view(torch.uint8) for x in layer] for layer in layers] if kv_dtype else layers
        steps = Steps(
            session, held, HEADS, dtype="float16", kv_dtype=kv_dtype, requests=8, rows=256,
            sizes=(24,), keys=96, **said,
        )  # fmt: skip
        return steps, [[x.float() for x in layer] for layer in layers]

    def arrays(self, batch=None):
        """Begins, lengths and pages of a batch of up to 8 requests, on the GPU."""
        made = np.zeros(9, np.int32), np.zeros(8, np.int32), np.zeros((8, 6), np.int32)
        if batch is not None:
            made[0][:] = batch.rows
            made[0][: len(batch.kv_len) + 1] = batch.csr()[0]
            made[1][: len(batch.kv_len)] = batch.kv_len
            for row, pages in zip(made[2], batch.pages):
                row[: len(pages)] = pages
        return [torch.from_numpy(x).cuda() for x in made]

    def test_a_graph_of_an_engines_step_has_the_places_that_it_made_itself(self):
        steps, layers = self.steps()
        sinks, way = torch.randn(HEADS, device="cuda"), {"causal": True, "sm_scale": DIM**-0.5}
        places, fed = self.arrays(Batch(self.draw, PAGES, PAGE, 3, 8)), self.normal(24, HEADS, DIM)

        def layers_of(step):
            made = []
            for layer, more in ((0, {"sinks": sinks}), (1, {"window_left": 5})):
                q, o = fed * 1, torch.empty_like(fed)
                step.run(layer, q, o, **way, **more)
                made.append(o * 1)
            return made

        layers_of(steps.begin(*places))  # eager, where they lie
        step, graph = steps.begin(*places), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = layers_of(step)
        meant = {"sinks": sinks.double().cpu().numpy()}, {"window_left": 5}
        for longest in 90, 20, 60:
            batch = Batch(self.draw, PAGES, PAGE, 6, longest)
            batch.qo_len = [min(n, 4) for n in batch.qo_len]
            batch.rows = sum(batch.qo_len)
            for place, x in zip(places, self.arrays(batch)):
                place.copy_(x)
            fed.normal_()
            steps.begin(*places)
            graph.replay()
            for o, planes, how in zip(made, layers, meant):
                self.check(batch, planes, fed[: batch.rows], o[: batch.rows], **how)
            prompt = Batch(self.draw, PAGES, PAGE, 5, 90)  # eager between them, in buffers
            q, step = self.normal(prompt.rows, HEADS, DIM), steps.begin(*self.arrays(prompt))
            for layer, planes in enumerate(layers):
                o = torch.empty_like(q)
                step.run(layer, q, o, **way)
                self.check(prompt, planes, q, o)
        next(iter(steps._plans.values())).attention.lane_error()

    def test_an_engines_step_over_fp8_has_scales_of_its_layers(self):
        table = torch.tensor([[0.5, 0.25], [2.0, 1.5]], device="cuda")
        scales = table[:, :, None].expand(-1, -1, HEADS_KV).contiguous()
        one = {"k_scale": 0.5, "v_scale": 0.25}
        for said, of in (one, table[:1].expand(2, 2)), ({"kv_scales": scales}, table):
            steps, layers = self.steps("float8_e4m3fn", **said)
            batch = Batch(self.draw, PAGES, PAGE, 5, 90)
            step, q = steps.begin(*self.arrays(batch)), self.normal(batch.rows, HEADS, DIM)
            for layer, (k, v) in enumerate(layers):
                o = torch.empty_like(q)
                step.run(layer, q, o, causal=True, sm_scale=DIM**-0.5)
                self.check(batch, (k * of[layer, 0], v * of[layer, 1]), q, o)

    def test_arrays_of_a_plan_on_the_gpu_are_held_against_each_other(self):
        pool = attnd.PagePool(
            self.own_session(), 1, PAGES, PAGE, HEADS_KV, DIM, device="cuda", leased=False
        )
        attention = attnd.BatchAttention(pool)
        attention.plan_shape(4, 4, HEADS)
        lengths = torch.ones(4, dtype=torch.int32, device="cuda")
        table = torch.zeros(4, 5, dtype=torch.int32, device="cuda")
        for refused, given in (
            (TypeError, (lengths.long(), table)), (TypeError, (lengths.cpu(), table)),
            (ValueError, (lengths, table[:3])), (ValueError, (lengths, table.T)),
            (ValueError, (lengths, table, lengths)), (ValueError, (lengths, table[:, :0])),
        ):  # fmt: skip
            with self.assertRaises(refused):
                attention.plan_on_stream(*given)
        with self.assertRaises(attnd.Range):
            attention.plan_on_stream(lengths, table, rows_per_request=2)

    def test_a_graph_replays_runs_over_lengths_that_advance(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(
            self.draw, PAGES, PAGE, 4, 40, decode=True
        )
        attention.plan(*batch.csr(), HEADS, causal=True)
        q, o = (
            self.normal(batch.rows, HEADS, DIM),
            torch.empty(batch.rows, HEADS, DIM, device="cuda").half(),
        )
        lse = torch.empty(batch.rows, HEADS, device="cuda")
        fed, twice = torch.zeros_like(q), []
        attention.prepare(q, 0, o, lse)
        graph = torch.cuda.CUDAGraph()
        attention.run(q, 0, o, lse)  # outside of a capture, too
        with torch.cuda.graph(graph):
            q.copy_(fed)
            attention.run(q, 0, o, lse)
            twice.append(o * 2)
        for _ in range(10):
            batch.kv_len = [max(1, n - 1) for n in batch.kv_len]
            attention.advance(batch.kv_len)
            batch_pages = [-(-n // PAGE) for n in batch.kv_len]
            batch.pages = [pages[:n] for pages, n in zip(batch.pages, batch_pages)]
            fed.normal_()
            o.fill_(float("nan"))
            graph.replay()
            self.check(batch, planes[0], q, o, lse)
            self.assertTrue(torch.equal(twice[0], o * 2))
        attention.lane_error()

    def test_threads_that_run_for_the_first_time_at_once_are_all_right(self):
        for _ in range(3):  # sessions: each has its first run once
            self.first_runs_at_once()
            self.session.close()
            self.session = attnd.Session(self.path, "test")
            self.addCleanup(self.session.close)

    def first_runs_at_once(self):
        pool, planes = self.device_pool()
        start, found = threading.Barrier(4), [None] * 4
        batch = Batch(self.draw, PAGES, PAGE)
        q = self.normal(batch.rows, HEADS, DIM)

        def work(lane):
            torch.cuda.set_device(0)
            attention = attnd.BatchAttention(pool, lane=lane)
            with torch.cuda.stream(torch.cuda.Stream()):
                attention.plan(*batch.csr(), HEADS, causal=True, wait=True)
                start.wait(60)
                found[lane] = attention.run(q, 0)[0]
                torch.cuda.current_stream().synchronize()
                attention.lane_error()

        torch.cuda.synchronize()
        threads = [threading.Thread(target=work, args=(lane,)) for lane in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for o in found:
            self.assertIsNotNone(o, "a thread raised")
            self.check(batch, planes[0], q, o)

    def one_decode(self, attention, rows=4):
        attention.plan([0, rows], [0, 5], [0, 1, 2, 3, 4], [9], HEADS, causal=True)
        return self.normal(rows, HEADS, DIM)

    def test_a_graph_keeps_its_run_however_many_others_come_after_it(self):
        pool, _ = self.device_pool()
        attention = attnd.BatchAttention(pool)
        q = self.one_decode(attention)
        o, graph, kept = torch.empty_like(q), torch.cuda.CUDAGraph(), []
        attention.run(q, 0, o)
        torch.cuda.synchronize()
        wanted = o.clone()
        with torch.cuda.graph(graph):
            attention.run(q, 0, o)
        for _ in range(600):
            kept += self.normal(4, HEADS, DIM), torch.empty_like(q)
            attention.run(kept[-2], 0, kept[-1])
        torch.cuda.synchronize()
        o.zero_()
        graph.replay()
        torch.cuda.synchronize()
        attention.lane_error()
        self.assertTrue(torch.equal(o, wanted))

    def test_a_graph_of_a_plan_that_had_to_go_is_answered_with_an_error(self):
        pool, _ = self.device_pool()
        attention = attnd.BatchAttention(pool)
        q = self.one_decode(attention)
        o, graph = torch.empty_like(q), torch.cuda.CUDAGraph()
        attention.run(q, 0, o)
        with torch.cuda.graph(graph):
            attention.run(q, 0, o)
        larger = self.one_decode(attention, 64)  # no room for it in the plan of the first
        attention.run(larger, 0, torch.empty_like(larger))
        torch.cuda.synchronize()
        attention.lane_error()
        graph.replay()
        torch.cuda.synchronize()
        with self.assertRaises(attnd.Unknown):
            attention.lane_error()

    def test_memory_that_was_freed_and_came_back_is_another_memory(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        attention.plan(*batch.csr(), HEADS, causal=True)
        for _ in range(6):
            q = self.normal(1 << 14, HEADS, DIM)[: batch.rows]
            o, lse = attention.run(q, 0, lse=True)
            self.check(batch, planes[0], q, o, lse)
            attention.lane_error()
            del q, o, lse
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def test_a_mask_that_follows_plans_whose_runs_are_prepared(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        q = self.normal(batch.rows, HEADS, DIM)
        o, lse = torch.empty_like(q), torch.empty(batch.rows, HEADS, device="cuda")
        sizes = list(zip(batch.qo_len, batch.kv_len))
        for _ in range(50):
            attention.plan(*batch.csr(), HEADS, causal=True)
            attention.run(q, 0, o, lse)
            masks = [self.draw.random(size) < 0.5 for size in sizes]
            flat = np.concatenate([x.ravel() for x in masks])
            attention.plan(*batch.csr(), HEADS, custom_mask=flat)
            attention.run(q, 0, o, lse)
            self.check(batch, planes[0], q, o, lse, causal=False, masks=masks)
            attention.lane_error()

    def test_operations_of_the_ring_read_and_write_gpu_tensors(self):
        pool, planes = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        attention.plan(*batch.csr(), HEADS, causal=True)
        q = self.normal(batch.rows, HEADS, DIM)
        o = torch.full_like(q, float("nan"))
        torch.cuda.synchronize()
        attention.submit(q, 1, o).wait(20)
        self.check(batch, planes[1], q, o)

    def test_the_interfaces_of_cuda_show_the_bytes_and_keep_them(self):
        tensor = self.session.empty((64, 64), "float32", "cuda")
        there = tensor.torch()
        self.assertEqual((there.data_ptr(), there.is_cuda), (tensor.data_ptr(), True))
        same = torch.as_tensor(tensor, device="cuda")
        self.assertEqual(same.data_ptr(), tensor.data_ptr())
        self.assertFalse(hasattr(tensor, "__array_interface__"))
        there.fill_(2)
        del tensor, same
        self.session.close()
        self.assertEqual(there.sum().item(), 2 * 64 * 64)

    def test_host_tensors_are_refused_where_the_pool_is_on_the_gpu(self):
        pool, _ = self.device_pool()
        attention, batch = attnd.BatchAttention(pool), Batch(self.draw, PAGES, PAGE)
        attention.plan(*batch.csr(), HEADS, causal=True)
        with self.assertRaises(LookupError):
            attention.run(np.zeros((batch.rows, HEADS, DIM), np.float16), 0)


if __name__ == "__main__":
    unittest.main()
