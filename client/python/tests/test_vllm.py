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
            impl = ours.AttndBackend.get_impl_cls()(heads, dim, scale, heads_kv, **said)
            context[name] = types.SimpleNamespace(kv_cache=cache, impl=impl, layer_name=name)
        config = types.SimpleNamespace(
            compilation_config=types.SimpleNamespace(static_forward_context=context)
        )
        spec = types.SimpleNamespace(head_size=dim, block_size=size)
        builder = ours.AttndBackend.get_builder_cls()(
            spec, list(context), config, torch.device("cpu")
        )
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

    def test_vllm_finds_the_backend_by_its_registry_and_options_are_refused_by_name(self):
        ours = need("attnd.vllm")
        backends = need("vllm.v1.attention.backends.registry").AttentionBackendEnum
        ours.register()
        self.assertIs(backends.CUSTOM.get_class(), ours.AttndBackend)
        with self.assertRaisesRegex(NotImplementedError, "alibi_slopes"):
            ours.AttndImpl(8, 64, 0.125, 2, alibi_slopes=[0.5] * 8)

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
        self.assertEqual(refused(**{**asked, "has_sink": True}), [])
        for field, value, word in (
            ("head_size", 100, "head_size"), ("kv_cache_dtype", "fp8", "kv_cache_dtype"),
            ("use_mla", True, "MLA"), ("attn_type", "encoder", "attention type"),
            ("use_adaptive_verification", True, "adaptive verification"),
            ("use_non_causal", True, "non-causal"),
        ):  # fmt: skip
            with self.subTest(field=field):
                self.assertIn(word, " ".join(refused(**{**asked, field: value})))


if __name__ == "__main__":
    unittest.main()
