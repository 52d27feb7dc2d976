"""Reported: models of transformers that attnd computed otherwise than eager attention does."""

import unittest

import numpy as np

import attnd
from backends import need
from reported import DIM, HEADS, HEADS_KV
from service import service

try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None


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

    def test_a_sequence_of_another_cache_is_refused(self):
        """Its page ids are others' pages here, which may be leased as well."""
        cache, other = self.cache(), self.cache()
        ours, theirs = cache.sequence(), other.sequence()
        for has, sequence in ((cache, ours), (other, theirs)):
            has.step([(sequence, 20)])
        for call in (lambda: cache.step([(ours, 1), (theirs, 1)]), lambda: cache.fork(theirs, 16),
                     lambda: cache.end(theirs)):  # fmt: skip
            with self.assertRaisesRegex(ValueError, "sequence of another cache"):
                call()
        self.assertEqual((ours.length, theirs.length, len(theirs.pages)), (20, 20, 2))
        for bad in (None, 5, [ours], [(ours, 1, 1)]):
            with self.assertRaisesRegex(TypeError, "^batch is"):
                cache.step(bad)

    def test_what_a_cache_of_layers_does_to_all_of_them_is_refused(self):
        cache = self.cache()
        for name in ("crop", "reset", "reorder_cache", "batch_repeat_interleave",
                     "batch_select_indices"):  # fmt: skip
            self.assertFalse(hasattr(cache, name))
            with self.assertRaisesRegex(NotImplementedError, f"no {name}"):
                getattr(cache, name)
        self.assertFalse(cache.is_croppable)

    def test_a_scale_of_a_table_that_wants_a_gradient_is_refused(self):
        pool = attnd.PagePool(self.session, 1, 16, 16, HEADS_KV, DIM, leased=False)
        attention, sinks = attnd.BatchAttention(pool), torch.nn.Parameter(torch.ones(HEADS))
        said = [0, 1], [0, 1], [3], [5], HEADS
        with self.assertRaisesRegex(NotImplementedError, "sinks requires a gradient"):
            attention.plan(*said, sinks=sinks, wait=True)
        with torch.no_grad():
            attention.plan(*said, sinks=sinks, wait=True)
        with self.assertRaisesRegex(TypeError, "sinks is int32"):
            attention.plan(*said, sinks=torch.ones(HEADS, dtype=torch.int32), wait=True)

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

    def test_an_output_of_inference_mode_is_refused_before_the_run(self):
        pool = attnd.PagePool(self.session, 1, 4, 16, HEADS_KV, DIM, leased=False)
        attention = attnd.BatchAttention(pool)
        attention.plan([0, 1], [0, 1], [0], [16], HEADS)
        q = torch.ones(1, HEADS, DIM).half()
        with torch.inference_mode():
            out = torch.empty_like(q)
            attention.run(q, 0, out)
        for x in (q, out):  # q may be one, too
            with self.assertRaisesRegex(ValueError, "^out is a tensor of inference_mode"):
                attention.run(x, 0, out)
        self.assertEqual(attention.run(out, 0)[0].shape, q.shape)

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
