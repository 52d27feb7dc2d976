"""Plans whose lengths only the GPU knows: what BatchAttention.plan_shape() and plan_on_stream() are
given, as the library takes it."""

import numpy

from . import _abi, _convert
from ._dlpack import CUDA
from .memory import describe

_KEYS_MAX = (1 << 31) - 1


def arrays_of(requests, rows):
    """The CSR arrays of a batch that says how large others may be: as many requests and rows, as
    even as they come, and no pages."""
    requests = _convert.integer("requests", requests, 1, 1 << 20)
    rows = _convert.integer("rows", rows, 1, 1 << 22)
    begins = numpy.arange(requests + 1, dtype=numpy.int64) * rows // requests
    none = numpy.zeros(requests + 1, numpy.int32)
    return begins.astype(numpy.int32), none, none[:0], numpy.ones(requests, numpy.int32)


def _array(name, x, shape):
    """(address, stride of a row) of int32 on the GPU, elements of a row side by side."""
    address, has, strides, dtype, kind, _ = describe(x, name)
    if kind != CUDA or dtype != "int32":
        raise TypeError(f"{name} is of {dtype}; it has to be of int32, on the GPU")
    if len(has) != len(shape) or any(n is not None and n != m for n, m in zip(shape, has)):
        raise ValueError(f"{name} is {tuple(has)}; it has to be {shape}")
    if has[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{name} has gaps: strides {tuple(strides)}")
    return address, strides[0] if has[0] > 1 else has[-1]


def args_of(pool, rows, kv_len, page_table, qo_indptr, each, keys, errors):
    """struct attnd_cuda_plan_args. @rows: of the shape; @each, @keys: None where not given."""
    requests = len(kv_len)
    lengths, _ = _array("kv_len", kv_len, (requests,))
    table, stride = _array("page_table", page_table, (requests, None))
    pages = page_table.shape[1]
    if requests > 1 and stride < pages:
        raise ValueError(f"page_table has rows that overlap: {pages} pages, {stride} apart")
    held = min(pages * pool.page_size, _KEYS_MAX)
    args = _abi.CudaPlanArgs(
        requests=requests, lengths=lengths, table=table, table_stride=max(stride, pages),
        keys=held if keys is None else _convert.integer("max_kv_len", keys, 1, held),
    )  # fmt: skip
    if qo_indptr is None:
        args.rows = 1 if each is None else _convert.integer("rows_per_request", each, 1, 1 << 22)
    else:
        if each is not None:
            raise ValueError("qo_indptr says how many rows a request has, not rows_per_request")
        args.qo_indptr, _ = _array("qo_indptr", qo_indptr, (requests + 1,))
        args.rows = rows
    if errors is not None:
        args.errors, _ = _array("errors", errors, (requests,))
    return args
