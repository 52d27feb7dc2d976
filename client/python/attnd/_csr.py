"""CSR arrays of int32: lists, arrays of numpy or tensors of PyTorch, as addresses."""

import ctypes as c
import weakref

import numpy

from .memory import Tensor

_INT32 = numpy.dtype(numpy.int32)


def ints(x):
    """(address, length, what keeps it) of int32 values, wherever they are now."""
    if type(x) is numpy.ndarray and x.dtype is _INT32 and x.size and x.flags.carray:
        return c.addressof(c.c_int32.from_buffer(x)), x.size, x
    if isinstance(x, (list, tuple, range)):
        array = (c.c_int32 * len(x))(*x)
        return c.addressof(array), len(x), array
    if hasattr(x, "data_ptr") and not isinstance(x, Tensor):
        if x.is_cuda or str(x.dtype) != "torch.int32" or not x.is_contiguous():
            x = x.cpu().int().contiguous()
        return x.data_ptr(), x.numel(), x
    x = numpy.ascontiguousarray(x, dtype=numpy.int32)
    return x.__array_interface__["data"][0], x.size, x


def array_of(ints):
    """What ints() gave, as an array of numpy: not longer than that is kept."""
    return numpy.ctypeslib.as_array((c.c_int32 * ints[1]).from_address(ints[0]))


def lengths(qo_indptr, kv_indptr, kv_indices, kv_last_page_len):
    """The number of requests of a level; the library reads as many entries as it says."""
    qo, kv_at, kv, indices, last = (
        qo_indptr[1], kv_indptr[0], kv_indptr[1], kv_indices[1], kv_last_page_len[1]
    )  # fmt: skip
    requests = qo - 1
    if requests < 0 or kv != qo or last != requests:
        raise ValueError(
            f"qo_indptr has {qo} entries, kv_indptr {kv}, kv_last_page_len {last}: "
            "requests + 1, requests + 1, requests"
        )
    if c.c_int32.from_address(kv_at + 4 * requests).value > indices:
        raise ValueError(f"kv_indptr ends beyond the {indices} entries of kv_indices")
    return requests


def named_again(csr, kept):
    """What the arrays of one level are known by, if they were named where they are and may be so
    again: references to them and, of tensors of PyTorch, which can be given other storage, their
    places. An array of numpy stays where it is while something refers to it. None otherwise."""
    if len(csr) != 1 or not all(x is ints[2] for x, ints in zip(csr[0], kept[0])):
        return None
    of_numpy = {type(x) is numpy.ndarray for x in csr[0]}
    if len(of_numpy) != 1:
        return None
    places = None if of_numpy.pop() else tuple(ints[:2] for ints in kept[0])
    return tuple(map(weakref.ref, csr[0])), places


def same_tensors(references, places, rows):
    """Whether tensors of PyTorch are as long and where they were, and say as many rows."""
    for reference, place in zip(references, places):
        x = reference()
        if (x.data_ptr(), x.numel()) != place or not x.is_contiguous():
            return False
    (qo, entries), (kv_at, _), (_, pages), _ = places
    last = 4 * (entries - 1)
    return (
        c.c_int32.from_address(qo + last).value == rows
        and c.c_int32.from_address(kv_at + last).value <= pages
    )  # fmt: skip
