"""What a BatchAttention does in a CUDA stream: batches that the GPU alone knows, runs that are
prepared, and runs that a graph may hold.
"""

from __future__ import annotations

import ctypes as c
import typing

import numpy

from . import _convert, _device_plan, _fused
from ._library import cuda_or_error, is_captured
from ._settings import STRIDED, name_of
from .errors import checked
from .memory import describe, refuse_gradient

if typing.TYPE_CHECKING:
    from ._types import Array, Layer


def _stream(stream):
    """A stream of PyTorch, of its handle; None: the current one."""
    cuda_or_error()
    import torch

    if stream is None:
        return torch.cuda.current_stream()
    return torch.cuda.ExternalStream(_convert.integer("stream", stream, 0, _convert.U64))


class OnStream:
    """A part of BatchAttention, which has the fields."""

    def plan_shape(self, requests: int, rows: int, num_qo_heads: int, **options) -> None:
        """What plan_on_stream() may plan, on a GPU: at most @requests with @rows of q together, and
        all that lengths do not say, by the other options of plan(). It waits; to say the same again
        costs nothing, unless tensors are among the options."""
        self._native()
        said = requests, rows, num_qo_heads, options
        plain = all(isinstance(x, (int, float, str, type(None))) for x in options.values())
        if plain and self._now is not None and said == self._shape:
            return
        arrays = _device_plan.arrays_of(requests, rows)
        self.plan(*arrays, num_qo_heads, **options, wait=True)
        self._shape = said

    def plan_on_stream(
        self, kv_len: Array, page_table: Array, qo_indptr: Array | None = None, *,
        rows_per_request: int | None = None, max_kv_len: int | None = None,
        errors: Array | None = None, stream: int | None = None,
    ) -> None:  # fmt: skip
        """Plan a batch within what plan_shape() said, by a kernel in @stream (the current one) in
        front of the runs of all layers: nothing comes to the host, and a graph of both serves any
        lengths. All arrays are int32 on the GPU.

        kv_len: [requests] tokens, those of q included; 0 is padding, whose rows are not written.
        page_table: [requests, pages]; it may not change until the runs are over.
        qo_indptr: [requests + 1] where rows of a request begin; if None each has rows_per_request
            (1), one behind the other.
        max_kv_len: no request has more; as many as page_table has room for if None.
        errors: [requests], written: 0, or another number for a request whose length or page ids are
            out of range. Its rows are NaN, and lane_error() tells why; the others are right.

        q and out of run() have the rows of the shape; what is behind the batch's is left as it is.
        attnd_cuda_plan_on_stream() has the rest. Where the service's worker executes what a stream
        launches, Unsupported is raised (field executor)."""
        native = self._native("plan_on_stream")
        args = _device_plan.args_of(
            self.pool, self.rows, kv_len, page_table, qo_indptr, rows_per_request, max_kv_len,
            errors,
        )  # fmt: skip
        handle = _stream(stream).cuda_stream
        checked(
            cuda_or_error().attnd_cuda_plan_on_stream(
                native, self._now.plan, self.lane, c.byref(args), handle
            )
        )

    def prepare(
        self, q: Array, kv_cache: Layer, out: Array, lse: Array | None = None
    ) -> int:  # fmt: skip
        """What the first run() of these tensors on a GPU does before it launches, and what blocks:
        do it for each layer before a graph is captured. Nothing runs. Return: what launch()
        takes."""
        native = self._native("prepare")
        checked(cuda_or_error().attnd_cuda_stream_open(native))
        tensors = [q, out] if lse is None else [q, out, lse]
        layer = self.pool.layer_of(kv_cache)
        with self._one:
            return self._prepare(layer, tensors)

    def launch(self, number: int, stream: int | None = None) -> None:
        """On a GPU: the run that prepare() gave the number of, in @stream (the current one). It is
        run() for tensors that stay where they are, whose places are not looked at again: the
        caller keeps them, and plan() must not need a larger plan meanwhile."""
        native, number = self._native("launch"), _convert.integer("number", number, 0, _convert.U32)
        handle = _stream(stream).cuda_stream
        checked(cuda_or_error().attnd_cuda_run_on_stream(native, self.lane, number, handle))

    def run_fused(
        self, q: Array, k: Array, v: Array, kv_cache: Layer, out: Array | None = None,
        lse: Array | bool | None = None, *, cos_sin: Array | None = None,
        positions: Array | None = None, slots: Array | None = None, interleaved: bool = False,
        stream: int | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """run() on a GPU, and what engines have in front of it: q and k rotated, k and v stored in
        the pages of the plan, whose lengths count them. Where the batch is of few rows each, all
        of it is one launch.

        q, k, v: as the QKV product leaves them, k and v [rows, num_kv_heads, head_dim]. q is left
            as it is.
        cos_sin: float32 [positions, 2, pairs], of each position the cosines, then the sines; None:
            nothing is rotated. Elements i and pairs + i are a pair, or 2 i and 2 i + 1 where
            @interleaved.
        positions: int32 [rows] of the table; None: each row's own place among its request's keys.
        slots: int32 [rows], page * page_size + token, where k and v go, or -1: nowhere; None:
            where the plan has the row.

        attnd_cuda_run_fused_on_stream() has the rest. Where the service's worker executes what a
        stream launches, Unsupported is raised (field executor)."""
        self._native("run_fused")
        args = _fused.args_of(
            self.pool, self.dtype, k, v, cos_sin, positions, slots, interleaved
        )  # fmt: skip
        layer = self.pool.layer_of(kv_cache)
        if isinstance(lse, (bool, numpy.bool_)):
            lse = True if lse else None
        with self._one:
            return self._run_on_stream(layer, q, out, lse, stream, args)

    def _run_on_stream(self, layer, q, out, lse, stream, fused=None):
        import torch

        if out is None:
            shape, dtype = self._tensors.shapes["o"], getattr(torch, self.dtype)
            out = torch.empty(shape, dtype=dtype, device="cuda")
        if lse is True:
            shape = self._tensors.shapes["lse"]
            lse = torch.empty(shape, dtype=torch.float32, device="cuda")
        handle = _stream(stream).cuda_stream
        tensors = [q, out] if lse is None else [q, out, lse]
        run = self.session.native(), self.lane, self._prepare(layer, tensors, is_captured(handle))
        if fused is None:
            checked(cuda_or_error().attnd_cuda_run_on_stream(*run, handle))
        else:
            args = c.byref(fused)
            checked(cuda_or_error().attnd_cuda_run_fused_on_stream(*run, args, handle))
        return out, lse

    def _prepare(self, layer, tensors, captured=False):
        """The number of the run of these tensors, prepared the first time."""
        for name, x in zip(STRIDED, tensors):
            refuse_gradient(name_of(name), x)
        described = [(name, *describe(x, name_of(name))) for name, x in zip(STRIDED, tensors)]
        for name, _, shape, strides, dtype, _, _ in described:
            if not self._tensors.check(name, shape, strides, dtype):
                raise ValueError(f"{name_of(name)} is not contiguous: say its strides to plan()")
        return self._prepared.number(self._now.plan, layer, tensors, described, captured)

    def lane_error(self) -> None:
        """Raise what the first run of the lane failed with since this was last asked. Ask when the
        stream is done: outputs of a lane with an error are not to be used."""
        native = self._native()
        checked(cuda_or_error().attnd_cuda_lane_error(native, self.lane))
