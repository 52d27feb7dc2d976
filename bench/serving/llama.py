#!/usr/bin/env python3
"""llama.py FOLDER [--shape NAME] [--seed N]: a Llama of random weights, as engines load one.

Weights are drawn so that scores spread by about 2 and every layer adds its share: with those that
engines draw themselves (`dummy`), attention would not matter. The same seed gives the same bytes on
the same device.
"""

import argparse
import json
import pathlib

# hidden, layers, query heads, KV heads, FFN, vocabulary; heads are of 128
SHAPES = {
    "small": (2048, 8, 16, 4, 5632, 32000),
    "1b": (2048, 16, 16, 8, 8192, 32000),
    "8b": (4096, 32, 32, 8, 14336, 32000),
}
HEAD_DIM, LENGTH = 128, 8192


def config_of(shape, dtype="float16"):
    hidden, layers, heads, heads_kv, ffn, words = SHAPES[shape]
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": hidden, "intermediate_size": ffn, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": heads_kv, "head_dim": HEAD_DIM,
        "vocab_size": words, "max_position_embeddings": LENGTH, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "torch_dtype": dtype, "bos_token_id": 1, "eos_token_id": 2,
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip


def matrices(config):
    """{name: (rows, columns)} of all weights but the norms'."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    q, kv = (config[x] * HEAD_DIM for x in ("num_attention_heads", "num_key_value_heads"))
    found = {name: (config["vocab_size"], hidden) for name in ("model.embed_tokens", "lm_head")}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", (q, hidden)), ("self_attn.k_proj", (kv, hidden)),
            ("self_attn.v_proj", (kv, hidden)), ("self_attn.o_proj", (hidden, q)),
            ("mlp.gate_proj", (ffn, hidden)), ("mlp.up_proj", (ffn, hidden)),
            ("mlp.down_proj", (hidden, ffn)),
        ):  # fmt: skip
            found[f"model.layers.{layer}.{name}"] = shape
    return found


def make(folder, shape="small", seed=20):
    """Write config.json and model.safetensors, if they are not there."""
    import torch
    from safetensors.torch import save_file

    folder = pathlib.Path(folder)
    if (folder / "made").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    config, device = config_of(shape), "cuda" if torch.cuda.is_available() else "cpu"
    draw, weights = torch.Generator(device).manual_seed(seed), {}
    for name, (rows, columns) in matrices(config).items():
        drawn = torch.randn(rows, columns, generator=draw, device=device)
        spread = 1.0 if "embed" in name else 1.4 * columns**-0.5
        weights[f"{name}.weight"] = (drawn * spread).half().cpu()
    ones = torch.ones(config["hidden_size"], dtype=torch.float16)
    weights["model.norm.weight"] = ones.clone()
    for layer in range(config["num_hidden_layers"]):
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"model.layers.{layer}.{name}.weight"] = ones.clone()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "made").touch()
    return folder


if __name__ == "__main__":
    ap = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ap.add_argument("folder")
    ap.add_argument("--shape", choices=SHAPES, default="small")
    ap.add_argument("--seed", type=int, default=20)
    given = ap.parse_args()
    print(make(given.folder, given.shape, given.seed))
