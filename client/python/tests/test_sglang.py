"""The module for SGLang, against SGLang's own pools, layers and batches where the package is."""

import types
import unittest

from backends import Backend, need, torch
from reference import Batch

HEADS, HEADS_KV, DIM, TOKENS, LAYERS = 8, 2, 64, 400, 2


class Sglang(Backend):
    @classmethod
    def setUpClass(cls):
        cls.ours = need("attnd.sglang")
        cls.memory = need("sglang.srt.mem_cache.memory_pool")
        cls.batch = need("sglang.srt.model_executor.forward_batch_info")
        super().setUpClass()

    def runner(self, dim=DIM, dim_vo=DIM):
        """What a model runner has of SGLang's pools; K and V lie in memory of the session."""
        pool = self.memory.MHATokenToKVPool(
            TOKENS - 1, 1, torch.float16, HEADS_KV, dim, LAYERS, "cpu", False, v_head_dim=dim_vo
        )
        for buffers in (pool.k_buffer, pool.v_buffer):
            for i, x in enumerate(buffers):
                buffers[i] = self.session.empty(x.shape).torch()
                buffers[i].copy_(self.normal(*x.shape))
        return types.SimpleNamespace(
            req_to_token_pool=self.memory.ReqToTokenPool(16, 128, "cpu", False),
            token_to_kv_pool=pool, model_config=types.SimpleNamespace(num_hidden_layers=LAYERS),
        )  # fmt: skip

    def layer(self, number, **options):
        from sglang.srt.layers.radix_attention import RadixAttention

        dim = options.pop("head_dim", DIM)
        return RadixAttention(HEADS, dim, dim**-0.5, HEADS_KV, number, **options)

    def forward_batch(self, runner, batch, decode):
        """SGLang's batch of ours: each request has a row of the table."""
        modes, places = self.batch.ForwardMode, []
        rows = torch.arange(len(batch.pages)) + 2
        for row, pages, new in zip(rows, batch.pages, batch.qo_len):
            runner.req_to_token_pool.req_to_token[row, : len(pages)] = torch.tensor(pages)
            places += pages[len(pages) - new :]
        lengths, new = torch.tensor(batch.kv_len), torch.tensor(batch.qo_len)
        extend = {} if decode else {"extend_seq_lens": new, "extend_prefix_lens": lengths - new}
        return self.batch.ForwardBatch(
            forward_mode=modes.DECODE if decode else modes.EXTEND, batch_size=len(rows),
            input_ids=torch.zeros(batch.rows, dtype=torch.int64), req_pool_indices=rows,
            seq_lens=lengths, out_cache_loc=torch.tensor(places), seq_lens_sum=int(lengths.sum()),
            **extend,
        )  # fmt: skip

    def test_prompts_and_decodes_over_sglangs_own_pools_are_attention(self):
        runner = self.runner()
        backend, pool = self.ours.AttndAttnBackend(runner, self.session), runner.token_to_kv_pool
        for decode in (False, True, False):
            batch = Batch(self.draw, TOKENS, 1, decode=decode)
            forward = self.forward_batch(runner, batch, decode)
            backend.init_forward_metadata(forward)
            for number in range(LAYERS):
                q = self.normal(batch.rows, HEADS * DIM)
                k, v = (self.normal(batch.rows, HEADS_KV, DIM) for _ in "kv")
                out = backend.forward(q, k, v, self.layer(number), forward)
                self.assertEqual(out.shape, q.shape)
                planes = pool.get_key_buffer(number), pool.get_value_buffer(number)
                torch.testing.assert_close(planes[0][forward.out_cache_loc], k)
                torch.testing.assert_close(planes[1][forward.out_cache_loc], v)
                planes = (x[:, None] for x in planes)
                self.check(batch, q.view(-1, HEADS, DIM), *planes, out.view(-1, HEADS, DIM))

    def test_layers_with_windows_soft_caps_and_sinks_are_attention(self):
        runner, batch = self.runner(), Batch(self.draw, TOKENS, 1)
        backend, pool = self.ours.AttndAttnBackend(runner, self.session), runner.token_to_kv_pool
        forward = self.forward_batch(runner, batch, False)
        backend.init_forward_metadata(forward)
        sinks = torch.tensor(self.draw.normal(size=HEADS)).bfloat16()
        for number, options, given, meant in (
            (0, {"sliding_window_size": 6}, {}, {"window_left": 6}),
            (1, {"logit_cap": 2.0}, {}, {"logits_soft_cap": 2.0}),
            (1, {}, {"sinks": sinks}, {"sinks": sinks.double().numpy()}),
            (0, {"sliding_window_size": 6}, {"sinks": -sinks},
             {"window_left": 6, "sinks": -sinks.double().numpy()}),
        ):  # fmt: skip
            with self.subTest(**meant):
                q = self.normal(batch.rows, HEADS * DIM)
                layer = self.layer(number, **options)
                out = backend.forward(q, None, None, layer, forward, save_kv_cache=False, **given)
                planes = [x(number)[:, None] for x in (pool.get_key_buffer, pool.get_value_buffer)]
                q, out = (x.view(-1, HEADS, DIM) for x in (q, out))
                self.check(batch, q, *planes, out, **meant)

    def test_v_may_be_narrower_than_k(self):
        runner, batch = self.runner(192, 128), Batch(self.draw, TOKENS, 1, 3, 20)
        backend, pool = self.ours.AttndAttnBackend(runner, self.session), runner.token_to_kv_pool
        forward = self.forward_batch(runner, batch, False)
        backend.init_forward_metadata(forward)
        q = self.normal(batch.rows, HEADS * 192)
        k, v = self.normal(batch.rows, HEADS_KV, 192), self.normal(batch.rows, HEADS_KV, 128)
        layer = self.layer(1, head_dim=192, v_head_dim=128)
        out = backend.forward(q, k, v, layer, forward)
        self.assertEqual(out.shape, (batch.rows, HEADS * 128))
        planes = [x(1)[:, None] for x in (pool.get_key_buffer, pool.get_value_buffer)]
        self.check(batch, q.view(-1, HEADS, 192), *planes, out.view(-1, HEADS, 128))

    def test_a_layer_waits_for_pages_that_come_from_host_memory(self):
        runner, batch, waited = self.runner(), Batch(self.draw, TOKENS, 1), []
        backend = self.ours.AttndAttnBackend(runner, self.session)
        counter = types.SimpleNamespace(wait_until=waited.append)
        runner.token_to_kv_pool.layer_transfer_counter = counter
        forward = self.forward_batch(runner, batch, False)
        for _ in range(2):
            backend.init_forward_metadata(forward)
            waited.clear()
            q = self.normal(batch.rows, HEADS * DIM)
            backend.forward(q, None, None, self.layer(1), forward, save_kv_cache=False)
            self.assertIn(1, waited)

    def test_pools_of_fp8_have_scales_of_their_layers(self):
        runner, batch = self.runner(), Batch(self.draw, TOKENS, 1)
        pool = runner.token_to_kv_pool
        for buffers in (pool.k_buffer, pool.v_buffer):
            for i, x in enumerate(buffers):
                buffers[i] = self.session.empty(x.shape, "float8_e4m3fn").torch()
                buffers[i].copy_(self.normal(*x.shape).to(torch.float8_e4m3fn))
        backend = self.ours.AttndAttnBackend(runner, self.session)
        forward = self.forward_batch(runner, batch, False)
        backend.init_forward_metadata(forward)
        for number, scales in (0, (0.5, 0.25)), (1, (None, None)):
            layer, q = self.layer(number), self.normal(batch.rows, HEADS * DIM)
            layer.k_scale_float, layer.v_scale_float = scales
            out = backend.forward(q, None, None, layer, forward, save_kv_cache=False)
            planes = [x[number][:, None].float() * (scale or 1.0)
                      for x, scale in zip((pool.k_buffer, pool.v_buffer), scales)]  # fmt: skip
            self.check(batch, q.view(-1, HEADS, DIM), *planes, out.view(-1, HEADS, DIM))

    def test_pages_of_many_tokens_are_attention(self):
        runner, batch = self.runner(), Batch(self.draw, TOKENS // 16, 16)
        runner.token_to_kv_pool.page_size = 16
        backend, pool = self.ours.AttndAttnBackend(runner, self.session), runner.token_to_kv_pool
        whole = types.SimpleNamespace(**vars(batch))
        whole.pages = [[p * 16 + i for p in pages for i in range(16)] for pages in batch.pages]
        forward = self.forward_batch(runner, whole, False)
        backend.init_forward_metadata(forward)
        q = self.normal(batch.rows, HEADS * DIM)
        out = backend.forward(q, None, None, self.layer(0), forward, save_kv_cache=False)
        planes = [x(0).unflatten(0, (-1, 16)) for x in (pool.get_key_buffer, pool.get_value_buffer)]
        self.check(batch, q.view(-1, HEADS, DIM), *planes, out.view(-1, HEADS, DIM))

    def test_graphs_are_refused_where_the_service_executes(self):
        backend = self.ours.AttndAttnBackend(self.runner(), self.session)
        with self.assertRaisesRegex(NotImplementedError, "disable-cuda-graph"):
            backend.init_cuda_graph_state(8, 8)

    def test_sglangs_registry_and_command_line_know_the_backend(self):
        import argparse

        from sglang.srt import server_args
        from sglang.srt.layers.attention import attention_registry

        self.ours.register()
        self.ours.register()
        made = attention_registry.ATTENTION_BACKENDS["attnd"](self.runner())
        self.assertIsInstance(made, self.ours.AttndAttnBackend)
        parser = argparse.ArgumentParser()
        server_args.ServerArgs.add_cli_args(parser)
        said = parser.parse_args(["--model-path", "x", "--attention-backend", "attnd"])
        self.assertEqual(said.attention_backend, "attnd")

    def test_the_backend_has_the_interface_that_sglang_published(self):
        from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

        self.check_interface(self.ours.AttndAttnBackend, AttentionBackend)

    def test_what_the_service_lacks_is_refused_by_name(self):
        runner, batch = self.runner(), Batch(self.draw, TOKENS, 1)
        backend = self.ours.AttndAttnBackend(runner, self.session)
        forward = self.forward_batch(runner, batch, False)
        backend.init_forward_metadata(forward)
        q = self.normal(batch.rows, HEADS * DIM)
        for options, given, word in (
            ({"logit_cap": 30.0, "logit_capping_method": "sigmoid"}, {}, "soft cap"),
            ({"is_cross_attention": True}, {}, "cross attention"),
            ({"use_irope": True}, {}, "in chunks"),
            ({"pos_encoding_mode": "ALIBI"}, {}, "encoding ALIBI"),
            ({}, {"k_rope": q}, "k_rope"),
        ):
            with self.subTest(word), self.assertRaisesRegex(NotImplementedError, word):
                layer = self.layer(0, **options)
                backend.forward(q, None, None, layer, forward, save_kv_cache=False, **given)


if __name__ == "__main__":
    unittest.main()
