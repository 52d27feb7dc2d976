"""The attention variant of a batch, in FlashInfer's names: what its softmax does beside scaling.

Whether options go together, and whether the worker has them, is the service's to say: it refuses
them by name when the batch is planned. Tables (sinks, scales of heads, masks) are named where they
lie, if that is memory of the session or the GPU, and are copied otherwise.
"""

import ctypes as c

import numpy

from . import _abi, _convert
from ._options import NUMBERS, POSITIONS, TABLES
from .memory import copy, describe, host_array, refuse_gradient

def numbers_of(said):
    """{field: value} of the options that are given, as struct attnd_variant has them. @said: in the
    order of NUMBERS."""
    given = [
        (name, field, convert, x)
        for (name, field, _, plain, convert), x in zip(NUMBERS, said)
        if x is not plain
    ]
    numbers = {field: convert(name, x) for name, field, convert, x in given}
    rotated = numbers.get("position_encoding") == POSITIONS["ROPE_LLAMA"]
    for name, field, _, _ in given:
        if name.startswith("rope_") and numbers[field] and not rotated:
            raise ValueError(f"{name} goes with pos_encoding_mode ROPE_LLAMA, which is not given")
        if name.endswith("_freq_factor") and "rope_old_context" not in numbers:
            raise ValueError(f"{name} goes with rope_old_context, which is not given")
    return numbers


def variant_of(pool, num_heads, numbers, tables, mask):
    """(struct attnd_variant or None, what keeps its tables) of numbers_of(); @tables: in the order
    of TABLES, None where one is not given; @mask: what mask_of() gave, or None."""
    given = any(x for field, x in numbers.items() if field != "window_left")
    window = numbers.get("window_left", -1)
    if window < 0 and not given and mask is None and all(table is None for table in tables):
        return None, None
    said = [(*row, table) for row, table in zip(TABLES, tables) if table is not None]
    for name, _, beside, _ in said:
        if beside and numbers.get("position_encoding") != POSITIONS[beside]:
            raise ValueError(f"{name} go with pos_encoding_mode {beside}, which is not given")
    variant, kept = _abi.Variant(**{"window_left": -1, **numbers}), []
    for name, shape, _, table in said:
        where, keep = _table(pool, name, table, shape(num_heads, pool.num_kv_heads))
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
    described = describe(table, name)
    _, shape, strides, dtype, _, _ = described
    of_torch = hasattr(table, "is_cuda")  # numpy has no bfloat16: it would be read as whole numbers
    if dtype not in ("float32", "float16", *(["bfloat16"] if of_torch else ())):
        raise TypeError(f"{name} is {dtype}; the plan wants float32")
    refuse_gradient(name, table)
    if shape not in (one, (pool.layers, *one)):
        raise ValueError(f"{name} is {shape}; the plan wants {one} or {(pool.layers, *one)}")
    dense = strides[len(shape) - len(one) :] == (one[-1], 1)[-len(one) :]
    layered = len(shape) > len(one)
    try:
        if dtype != "float32" or not dense or (layered and not 0 <= strides[0] <= _convert.U32):
            raise LookupError
        memory, offset, kept = pool.session.place(described)
    except LookupError:
        device = "cuda" if getattr(table, "is_cuda", False) else "cpu"
        kept = pool.session.empty(shape, "float32", device)
        copy(kept, table)
        memory, offset, strides = kept.memory.handle, kept.offset, kept.strides
    stride = strides[0] if layered else 0
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
    if packed is not None and _of_bools(packed):
        raise TypeError(f"{name} is of bool; it is of uint8, eight bits in each")
    _, shape, strides, dtype, _, _ = described = _of_bytes(name, given)
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
    data = host_array(given)
    if packed is None:
        if data.size and data.dtype != numpy.bool_ and data.max() > 1:
            raise ValueError(f"{name} has a {data.max()}; it is of bool, or of 0 and 1")
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


def _of_bytes(name, x):
    """describe() of a mask: of bool it is bytes of 0 and 1."""
    if _of_bools(x) and isinstance(x, numpy.ndarray):
        x = x.view(numpy.uint8)
    elif _of_bools(x):
        import torch

        x = x.view(torch.uint8)
    return describe(x, name)


def _of_bools(x):
    dtype = getattr(x, "dtype", None)
    return str(dtype) == "torch.bool" or (isinstance(x, numpy.ndarray) and dtype == numpy.bool_)
