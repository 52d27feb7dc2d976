"""Every decoder architecture of the installed transformers that can be built small and random: its
tokens by attnd are those of eager attention, or it is refused by name in the first forward pass.

Weights are random, so each choice of a token is compared by its logits, too. The prompt is longer
than windows and chunks are, and each further token is a forward pass of its own. `python
test_architectures.py [NAME...]` prints the table; `make check-python` fails on whatever is wrong.
"""

import contextlib
import io
import os
import sys
import unittest
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

try:
    import torch
    import transformers
    from transformers.models.auto import modeling_auto
except ImportError:
    transformers = None

import attnd
from backends import need
from service import service

WORDS, PROMPT, TOKENS, PAGE = 97, 21, 6, 8
PARAMETERS_MAX = 20_000_000
# Fields of configurations, whatever each architecture calls them.
SMALL = {
    "vocab_size": WORDS, "hidden_size": 128, "n_embd": 128, "d_model": 128, "dim": 128,
    "intermediate_size": 96, "ffn_dim": 96, "n_inner": 96, "decoder_ffn_dim": 96,
    "ffn_hidden_size": 96, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    "expert_ffn_hidden_size": 32, "mlp_hidden_size": 96, "embedding_size": 128,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "decoder_layers": 2,
    "num_attention_heads": 4, "n_head": 4, "n_heads": 4, "decoder_attention_heads": 4,
    "num_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "d_head": 32, "kv_channels": 32,
    "attention_head_dim": 32, "max_position_embeddings": 128, "n_positions": 128, "n_ctx": 128,
    "max_sequence_length": 128, "sliding_window": 8, "attention_chunk_size": 8,
    "window_size": 8, "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4,
    "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_topk": 2, "n_group": 1, "topk_group": 1,
    "n_shared_experts": 1, "moe_layer_start_index": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32,
    "v_head_dim": 64, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": WORDS,
    "attention_dropout": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "dropout": 0.0, "activation_dropout": 0.0, "attention_probs_dropout_prob": 0.0,
    "hidden_dropout_prob": 0.0, "hidden_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 0, "is_decoder": True, "tie_word_embeddings": False, "use_sliding_window": True,
    "topk_method": "greedy", "rotary_dim": 16,
}  # fmt: skip
SAME, REFUSED, WRONG, BROKEN, NOT_BUILT = "same", "refused", "WRONG", "BROKEN", "not built"
REFUSALS = NotImplementedError, TypeError, ValueError


# What single architectures want beside that.
ALSO = {
    "Gemma3nForCausalLM": {
        "num_hidden_layers": 4, "num_kv_shared_layers": 2, "head_dim": 32,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "laurel_rank": 8,
        "activation_sparsity_pattern": None,
    },
    "GPTNeoForCausalLM": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "GitForCausalLM": {"vision_config": {"hidden_size": 32, "num_hidden_layers": 1}},
    "DbrxForCausalLM": {"ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 4}},
    "Lfm2MoeForCausalLM": {"layer_types": ["full_attention"] * 2, "num_dense_layers": 1},
    "Mamba2ForCausalLM": {"num_heads": 8, "head_dim": 32, "expand": 2, "n_groups": 1},
    "MusicgenForCausalLM": {"num_codebooks": 1},
    "MusicgenMelodyForCausalLM": {"num_codebooks": 1},
    "ReformerModelWithLMHead": {
        "axial_pos_embds_dim": (64, 64), "axial_pos_shape": (8, 16), "attn_layers": ["local"] * 2,
    },
    "XmodForCausalLM": {"default_language": "en_XX"},
}  # fmt: skip

# Configurations that SMALL does not suit: without these fields, and whether those that are None by
# default are left so.
_HEADS, _WINDOWS, _KINDS = ("head_dim", "d_head", "kv_channels"), ("sliding_window",), "layer_types"
_TRIES = [
    (drop, none)
    for none in (False, True)
    for drop in ((), _HEADS, (_KINDS,), (_KINDS, *_HEADS), _WINDOWS, (_KINDS, *_HEADS, *_WINDOWS))
]


def fields_of(kind, drop, none):
    """Fields of a small configuration of @kind."""
    default, fields = kind(), {}
    for field, value in SMALL.items():
        fixed = isinstance(getattr(kind, field, None), property)
        if field in drop or fixed or not hasattr(default, field):
            continue
        if getattr(default, field) is not None or none:
            fields[field] = value
    heads = getattr(default, "num_attention_heads", None)
    if heads is not None and getattr(default, "num_key_value_heads", None) == heads:
        fields["num_key_value_heads"] = 4
    if "v_head_dim" in fields and not hasattr(default, "kv_lora_rank"):
        fields["v_head_dim"] = 32
    layers = getattr(default, _KINDS, None)
    if layers and _KINDS not in drop and not isinstance(getattr(kind, _KINDS, None), property):
        kinds = list(dict.fromkeys(layers))  # one of each, in their order
        fields[_KINDS] = kinds * 2 if len(kinds) == 1 else kinds
        for field in ("num_hidden_layers", "n_layer", "n_layers", "num_layers"):
            if field in fields:
                fields[field] = len(fields[_KINDS])
    return fields


def small(name, kind):
    """A model of an architecture that computes finite logits; raises the reason why none does."""
    default = kind()
    if default.get_text_config() is not default:
        raise TypeError("its configuration is one of several models")
    reason = None
    for drop, none in _TRIES:
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                fields = {**fields_of(kind, drop, none), **ALSO.get(name, {})}
                model = build(name, kind(**fields))
            if bool(eager_logits(model, torch.arange(3, 15)[None]).isfinite().all()):
                return model
            raise TypeError("its logits are not finite")
        except Exception as why:
            reason = reason or why
    raise reason


def build(name, config):
    """A random model, if it is small: that is found out where no weight takes memory."""
    make = getattr(transformers, name)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        size = sum(p.numel() for p in make(config).parameters())
    if size > PARAMETERS_MAX:
        raise TypeError(f"it does not become small: {size} parameters")
    torch.manual_seed(1)
    model = make(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(3)
    return model


def eager_logits(model, ids):
    """Logits of all tokens at once, as the model computes them by itself."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits[0].float()


def shape_of(model):
    """(layers, heads of q, heads of K and V, dimensions of K, of V) that attention will see."""
    config = model.config.get_text_config()
    names = "num_attention_heads", "n_head", "n_heads", "num_heads"
    heads = next((n for x in names if isinstance(n := getattr(config, x, None), int)), 4)
    heads_kv = getattr(config, "num_key_value_heads", None) or heads
    if getattr(config, "multi_query", False):
        heads_kv = 1
    hidden = getattr(config, "hidden_size", None) or getattr(config, "d_model", 128)
    dim = getattr(config, "head_dim", None) or hidden // heads
    dim_vo = dim
    if getattr(config, "kv_lora_rank", None) and getattr(config, "qk_nope_head_dim", None):
        dim, dim_vo = config.qk_nope_head_dim + config.qk_rope_head_dim, config.v_head_dim
        heads_kv = heads
    return getattr(config, "num_hidden_layers", 2), heads, heads_kv, dim, dim_vo


class Recorder:
    """Eager attention that writes down the shapes which it is given."""

    def __init__(self):
        self.shapes = None

    def __call__(self, module, query, key, value, attention_mask, scaling=None, **kwargs):
        if self.shapes is None:
            self.shapes = query.shape[1], key.shape[1], key.shape[3], value.shape[3]
        raise RuntimeError("seen")


def seen_shape(model, ids):
    """The same, by a look; what the configuration says where the model attends by itself."""
    recorder = Recorder()
    transformers.AttentionInterface.register("recorder", recorder)
    layers = getattr(model.config.get_text_config(), "num_hidden_layers", 2)
    try:
        model.set_attn_implementation("recorder")
        with torch.no_grad():
            model(input_ids=ids, use_cache=False)
    except Exception:
        pass
    if recorder.shapes is None:
        return shape_of(model)
    return layers, *recorder.shapes


def judge(session, model):
    """(outcome, words)."""
    from attnd.transformers import PagedCache

    torch.manual_seed(2)
    ids = torch.randint(3, WORDS, (1, PROMPT + TOKENS))
    want = eager_logits(model, ids)
    again = eager_logits(model, ids)
    if not torch.equal(want, again):
        return NOT_BUILT, "eager attention differs from itself"
    layers, heads, heads_kv, dim, dim_vo = seen_shape(model, ids)
    passes = 0
    try:
        model.set_attn_implementation("attnd")
        pool = attnd.PagePool(session, layers, 8, PAGE, heads_kv, dim, head_dim_vo=dim_vo)
        cache = PagedCache(pool, heads)
        sequence, got = cache.sequence(), []
        for begin, end in [(0, PROMPT)] + [(i, i + 1) for i in range(PROMPT, PROMPT + TOKENS)]:
            positions = cache.step([(sequence, end - begin)])
            with torch.no_grad():
                got.append(
                    model(
                        input_ids=ids[:, begin:end], position_ids=positions, past_key_values=cache,
                        use_cache=True,
                    ).logits[0]
                )  # fmt: skip
            passes += 1
    except REFUSALS as why:
        text = f"{type(why).__name__}: {why}"
        return (REFUSED if passes == 0 else BROKEN), text if passes == 0 else f"at {passes}: {text}"
    except Exception as why:
        return BROKEN, f"in pass {passes}: {type(why).__name__}: {why}"
    got = torch.cat(got).float()
    scale = want.abs().max()
    worst = ((got - want).abs().max() / scale).item()
    best = want.topk(2).values
    close = (best[:, 0] - best[:, 1]) < 0.02 * scale  # rounding may decide
    tokens = (got.argmax(-1) == want.argmax(-1)) | close
    if worst > 0.02 or not bool(tokens.all()):
        return WRONG, f"logits differ by {worst:.2g} of the largest"
    return SAME, f"logits within {worst:.1e} of the largest"


def architectures():
    """{name: configuration} of what is registered for causal language models."""
    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    found = {}
    for name in names.values():
        for one in [name] if isinstance(name, str) else name:
            try:
                found[one] = getattr(transformers, one).config_class
            except (AttributeError, ImportError, RuntimeError):
                continue
    return found


def table(only=()):
    """[(name, outcome, words)]."""
    from attnd.transformers import register

    register()
    torch.set_num_threads(1)
    rows = []
    with service() as path:
        for name, kind in sorted(architectures().items()):
            if only and name not in only:
                continue
            with attnd.Session(path) as session:
                try:
                    model = small(name, kind)
                    outcome = judge(session, model)
                except Exception as why:
                    outcome = NOT_BUILT, f"{type(why).__name__}: {why}"
            rows.append((name, *outcome))
            print(f"{name:40} {outcome[0]:9} {' '.join(outcome[1].split())[:110]}", flush=True)
    outcomes = SAME, REFUSED, WRONG, BROKEN, NOT_BUILT
    counts = {x: sum(row[1] == x for row in rows) for x in outcomes}
    print(", ".join(f"{n} {x}" for x, n in counts.items()))
    return rows


class ArchitecturesTest(unittest.TestCase):
    def test_each_has_eagers_tokens_or_is_refused_by_name_in_its_first_pass(self):
        need("transformers")
        rows = table()
        bad = [row for row in rows if row[1] in (WRONG, BROKEN)]
        self.assertEqual(bad, [])
        self.assertGreater(sum(row[1] == SAME for row in rows), 40)


if __name__ == "__main__":
    sys.exit(any(row[1] in (WRONG, BROKEN) for row in table(sys.argv[1:])))
