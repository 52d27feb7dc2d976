"""bench/serving: the model that it makes is one that engines load, and what it says of results."""

import json
import sys
import tempfile
import unittest
from unittest import mock

from backends import need, torch
from service import ROOT

sys.path.insert(0, str(ROOT / "bench/serving"))
import compare
import llama


class ServingTest(unittest.TestCase):
    def test_the_model_has_all_weights_that_transformers_wants_and_no_other(self):
        transformers, _ = need("transformers"), need("safetensors")
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(
            llama.SHAPES, tiny=(256, 2, 2, 1, 320, 400)
        ):
            llama.make(folder, "tiny")
            made, said = transformers.LlamaForCausalLM.from_pretrained(
                folder, output_loading_info=True, dtype=torch.float16
            )
            self.assertEqual([list(said[x]) for x in ("missing_keys", "unexpected_keys")], [[], []])
            scores = made(torch.arange(3, 40)[None]).logits
            self.assertTrue(scores.isfinite().all() and scores.std() > 0.5)
            before = (llama.pathlib.Path(folder) / "model.safetensors").read_bytes()
            (llama.pathlib.Path(folder) / "made").unlink()
            llama.make(folder, "tiny")
            after = (llama.pathlib.Path(folder) / "model.safetensors").read_bytes()
            self.assertEqual(before, after)

    def test_log_probabilities_are_as_far_apart_as_they_are(self):
        mean, most = compare.distance([[-1.0, -2.0], [-3.0]], [[-1.5, -2.0], [-2.0]])
        self.assertEqual((mean, most), (0.5, 1.0))

    def test_answers_are_the_same_up_to_where_they_part(self):
        self.assertEqual(compare.agreement([[[1, 2, 3], [4]]], [[[1, 9, 3], [4]]]), (2, 4))

    def test_what_failed_is_named_and_ratios_are_to_the_first(self):
        figures = dict.fromkeys(("tpot_ms", "ttft_alone_ms", "tpot_alone_ms"), 1.0)
        first = {"errors": {}, "speed": {
            "prompt_tokens_s": 100.0, "answered_tokens_s": 10.0, **figures}}  # fmt: skip
        ours = json.loads(json.dumps(first))
        ours["speed"]["answered_tokens_s"] = 12.5
        ours["errors"]["answers"] = "Range: kv_len"
        said = "\n".join(compare.lines_of("attnd", ours, first))
        self.assertIn("answers failed: Range: kv_len", said)
        self.assertIn("answered_tokens_s 12 (1.250)", said)


if __name__ == "__main__":
    unittest.main()
