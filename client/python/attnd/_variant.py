"""The attention variant of a batch, in FlashInfer's names: what its softmax does beside scaling.

The numbers are the service's to check: an option that the worker lacks, or that does not go with
another, is refused by its name when the batch is planned.
"""

import ctypes as c

from . import _abi
from .memory import copy, describe

_POSITIONS = {"NONE": 0, "ALIBI": 1, "ROPE_LLAMA": 2}


def variant_of(session, num_heads, layers, sinks, said):
    """(struct attnd_variant or None, what keeps its table) of plan()'s options."""
    window, soft_cap, position, rope_scale, rope_theta, q_scale, k_scale, v_scale, split = said
    if position not in _POSITIONS:
        raise ValueError(f"pos_encoding_mode is {position}, not one of {', '.join(_POSITIONS)}")
    window = -1 if window is None else window
    numbers = {
        "logits_soft_cap": soft_cap, "position_encoding": _POSITIONS[position],
        "rope_scale": rope_scale, "rope_theta": rope_theta, "q_scale": q_scale, "k_scale": k_scale,
        "v_scale": v_scale, "fixed_split": split,
    }  # fmt: skip
    numbers = {name: value for name, value in numbers.items() if value}
    if window < 0 and sinks is None and not numbers:
        return None, None
    variant, kept = _abi.Variant(window_left=max(window, -1), **numbers), None
    if sinks is not None:
        variant.sinks, kept = _table(session, sinks, num_heads, layers)
    return c.pointer(variant), kept


def _table(session, sinks, num_heads, layers):
    """[num_heads], or [layers, num_heads]: where it lies, or a copy in memory of the session."""
    described = describe(sinks)
    _, shape, strides, dtype, _, _ = described
    if shape not in ((num_heads,), (layers, num_heads)):
        raise ValueError(
            f"sinks is {shape}; the plan wants ({num_heads},) or ({layers}, {num_heads})"
        )
    try:
        if dtype != "float32" or strides[-1] != 1:
            raise LookupError
        memory, offset, kept = session.place(described)
    except LookupError:
        kept = session.empty(shape, "float32", "cuda" if getattr(sinks, "is_cuda", 0) else "cpu")
        copy(kept, sinks)
        memory, offset, strides = kept.memory.handle, kept.offset, kept.strides
    stride = strides[0] if len(shape) == 2 else 0
    return _abi.Table(memory=memory, layer_stride=stride, offset_bytes=offset), kept
