"""Plans whose lengths only the GPU knows: what BatchAttention.plan_shape() and plan_on_stream() are
given, as the library takes it."""

import numpy

from . import _abi, _convert
from .memory import on_gpu

_KEYS_MAX = (1 << 31) - 1


def arrays_of(requests, rows):
    """The CSR arrays of a batch that says how large others may be: as many requests and rows, as
    even as they come, and no pages."""
    requests = _convert.integer("requests", requests, 1, 1 << 20)
    rows = _convert.integer("rows", rows, 1, 1 << 22)
    begins = numpy.arange(requests + 1, dtype=numpy.int64) * rows // requests
    none = numpy.zeros(requests + 1, numpy.int32)
    return begins.astype(numpy.int32), none, none[:0], numpy.ones(requests, numpy.int32)


def args_of(pool, rows, kv_len, page_table, qo_indptr, each, keys, errors):
    """struct attnd_cuda_plan_args. @rows: of the shape; @each, @keys: None where not given."""
    lengths, (requests,), _ = on_gpu("kv_len", kv_len, (None,), "int32")
    table, (_, pages), (stride, _) = on_gpu("page_table", page_table, (requests, None), "int32")
    stride = _convert.integer("page_table's stride", stride, 0, _convert.U32)
    stride = stride if requests > 1 else pages
    if stride < pages:
        raise ValueError(f"page_table has rows that overlap: {pages} pages, {stride} apart")
    held = min(pages * pool.page_size, _KEYS_MAX)
    args = _abi.CudaPlanArgs(
        requests=requests, lengths=lengths, table=table, table_stride=stride,
        keys=held if keys is None else _convert.integer("max_kv_len", keys, 1, held),
    )  # fmt: skip
    if qo_indptr is None:
        args.rows = 1 if each is None else _convert.integer("rows_per_request", each, 1, 1 << 22)
    else:
        if each is not None:
            raise ValueError("qo_indptr says how many rows a request has, not rows_per_request")
        args.qo_indptr, *_ = on_gpu("qo_indptr", qo_indptr, (requests + 1,), "int32")
        args.rows = rows
    if errors is not None:
        args.errors, *_ = on_gpu("errors", errors, (requests,), "int32")
    return args
