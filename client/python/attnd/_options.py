"""The options of an attention variant: a row for each, from which struct attnd_variant is made.

`NUMBERS` are in the order of the struct: what plan() calls the option, the member, its type, what
plan() takes for "not given", and what converts it. `TABLES` are floats: what both call the table,
its shape for so many heads of q and of K, and the pos_encoding_mode that it goes with, if any.
Importing the package compares the struct with the library's (`_abi.check()`).
"""

import ctypes as c

from . import _convert

POSITIONS = {"NONE": 0, "ALIBI": 1, "ROPE_LLAMA": 2}
_U32, _I32, _FLOAT = c.c_uint32, c.c_int32, c.c_float


def _real(low):
    return lambda name, x: _convert.real(name, x, low)


def _integer(low):
    return lambda name, x: _convert.integer(name, x, low, _convert.I32)


def _position(name, x):
    return POSITIONS[_convert.choice(name, x, tuple(POSITIONS))]


def _window(name, x):
    return -1 if x is None else _convert.integer(name, x, -1, _convert.I32)


# A number of struct attnd_variant that is 0 is absent, so where 0 means something it goes as
# scale() says.
_positive, _scale = _real(_convert.FLOAT_MIN), _convert.scale
NUMBERS = (
    ("rope_append", "flags", _U32, False, _convert.flag),
    ("pos_encoding_mode", "position_encoding", _U32, "NONE", _position),
    ("window_left", "window_left", _I32, -1, _window),
    ("logits_soft_cap", "logits_soft_cap", _FLOAT, None, _real(0.0)),
    ("rope_theta", "rope_theta", _FLOAT, None, _positive),
    ("rope_scale", "rope_scale", _FLOAT, None, _positive),
    ("rope_low_freq_factor", "rope_low_freq_factor", _FLOAT, None, _scale),
    ("rope_high_freq_factor", "rope_high_freq_factor", _FLOAT, None, _scale),
    ("rope_old_context", "rope_old_context", _U32, None, _integer(1)),
    ("rope_dim", "rope_dim", _U32, None, _integer(2)),
    ("q_scale", "q_scale", _FLOAT, None, _scale),
    ("k_scale", "k_scale", _FLOAT, None, _scale),
    ("v_scale", "v_scale", _FLOAT, None, _scale),
    ("fixed_split_size", "fixed_split", _U32, None, _integer(1)),
    ("attention_chunk_size", "chunk", _U32, None, _integer(1)),
)
TABLES = (
    ("sinks", lambda heads, heads_kv: (heads,), None),
    ("kv_scales", lambda heads, heads_kv: (2, heads_kv), None),
    ("alibi_slopes", lambda heads, heads_kv: (heads,), "ALIBI"),
)


def members(table):
    """Of struct attnd_variant, in its order: {name: type}. @table: struct attnd_variant_table."""
    numbers = {member: kind for _, member, kind, _, _ in NUMBERS}
    first, *others = (name for name, _, _ in TABLES)
    return {
        "size": _U32, **numbers, first: table, "mask": table, **dict.fromkeys(others, table)
    }  # fmt: skip
