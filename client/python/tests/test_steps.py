"""Steps that are planned on a GPU, without one: what is launched, captured and replayed, and what
comes out, for the modules of vLLM and SGLang where these are."""

import types
import unittest
from unittest import mock

import numpy as np

from backends import Backend, need, torch
from reference import Batch
from streams import streams

HEADS, HEADS_KV, DIM, PAGE, PAGES = 8, 2, 32, 16, 40
WAY = {"causal": True, "sm_scale": DIM**-0.5}


def arrays_of(batch, requests, pages=8):
    """Of a batch: starts, lengths and table, with requests of padding behind it."""
    missing = requests - len(batch.pages)
    table = torch.full((requests, pages), -1, dtype=torch.int32)
    for row, of in zip(table, batch.pages):
        row[: len(of)] = torch.tensor(of)
    starts = np.concatenate([batch.csr()[0], np.full(missing, batch.rows)])
    lengths = torch.tensor(batch.kv_len + [0] * missing, dtype=torch.int32)
    return torch.tensor(starts, dtype=torch.int32), lengths, table


class StepsTest(Backend):
    def setUp(self):
        super().setUp()
        self.steps_module = need("attnd._steps")
        context = streams()
        self.stream = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def steps(self, layers=2, **said):
        planes = [tuple(self.normal(PAGES, PAGE, HEADS_KV, DIM) for _ in "kv")
                  for _ in range(layers)]  # fmt: skip
        said = {"requests": 16, "rows": 128, "sizes": (8,), "keys": 120, **said}
        return self.steps_module.Steps(None, planes, HEADS, dtype="float16", **said), planes

    def batch(self, **how):
        return Batch(self.draw, PAGES, PAGE, **how)

    def attend(self, step, batch, planes, rows=None, **way):
        """Both layers, with a row more than the batch's if @rows does not say how many."""
        rows = batch.rows + 1 if rows is None else rows
        for layer, (k, v) in enumerate(planes):
            q = self.normal(rows, HEADS, DIM)
            out = torch.full_like(q, float("nan"))
            step.run(layer, q, out, **WAY, **way)
            self.check(batch, q[: batch.rows], k, v, out, **way)

    def test_a_step_is_cut_once_for_each_way_and_is_attention(self):
        steps, planes = self.steps()
        for _ in range(3):
            batch = self.batch()
            step, before = steps.begin(*arrays_of(batch, 7)), self.stream.cuts
            self.attend(step, batch, planes)
            self.assertEqual(self.stream.cuts - before, 1)
            before = self.stream.cuts
            self.attend(step, batch, planes, window_left=5)
            self.assertEqual(self.stream.cuts - before, 1)

    def test_a_pass_that_comes_again_is_cut_again(self):
        steps, planes = self.steps()
        batch, other = self.batch(decode=True), self.batch(decode=True)
        arrays = arrays_of(batch, 5)
        step = steps.begin(*arrays)
        self.attend(step, batch, planes)
        for x, y in zip(arrays, arrays_of(other, 5)):
            x.copy_(y)  # drafts: the engine counts lengths up where they are
        self.attend(step, other, planes)

    def test_rows_of_a_known_size_attend_where_they_lie_and_others_in_buffers(self):
        steps, planes = self.steps()
        batch = self.batch(requests=3, decode=True)
        for rows, buffered in (8, 0), (9, 2), (8, 0):
            made = len(steps._plans)
            self.attend(steps.begin(*arrays_of(batch, 4)), batch, planes, rows)
            new = list(steps._plans.values())[made:]
            self.assertEqual(sum(len(x._numbers) for x in new), buffered)
        self.assertEqual({x.attention.rows for x in steps._plans.values()}, {8, 16})

    def test_another_tensor_at_a_known_place_is_prepared_anew(self):
        steps, planes = self.steps()
        batch = self.batch(requests=3, decode=True)
        q, out, (k, v) = self.normal(8, HEADS, DIM), self.normal(8, HEADS, DIM), planes[0]
        for number, prepared in (1, 1), (1, 1), (2, 2):
            with mock.patch.object(self.steps_module, "allocation_of", lambda at, n=number: n):
                steps.begin(*arrays_of(batch, 4)).run(0, q, out, **WAY)
            self.check(batch, q[: batch.rows], k, v, out)
            (plan,) = steps._plans.values()
            self.assertEqual(len(plan.attention.prepared), prepared)

    def test_q_may_be_a_part_of_what_the_projection_gave(self):
        steps, planes = self.steps()
        batch = self.batch(requests=3, decode=True)
        step, (k, v) = steps.begin(*arrays_of(batch, 3)), planes[0]
        q = self.normal(8, HEADS + 2 * HEADS_KV, DIM)[:, :HEADS]
        out = torch.full((8, HEADS, DIM), float("nan")).half()
        step.run(0, q, out, **WAY)
        self.check(batch, q[: batch.rows].contiguous(), k, v, out)

    def test_sinks_are_those_of_the_layer_and_are_read_anew_in_each_step(self):
        steps, planes = self.steps()
        sinks = [torch.tensor(self.draw.normal(size=HEADS)).bfloat16() for _ in planes]
        for turn in range(3):
            batch = self.batch()
            step = steps.begin(*arrays_of(batch, 5))
            for layer, (k, v) in enumerate(planes):
                q = self.normal(batch.rows, HEADS, DIM)
                out = torch.full_like(q, float("nan"))
                step.run(layer, q, out, sinks[layer], **WAY)
                self.check(batch, q, k, v, out, sinks=sinks[layer].double().numpy())
            for x in sinks:
                if turn == 0:
                    x.neg_()
                else:  # as those who load weights anew do
                    x.data = 2 * x.data

    def test_a_graph_of_a_step_serves_any_lengths_and_rows(self):
        steps, planes = self.steps()
        arrays = arrays_of(self.batch(longest=4), 6)
        places = [(self.normal(20, HEADS, DIM), torch.empty(20, HEADS, DIM).half()) for _ in planes]

        def layers(step):
            for layer, (q, out) in enumerate(places):
                step.run(layer, q, out, **WAY)

        step = steps.begin(*arrays)
        layers(step)  # tried first, as engines do
        with self.stream.capture() as replay:
            layers(step)
        for longest in 4, 70, 7:
            batch = self.batch(longest=longest)
            batch.qo_len = [min(n, 4) for n in batch.qo_len]
            batch.rows = sum(batch.qo_len)
            for x, y in zip(arrays, arrays_of(batch, 6)):
                x.copy_(y)
            for q, out in places:
                q.copy_(self.normal(*q.shape))
                out.fill_(float("nan"))
            replay()
            for (q, out), (k, v) in zip(places, planes):
                self.check(batch, q[: batch.rows], k, v, out)
                self.assertTrue(out[batch.rows :].isnan().all())

    def test_what_engines_own_is_bounded_and_the_rest_attends_in_buffers(self):
        steps, planes = self.steps()
        batch, kind = self.batch(requests=3, decode=True), self.steps_module.Steps
        with mock.patch.object(kind, "own", self.steps_module._OWN_MAX - 1):
            self.attend(steps.begin(*arrays_of(batch, 4)), batch, planes, 8)
            self.assertEqual(kind.own, self.steps_module._OWN_MAX)
        self.assertEqual({x.attention.rows for x in steps._plans.values()}, {8, 16})


class VllmEngineTest(Backend):
    """vLLM's runner in small: buffers that stay, a graph for each size, padding, drafts."""

    def setUp(self):
        super().setUp()
        self.module, self.ours = need("vllm.v1.attention.backend"), need("attnd.vllm")
        self.addCleanup(setattr, self.ours, "_session", self.ours._session)
        self.ours._session = types.SimpleNamespace(closed=False)
        context = streams("attnd.vllm")
        self.stream = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def builder(self, context):
        config = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(
                static_forward_context=context, cudagraph_capture_sizes=[4, 8, 24]
            ),
            parallel_config=types.SimpleNamespace(),
            model_config=types.SimpleNamespace(dtype=torch.float16, max_model_len=120),
            scheduler_config=types.SimpleNamespace(max_num_seqs=8, max_num_batched_tokens=512),
        )  # fmt: skip
        kind = self.ours.AttndBackend.get_builder_cls()
        self.assertIs(kind.get_cudagraph_support(config, None),
                      self.module.AttentionCGSupport.ALWAYS)  # fmt: skip
        return kind(None, list(context), config, torch.device("cpu"))

    def common(self, batch, requests, places):
        """CommonAttentionMetadata in vLLM's buffers, of a batch that is padded."""
        for place, x in zip(places, arrays_of(batch, requests)):
            place[: len(x)].copy_(x)
        starts, lengths, table = (p[: requests + (p is places[0])] for p in places)
        return self.module.CommonAttentionMetadata(
            query_start_loc=starts, query_start_loc_cpu=None, seq_lens=lengths, num_reqs=requests,
            num_actual_tokens=batch.rows, max_query_len=max(batch.qo_len), max_seq_len=120,
            block_table_tensor=table, slot_mapping=None,
        )  # fmt: skip

    def test_graphs_of_each_size_and_eager_prompts_between_them(self):
        context = {}
        for name, window in ("full", None), ("window", 6):
            cache = self.normal(PAGES, 2, PAGE, HEADS_KV, DIM)
            impl = self.ours.AttndImpl(
                HEADS, DIM, DIM**-0.5, HEADS_KV, sliding_window=window
            )
            context[name] = types.SimpleNamespace(kv_cache=cache, impl=impl, layer_name=name)
        builder, graphs = self.builder(context), {}
        places = [torch.zeros(n, dtype=torch.int32) for n in (9, 8)]
        places.append(torch.zeros(8, 8, dtype=torch.int32))
        fed = self.normal(512, len(context), HEADS, DIM)
        made = torch.zeros_like(fed)

        def forward(metadata, rows):
            for i, layer in enumerate(context.values()):
                out = torch.empty(rows, HEADS * DIM).half()
                q = fed[:rows, i].flatten(1)
                layer.impl.forward(layer, q, None, None, layer.kv_cache, metadata, out)
                rows_of = out.view(rows, HEADS, DIM)
                self.stream.do(lambda i=i, x=rows_of: made[:rows, i].copy_(x))

        def check(batch):
            for i, (layer, way) in enumerate(zip(context.values(), ({}, {"window_left": 5}))):
                q, planes = fed[: batch.rows, i], layer.kv_cache.unbind(1)
                self.check(batch, q, *planes, made[:, i], **way)

        for rows, requests in (8, 8), (4, 4), (24, 8):  # the last one: mixed, or drafts
            batch = Batch(self.draw, PAGES, PAGE, requests, 20, decode=True)
            common = self.common(batch, requests, places)
            forward(builder.build_for_cudagraph_capture(common), rows)
            metadata = builder.build_for_cudagraph_capture(common)
            with self.stream.capture() as graphs[rows, requests]:
                forward(metadata, rows)
        for kind in ("decode", "draft", "prompt", "decode", "prompt", "draft"):
            fed.copy_(self.normal(*fed.shape))
            made.fill_(float("nan"))
            if kind == "prompt":
                batch = Batch(self.draw, PAGES, PAGE, 5, 90)
                forward(builder.build(0, self.common(batch, 5, places)), batch.rows)
            else:
                size, rows = (3, 4) if kind == "decode" else (6, 24)
                batch = Batch(self.draw, PAGES, PAGE, size, 60, decode=kind == "decode")
                batch.qo_len = [min(n, 3) for n in batch.qo_len]
                batch.rows = sum(batch.qo_len)
                padded = 4 if kind == "decode" else 8
                builder.build(0, self.common(batch, padded, places))
                graphs[rows, padded]()
            check(batch)


class SglangEngineTest(Backend):
    """SGLang's runners in small: decodes and verified drafts in graphs, prompts outside of them."""

    def setUp(self):
        super().setUp()
        self.ours, self.batch = (
            need("attnd.sglang"), need("sglang.srt.model_executor.forward_batch_info")
        )  # fmt: skip
        context = streams("attnd.sglang")
        self.stream = context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def runner(self, page):
        buffers = [self.normal(PAGES * page, HEADS_KV, DIM) for _ in "kv"]
        return types.SimpleNamespace(
            req_to_token_pool=types.SimpleNamespace(
                req_to_token=torch.zeros(16, 128, dtype=torch.int32)
            ),
            token_to_kv_pool=types.SimpleNamespace(
                page_size=page, get_key_buffer=lambda i: buffers[0],
                get_value_buffer=lambda i: buffers[1],
            ),
            model_config=types.SimpleNamespace(num_hidden_layers=1),
        )  # fmt: skip

    def forward_batch(self, runner, batch, mode, padding=0, drafts=0):
        page, rows = runner.token_to_kv_pool.page_size, torch.arange(len(batch.pages)) + 2
        for row, pages in zip(rows, batch.pages):
            tokens = [p * page + i for p in pages for i in range(page)]
            runner.req_to_token_pool.req_to_token[row, : len(tokens)] = torch.tensor(tokens)
        zeros = torch.zeros(padding, dtype=torch.int64)
        lengths = torch.cat([torch.tensor(batch.kv_len) - drafts, zeros + 1])
        return types.SimpleNamespace(
            forward_mode=mode, batch_size=len(lengths), seq_lens=lengths, seq_lens_cpu=lengths,
            req_pool_indices=torch.cat([rows, zeros]), extend_seq_lens=torch.tensor(batch.qo_len),
            spec_info=types.SimpleNamespace(topk=1, draft_token_num=drafts),
        )  # fmt: skip

    def test_pages_of_any_size_decode_and_verify_in_graphs_and_prompts_between_them(self):
        from sglang.srt.layers.radix_attention import RadixAttention

        modes = self.batch.ForwardMode
        for page in 1, 16:
            runner = self.runner(page)
            backend = self.ours.AttndAttnBackend(runner, session=object())
            layer = RadixAttention(HEADS, DIM, DIM**-0.5, HEADS_KV, 0)
            backend.init_cuda_graph_state(8, 32)
            for mode, drafts in (modes.DECODE, 0), (modes.TARGET_VERIFY, 3):
                size, each = 6, drafts or 1
                fed = self.normal(8 * each, HEADS * DIM)
                made = torch.empty_like(fed)

                def forward(batch, rows):
                    out = backend.forward(fed[:rows], None, None, layer, batch, False)
                    self.stream.do(lambda: made[:rows].copy_(out))

                def drawn(longest):
                    batch = Batch(self.draw, 1000, page, 6, longest, decode=True)
                    batch.kv_len = [n + drafts for n in batch.kv_len]
                    batch.qo_len, batch.rows = [each] * size, size * each
                    counts = [-(-n // page) for n in batch.kv_len]
                    order = iter(self.draw.integers(0, PAGES, sum(counts)))
                    batch.pages = [[int(next(order)) for _ in range(n)] for n in counts]
                    return batch

                given = self.forward_batch(runner, drawn(5), mode, 2, drafts)
                backend.init_forward_metadata_out_graph(given, in_capture=True)
                forward(given, 8 * each)
                with self.stream.capture() as replay:
                    backend.init_forward_metadata_in_graph(given)
                    forward(given, 8 * each)
                for longest in 30, 5, 60:
                    batch = drawn(longest)
                    fed.copy_(self.normal(*fed.shape))
                    given = self.forward_batch(runner, batch, mode, 2, drafts)
                    backend.init_forward_metadata_out_graph(given)
                    replay()
                    self.check_all(runner, batch, fed, made)
                    prompt = Batch(self.draw, PAGES, page, 4, 30 if page > 1 else 9)
                    eager = self.forward_batch(runner, prompt, modes.EXTEND)
                    backend.init_forward_metadata(eager)
                    q = self.normal(prompt.rows, HEADS * DIM)
                    out = backend.forward(q, None, None, layer, eager, False)
                    self.check_all(runner, prompt, q, out)

    def check_all(self, runner, batch, q, out):
        pool, page = runner.token_to_kv_pool, runner.token_to_kv_pool.page_size
        planes = (x(0).unflatten(0, (-1, page)) for x in (pool.get_key_buffer,
                                                          pool.get_value_buffer))  # fmt: skip
        q, out = (x.view(-1, HEADS, DIM)[: batch.rows] for x in (q, out))
        self.check(batch, q, *planes, out)

    def test_trees_of_drafts_are_refused_by_name(self):
        runner = self.runner(1)
        backend = self.ours.AttndAttnBackend(runner, session=object())
        batch = Batch(self.draw, PAGES, 1, 2, 5, decode=True)
        given = self.forward_batch(runner, batch, self.batch.ForwardMode.TARGET_VERIFY)
        given.spec_info.topk = 4
        with self.assertRaisesRegex(NotImplementedError, "topk"):
            backend.init_forward_metadata(given)


if __name__ == "__main__":
    unittest.main()
