"""The attention variant of a batch, in FlashInfer's names: what its softmax does beside scaling.

The numbers are the service's to check: an option that the worker lacks, or that does not go with
another, is refused by its name when the batch is planned. Tables (sinks, scales of heads, masks)
are named where they lie, if that is memory of the session or the GPU, and are copied otherwise.
"""

import ctypes as c

import numpy

from . import _abi
from .memory import copy, describe

_POSITIONS = {"NONE": 0, "ALIBI": 1, "ROPE_LLAMA": 2}
# The options of plan() that are numbers, in the order in which it hands them on.
_OPTIONS = (
    "window_left", "logits_soft_cap", "position_encoding", "rope_scale", "rope_theta",
    "rope_low_freq_factor", "rope_high_freq_factor", "rope_old_context", "rope_dim", "flags",
    "q_scale", "k_scale", "v_scale", "fixed_split", "chunk",
)  # fmt: skip
PLAIN = (-1, None, "NONE", *[None] * 6, False, *[None] * 5)


def variant_of(pool, num_heads, said, sinks, kv_scales, alibi_slopes, mask):
    """(struct attnd_variant or None, what keeps its tables) of plan()'s options; @mask: what
    mask_of() gave, or None."""
    values = dict(zip(_OPTIONS, said))
    position = values["position_encoding"]
    if position not in _POSITIONS:
        raise ValueError(f"pos_encoding_mode is {position}, not one of {', '.join(_POSITIONS)}")
    values["position_encoding"] = _POSITIONS[position]
    values["flags"] = _abi.ROPE_APPEND if values["flags"] else 0
    window = values.pop("window_left")
    window = -1 if window is None else max(window, -1)
    values = {name: value for name, value in values.items() if value}
    tables = sinks, kv_scales, alibi_slopes, mask
    if window < 0 and not values and all(table is None for table in tables):
        return None, None
    variant, kept = _abi.Variant(window_left=window, **values), []
    for name, table, shape in (
        ("sinks", sinks, (num_heads,)), ("kv_scales", kv_scales, (2, pool.num_kv_heads)),
        ("alibi_slopes", alibi_slopes, (num_heads,)),
    ):  # fmt: skip
        if table is not None:
            where, keep = _table(pool, name, table, shape)
            setattr(variant, name, where)
            kept.append(keep)
    if mask is not None:
        memory, offset, keep = mask
        variant.mask = _abi.Table(memory=memory, offset_bytes=offset)
        kept.append(keep)
    return c.pointer(variant), kept


def _table(pool, name, table, one):
    """float32 of shape @one, or [layers, *@one]: where it lies, or a copy in memory of the
    session."""
    described = describe(table)
    _, shape, strides, dtype, _, _ = described
    if shape not in (one, (pool.layers, *one)):
        raise ValueError(f"{name} is {shape}; the plan wants {one} or {(pool.layers, *one)}")
    dense = strides[len(shape) - len(one) :] == (one[-1], 1)[-len(one) :]
    try:
        if dtype != "float32" or not dense:
            raise LookupError
        memory, offset, kept = pool.session.place(described)
    except LookupError:
        device = "cuda" if getattr(table, "is_cuda", False) else "cpu"
        kept = pool.session.empty(shape, "float32", device)
        copy(kept, table)
        memory, offset, strides = kept.memory.handle, kept.offset, kept.strides
    stride = strides[0] if len(shape) > len(one) else 0
    return _abi.Table(memory=memory, layer_stride=stride, offset_bytes=offset), kept


def mask_of(pool, csr, mask, packed):
    """((memory, offset, what keeps it), mask_indptr) of a custom mask. @csr: numpy's qo_indptr,
    kv_indptr, kv_last_page_len. @mask: bool, [queries * keys of each request], one request after
    the other; @packed: the same as bits, least significant first, each request from a byte of its
    own, which is how the service reads it."""
    qo_indptr, kv_indptr, last = csr
    pages = numpy.diff(kv_indptr).astype(numpy.int64)
    keys = numpy.where(pages > 0, (pages - 1) * pool.page_size + last, 0)
    bits = numpy.diff(qo_indptr) * keys
    indptr = numpy.zeros(len(qo_indptr), numpy.int64)
    numpy.cumsum((bits + 7) // 8, out=indptr[1:])
    name, given = ("custom_mask", mask) if packed is None else ("packed_custom_mask", packed)
    count = int(bits.sum()) if packed is None else int(indptr[-1])
    _, shape, strides, dtype, _, _ = described = _of_bytes(given)
    if shape != (count,) or dtype != "uint8":
        raise ValueError(f"{name} is {shape} of {dtype}; the plan wants ({count},)")
    if indptr[-1] > numpy.iinfo(numpy.int32).max:
        raise ValueError(f"{name} takes {indptr[-1]} bytes; a plan has at most 2 GiB of it")
    indptr = indptr.astype(numpy.int32)
    if packed is not None and strides == (1,):
        try:
            memory, offset, keep = pool.session.place(described)
            if offset % 4 == 0:
                return (memory, offset, keep), indptr
        except LookupError:
            pass
    given = given.cpu() if hasattr(given, "cpu") else given
    data = numpy.asarray(given)
    if packed is None:
        ends = numpy.cumsum(bits)
        parts = [
            numpy.packbits(data[end - n : end], bitorder="little") for end, n in zip(ends, bits)
        ]
        data = numpy.concatenate(parts) if parts else data.astype(numpy.uint8)
    kept = pool.session.empty(max(len(data), 4), "uint8", pool.device)
    inside = kept.memory.tensor((len(data),), "uint8")
    if pool.device == "cuda":
        import torch

        data = torch.from_numpy(numpy.ascontiguousarray(data))
    copy(inside, data)
    return (kept.memory.handle, 0, kept), indptr


def _of_bytes(x):
    """describe() of a mask: of bool it is bytes of 0 and 1."""
    if getattr(x, "dtype", None) == numpy.bool_:
        x = x.view(numpy.uint8)
    elif str(getattr(x, "dtype", "")) == "torch.bool":
        import torch

        x = x.view(torch.uint8)
    return describe(x)
