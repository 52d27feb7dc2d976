"""The backends of vLLM and SGLang: their page tables, and, where the packages are, their
interfaces.

The engines keep their caches on a GPU; here caches lie in memory of a session, which the CPU worker
reads in the same way.
"""

import importlib.util
import os
import types
import unittest

import numpy as np

import attnd
from reference import Batch
from service import service

try:
    import torch
except ImportError:
    torch = None


def there(name):
    return torch is not None and importlib.util.find_spec(name) is not None


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


@unittest.skipUnless(torch, "no PyTorch")
class Backends(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        context = service()
        cls.path = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def setUp(self):
        self.draw = np.random.default_rng(5)
        self.session = attnd.Session(self.path)
        self.addCleanup(self.session.close)

    def normal(self, *shape):
        return torch.tensor(self.draw.normal(size=shape)).half()

    def check(self, batch, q, k, v, out):
        wanted, _ = batch.expected(q.numpy(), k.numpy(), v.numpy())
        np.testing.assert_allclose(out.double().numpy()[: batch.rows], wanted, rtol=1e-3, atol=1e-3)

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

    @unittest.skipUnless(there("vllm"), "no vLLM")
    def test_vllm_steps_of_mixed_batches_are_attention(self):
        from vllm.v1.attention import backend as module

        import attnd.vllm as ours

        ours._session = self.session
        heads, heads_kv, dim, size = 8, 2, 64, 16
        scale, context = dim**-0.5, {}
        for name in ("layers.0", "layers.1"):
            cache = self.session.empty((40, heads_kv, size, 2 * dim)).torch()
            impl = ours.AttndBackend.get_impl_cls()(heads, dim, scale, heads_kv)
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
                self.check(batch, q[: batch.rows], *planes, out)
                self.assertTrue(out[batch.rows :].isnan().all())

    @unittest.skipUnless(there("vllm"), "no vLLM")
    def test_vllm_finds_the_backend_by_its_registry_and_options_are_refused_by_name(self):
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        import attnd.vllm as ours

        ours.register()
        self.assertIs(AttentionBackendEnum.CUSTOM.get_class(), ours.AttndBackend)
        with self.assertRaisesRegex(NotImplementedError, "sliding_window"):
            ours.AttndImpl(8, 64, 0.125, 2, sliding_window=128)

    @unittest.skipUnless(os.environ.get("ATTND_TEST_SGLANG") or there("sglang"), "no SGLang")
    def test_sglang_batches_are_attention(self):
        try:
            import attnd.sglang as ours
        except ImportError as missing:
            self.skipTest(f"SGLang cannot be imported here: {missing}")
        heads, heads_kv, dim, tokens = 8, 2, 64, 400
        buffers = [
            [self.session.empty((tokens, heads_kv, dim)).torch() for _ in "kv"] for _ in range(2)
        ]
        for x in sum(buffers, []):
            x.copy_(self.normal(*x.shape))
        pool = types.SimpleNamespace(
            get_key_buffer=lambda i: buffers[i][0], get_value_buffer=lambda i: buffers[i][1]
        )
        batch = Batch(self.draw, tokens, 1)
        table = torch.zeros((len(batch.pages) + 3, 128), dtype=torch.int32)
        for row, pages in enumerate(batch.pages):
            table[row + 2, : len(pages)] = torch.tensor(pages)
        runner = types.SimpleNamespace(
            req_to_token_pool=types.SimpleNamespace(req_to_token=table), token_to_kv_pool=pool,
            model_config=types.SimpleNamespace(num_hidden_layers=2),
        )  # fmt: skip
        backend = ours.AttndAttnBackend(runner, self.session)
        forward = types.SimpleNamespace(
            forward_mode=types.SimpleNamespace(is_decode=lambda: False),
            extend_seq_lens=torch.tensor(batch.qo_len), seq_lens=torch.tensor(batch.kv_len),
            req_pool_indices=torch.arange(len(batch.pages)) + 2,
        )  # fmt: skip
        backend.init_forward_metadata(forward)
        for number in range(2):
            layer = types.SimpleNamespace(
                layer_id=number, scaling=dim**-0.5, sliding_window_size=-1, logit_cap=0.0,
                is_cross_attention=False, qk_head_dim=dim, v_head_dim=dim, tp_q_head_num=heads,
            )  # fmt: skip
            q = self.normal(batch.rows, heads * dim)
            out = backend.forward_extend(q, None, None, layer, forward, save_kv_cache=False)
            k, v = (x[:, None] for x in buffers[number])
            self.check(batch, q.view(-1, heads, dim), k, v, out.view(-1, heads, dim))


if __name__ == "__main__":
    unittest.main()
