"""The module for vLLM: its page tables, and vLLM's own interface where the package is."""

import types
import unittest

import numpy as np

from backends import Backend, need, torch
from reference import Batch


def common_of(module, batch, page_size, padding=2):
    """vLLM's metadata of a batch, with requests of padding at the end."""
    table = np.zeros((len(batch.pages) + padding, 40), np.int32)
    for row, pages in zip(table, batch.pages):
        row[: len(pages)] = pages
    starts = np.concatenate([batch.csr()[0], np.full(padding, batch.rows)]).astype(np.int32)
    slots = [
        pages[p // page_size] * page_size + p % page_size
        for rows, tokens, pages in zip(batch.qo_len, batch.kv_len, batch.pages)
        for p in range(tokens - rows, tokens)
    ]
    return module.CommonAttentionMetadata(
        query_start_loc=torch.tensor(starts), query_start_loc_cpu=torch.tensor(starts),
        seq_lens=torch.tensor(batch.kv_len + [0] * padding), num_reqs=len(batch.pages) + padding,
        num_actual_tokens=batch.rows, max_query_len=max(batch.qo_len),
        max_seq_len=max(batch.kv_len), block_table_tensor=torch.tensor(table),
        slot_mapping=torch.tensor(slots + [-1] * 3), )  # fmt: skip


class Vllm(Backend):
    def test_a_table_of_blocks_becomes_csr_and_padding_gets_no_pages(self):
        from attnd._layers import csr_of_blocks

        qo, kv, indices, last = csr_of_blocks(
            torch.tensor([0, 3, 4, 4]), torch.tensor([17, 16, 5]),
            torch.tensor([[7, 2, 0], [5, 9, 9], [1, 1, 1]]), 16,
        )  # fmt: skip
        self.assertEqual(qo.tolist(), [0, 3, 4, 4])
        self.assertEqual(kv.tolist(), [0, 2, 3, 3])
        self.assertEqual(indices.tolist(), [7, 2, 5])
        self.assertEqual(last.tolist(), [1, 16, 1])

    def layer(self, name, cache, *shape, scales=(1.0, 1.0), **said):
        """What vLLM's Attention is to a backend."""
        impl = need("attnd.vllm").AttndBackend.get_impl_cls()(*shape, **said)
        k_scale, v_scale = map(torch.tensor, scales)
        return types.SimpleNamespace(
            kv_cache=cache, impl=impl, layer_name=name, _k_scale=k_scale, _v_scale=v_scale,
            _k_scale_float=scales[0], _v_scale_float=scales[1], calculate_kv_scales=False,
        )  # fmt: skip

    def builder(self, context, **parallel):
        """The builder of a group of layers, by a configuration that says what it reads."""
        config = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(
                static_forward_context=context, cudagraph_capture_sizes=[4, 8]
            ),
            parallel_config=types.SimpleNamespace(**parallel),
            model_config=types.SimpleNamespace(dtype=torch.float16, max_model_len=640),
            scheduler_config=types.SimpleNamespace(max_num_seqs=16, max_num_batched_tokens=256),
        )  # fmt: skip
        backend = need("attnd.vllm").AttndBackend
        return backend.get_builder_cls()(None, list(context), config, torch.device("cpu"))

    def test_vllm_steps_of_mixed_batches_are_attention(self):
        module, ours = need("vllm.v1.attention.backend"), need("attnd.vllm")
        ours._session = self.session
        heads, heads_kv, dim, size = 8, 2, 64, 16
        scale, context = dim**-0.5, {}
        sinks = torch.tensor(self.draw.normal(size=heads)).bfloat16()
        says = {
            "layers.0": {},
            "layers.1": {"sliding_window": 6, "logits_soft_cap": 2.0, "sinks": sinks},
        }
        means = {
            "layers.0": {},
            "layers.1": {"window_left": 5, "logits_soft_cap": 2.0,
                         "sinks": sinks.double().numpy()},
        }  # fmt: skip
        for name, said in says.items():
            cache = self.session.empty((40, heads_kv, size, 2 * dim)).torch()
            context[name] = self.layer(name, cache, heads, dim, scale, heads_kv, **said)
        builder = self.builder(context)
        for _ in range(4):
            batch = Batch(self.draw, 39, size)
            batch.pages = [[page + 1 for page in pages] for pages in batch.pages]  # 0 is vLLM's
            common = common_of(module, batch, size)
            for layer in context.values():
                layer.kv_cache[1:] = self.normal(39, heads_kv, size, 2 * dim)
            metadata = builder.build(0, common)
            for layer in context.values():
                q, k, v = (self.normal(batch.rows + 3, n, dim) for n in (heads, heads_kv, heads_kv))
                out = torch.full_like(q, float("nan"))
                layer.impl.do_kv_cache_update(layer, k, v, layer.kv_cache, common.slot_mapping)
                layer.impl.forward(layer, q, k, v, layer.kv_cache, metadata, out)
                planes = ours.planes(layer.kv_cache, dim)
                self.check(batch, q[: batch.rows], *planes, out, **means[layer.layer_name])
                self.assertTrue(out[batch.rows :].isnan().all())

    def test_layers_that_share_a_cache_and_slopes_of_alibi_are_attention_in_either_layout(self):
        module, ours = need("vllm.v1.attention.backend"), need("attnd.vllm")
        ours._session = self.session
        heads, heads_kv, dim, size = 8, 2, 64, 16
        slopes, shape = [2.0**-i for i in range(1, heads + 1)], (heads, dim, dim**-0.5, heads_kv)
        for of_cache in (40, heads_kv, size, 2 * dim), (40, 2, size, heads_kv, dim):
            with self.subTest(of_cache=of_cache):
                cache = self.session.empty(of_cache).torch()
                cache.copy_(self.normal(*of_cache))
                context = {
                    name: self.layer(name, cache, *shape, alibi_slopes=slopes, **said)
                    for name, said in (("1", {}), ("2", {"kv_sharing_target_layer_name": "1"}))
                }
                batch = Batch(self.draw, 39, size)
                metadata = self.builder(context).build(0, common_of(module, batch, size))
                for layer in context.values():
                    q = self.normal(batch.rows, heads, dim)
                    out = torch.full_like(q, float("nan"))
                    layer.impl.forward(layer, q, None, None, cache, metadata, out)
                    planes = ours.planes(cache, dim)
                    self.check(batch, q, *planes, out, alibi=np.array(slopes))

    def test_caches_of_fp8_have_scales_of_their_layers(self):
        module, ours = need("vllm.v1.attention.backend"), need("attnd.vllm")
        ours._session = self.session
        heads, heads_kv, dim, size = 8, 2, 64, 16
        for scales in ((0.5, 0.25), (0.5, 0.25)), ((0.5, 0.25), (0.125, 2.0)):
            context = {}
            for i, pair in enumerate(scales):
                cache = self.session.empty((40, heads_kv, size, 2 * dim), "uint8").torch()
                context[str(i)] = self.layer(
                    str(i), cache, heads, dim, dim**-0.5, heads_kv, kv_cache_dtype="fp8",
                    scales=pair,
                )  # fmt: skip
            builder, batch = self.builder(context), Batch(self.draw, 39, size)
            batch.pages = [[page + 1 for page in pages] for pages in batch.pages]  # 0 is vLLM's
            batch.kv_len = list(batch.qo_len)  # all that is in the cache is of this step
            common = common_of(module, batch, size)
            metadata = builder.build(0, common)
            for layer, (k_scale, v_scale) in zip(context.values(), scales):
                q, k, v = (self.normal(batch.rows + 3, n, dim) for n in (heads, heads_kv, heads_kv))
                out = torch.full_like(q, float("nan"))
                layer.impl.do_kv_cache_update(layer, k, v, layer.kv_cache, common.slot_mapping)
                layer.impl.forward(layer, q, k, v, layer.kv_cache, metadata, out)
                held = [x.view(torch.float8_e4m3fn).float()
                        for x in ours.planes(layer.kv_cache, dim)]  # fmt: skip
                self.check(batch, q[: batch.rows], held[0] * k_scale, held[1] * v_scale, out)
                at = common.slot_mapping[: batch.rows]
                kept = (held[0] * k_scale)[at // size, at % size]
                torch.testing.assert_close(kept, k[: batch.rows].float(), rtol=0.07, atol=0.002)

    def test_vllm_finds_the_backend_by_its_registry_and_options_are_refused_by_name(self):
        ours = need("attnd.vllm")
        backends = need("vllm.v1.attention.backends.registry").AttentionBackendEnum
        ours.register()
        self.assertIs(backends.CUSTOM.get_class(), ours.AttndBackend)
        for word, said in (("encoder", {"attn_type": "encoder"}), ("int8", {"kv_cache_dtype":
                "int8_per_token_head"})):  # fmt: skip
            with self.assertRaisesRegex(NotImplementedError, word):
                ours.AttndImpl(8, 64, 0.125, 2, **said)
        for name, value in ("enable_dbo", True), ("decode_context_parallel_size", 2):
            with self.assertRaisesRegex(NotImplementedError, name):
                self.builder({}, **{name: value})
        layer = types.SimpleNamespace(calculate_kv_scales=True)
        with self.assertRaisesRegex(NotImplementedError, "calculate_kv_scales"):
            ours.scales_of([layer], 2)

    def test_the_backend_has_the_interface_that_vllm_published(self):
        module, ours = need("vllm.v1.attention.backend"), need("attnd.vllm")
        self.check_interface(ours.AttndBackend, module.AttentionBackend)
        self.check_interface(ours.AttndMetadataBuilder, module.AttentionMetadataBuilder)
        self.check_interface(ours.AttndImpl, module.AttentionImpl)
        for kind in (ours.AttndBackend, ours.AttndMetadataBuilder, ours.AttndImpl):
            self.assertFalse(getattr(kind, "__abstractmethods__", None), kind)

    def test_vllms_selector_takes_what_the_service_has_and_says_what_it_lacks(self):
        ours, asked = need("attnd.vllm"), {
            "head_size": 128, "dtype": torch.float16, "kv_cache_dtype": "auto", "block_size": 16,
            "use_mla": False, "has_sink": False, "use_sparse": False, "use_mm_prefix": False,
            "use_per_head_quant_scales": False, "device_capability": None, "attn_type": "decoder",
        }  # fmt: skip
        refused = ours.AttndBackend.validate_configuration
        self.assertEqual(refused(**asked, has_sliding_window=True), [])
        for field, value in (
            ("has_sink", True), ("kv_cache_dtype", "fp8"), ("use_adaptive_verification", True)
        ):  # fmt: skip
            self.assertEqual(refused(**{**asked, field: value}), [], field)
        for field, value, word in (
            ("head_size", 100, "head_size"), ("kv_cache_dtype", "int8_per_token_head", "kv_cache"),
            ("use_mla", True, "MLA"), ("attn_type", "encoder", "attention type"),
            ("use_non_causal", True, "non-causal"), ("use_dcp", True, "DCP"),
        ):  # fmt: skip
            with self.subTest(field=field):
                self.assertIn(word, " ".join(refused(**{**asked, field: value})))


if __name__ == "__main__":
    unittest.main()
