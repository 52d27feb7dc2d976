"""Page tables as CSR arrays: which there are, how long each has to be, and whether they are those
of the call before."""

import ctypes as c
import struct
import weakref

import numpy

from . import _abi, _convert

NAMES = "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_len"
_INT32 = numpy.dtype(numpy.int32)


def levels(arrays):
    """The four arrays of each level, of four arrays or of four lists of arrays: of a list the first
    tells, which may be of many page ids."""
    several = [isinstance(x, (list, tuple)) and any(map(_is_array, x[:1])) for x in arrays]
    if not any(several):
        return [arrays]
    first = several.index(True)
    for name, x, of_levels in zip(NAMES, arrays, several):
        if not of_levels or len(x) != len(arrays[first]):
            raise ValueError(f"{name} is not of {len(arrays[first])} levels, as {NAMES[first]} is")
    return list(zip(*arrays))


def _is_array(x):
    return isinstance(x, (list, tuple, range)) or getattr(x, "shape", ()) != ()


def read(arrays, level, count):
    """What int32s() says of the four arrays of a level."""
    of = "" if count == 1 else f"[{level}]"
    return [_convert.int32s(name + of, x) for name, x in zip(NAMES, arrays)]


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
    pages = c.c_int32.from_address(kv_at + 4 * requests).value
    if not 0 <= pages <= indices:
        raise ValueError(
            f"kv_indptr ends at {pages}, beyond the {indices} entries of kv_indices"
        )
    return requests


def fill(levels, kept, reserve_pages):
    """Fill in struct attnd_level of each level from read(). Return: entries, rows and pages of all,
    with @reserve_pages for each request of the last level."""
    entries = pages = rows = requests = 0
    for level, ints in zip(levels, kept):
        level.requests = requests = lengths(*ints)
        level.qo_indptr, level.kv_indptr = ints[0][0], ints[1][0]
        level.kv_indices, level.kv_last_page_len = ints[2][0], ints[3][0]
        entries, pages = entries + requests, pages + ints[2][1]
        rows = max(rows, c.c_int32.from_address(ints[0][0] + 4 * requests).value)
    pages += reserve_pages * requests
    if pages > _abi.PLAN_PAGES_MAX:
        raise ValueError(
            f"kv_indices and reserve_pages are {pages} pages; a plan has up to "
            f"{_abi.PLAN_PAGES_MAX}"
        )
    return entries, rows, pages


def advanced(kv_len, page_indptr, page_indices, entries):
    """(addresses of the three, what keeps them) of advance(), each as long as the library reads
    it; @entries: of the planned batch."""
    if (page_indptr is None) != (page_indices is None):
        missing = "page_indptr" if page_indptr is None else "page_indices"
        raise ValueError(f"{missing} is None: page_indptr and page_indices are given together")
    kept = [_convert.int32s("kv_len", kv_len)]
    if kept[0][1] != entries:
        raise ValueError(f"kv_len has {kept[0][1]} entries; the planned batch has {entries}")
    if page_indptr is None:
        return (kept[0][0], None, None), kept
    kept += [_convert.int32s("page_indptr", page_indptr)]
    kept += [_convert.int32s("page_indices", page_indices)]
    (starts, count, _), (_, indices, _) = kept[1:]
    if count != entries + 1:
        raise ValueError(f"page_indptr has {count} entries; it has {entries + 1}")
    pages = c.c_int32.from_address(starts + 4 * entries).value
    if not 0 <= pages <= indices:
        raise ValueError(f"page_indptr ends at {pages}; page_indices has {indices} entries")
    return tuple(x[0] for x in kept), kept


def named_again(csr, kept):
    """What the arrays of one level are known by, if they were named where they are and may be so
    again: references to them, a function that asks whether nothing but their values has changed,
    and what that wants to know. An array of numpy can be given other strides, bytes or another type
    in place, and a tensor of PyTorch other storage. None otherwise."""
    if len(csr) != 1 or not all(x is ints[2] for x, ints in zip(csr[0], kept[0])):
        return None
    of_numpy = {type(x) is numpy.ndarray for x in csr[0]}
    if len(of_numpy) != 1:
        return None
    references = tuple(map(weakref.ref, csr[0]))
    if of_numpy.pop():
        cells = tuple(_cell(ints[2], ints[0]) for ints in kept[0])
        if None in cells:
            return None
        lengths = tuple(ints[1] for ints in kept[0])
        return references, same_arrays, (lengths, cells, tuple(cell.raw for cell in cells))
    places = tuple((*ints[:2], x.dtype) for x, ints in zip(csr[0], kept[0]))
    (qo_at, entries, _), (kv_at, _, _), *_ = places
    ends = (c.c_int32.from_address(at + 4 * (entries - 1)) for at in (qo_at, kv_at))
    return references, same_tensors, (*places, *ends)  # looked at only while the tensors are there


def _cell(x, address):
    """The fields of an array of numpy beside its values and lengths, as they are now (`raw`): of
    PyArrayObject in numpy's ABI, data, nd, dimensions, strides, base, descr and flags. To look at
    them one by one takes as long as a call of the library. Only while x is there. None where they
    are not laid out so."""
    cell = (c.c_char * 52).from_address(id(x) + object.__basicsize__)
    data, dimensions = struct.unpack_from("Pi", cell)
    return cell if (data, dimensions) == (address, 1) and x.dtype is _INT32 else None


def same_arrays(qo, kv, indices, last, known, rows):
    """Whether arrays of numpy are as they were but for their values, and say as many rows."""
    lengths, (of_qo, of_kv, of_indices, of_last), before = known
    return (
        (of_qo.raw, of_kv.raw, of_indices.raw, of_last.raw) == before
        and (qo.size, kv.size, indices.size, last.size) == lengths
        and qo.item(-1) == rows and 0 <= kv.item(-1) <= lengths[2]
    )  # fmt: skip


def same_tensors(qo, kv, indices, last, places, rows):
    """Whether tensors of PyTorch are as long and where they were, and say as many rows."""
    of_qo, of_kv, of_indices, of_last, qo_end, kv_end = places
    return (
        (qo.data_ptr(), qo.numel(), qo.dtype) == of_qo and qo.is_contiguous()
        and (kv.data_ptr(), kv.numel(), kv.dtype) == of_kv and kv.is_contiguous()
        and (indices.data_ptr(), indices.numel(), indices.dtype) == of_indices
        and indices.is_contiguous()
        and (last.data_ptr(), last.numel(), last.dtype) == of_last and last.is_contiguous()
        and qo_end.value == rows and 0 <= kv_end.value <= of_indices[1]
    )  # fmt: skip
