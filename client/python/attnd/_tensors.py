"""The tensors of a batch: what each has to be, where it lies, and what keeps it until it was used.

Host tensors that do not lie in memory of the session are copied there, and back if they are written
to. Such copies, and what keeps the other tensors, stay until an operation that comes behind those
that use them has ended.
"""

import math

import numpy

from ._dlpack import CPU, contiguous
from ._settings import STRIDED, name_of
from .memory import (
    BYTES, Described, Elsewhere, Tensor, copy, describe, is_read_only, refuse_gradient,
    refuse_inference,
)  # fmt: skip

_STAGED_MAX = 16  # copies of host tensors that wait for a run to end
_KEPT_MAX = 1024  # tensors that do


def _overlap(shape, strides):
    """Whether elements of a tensor may lie in the same place. Of a tensor that is to be written."""
    behind = 0  # the largest offset that dimensions of smaller strides reach
    for stride, n in sorted((abs(s), n) for s, n in zip(strides, shape) if n > 1):
        if stride <= behind:
            return True
        behind += stride * (n - 1)
    return False


def _share(x, y):
    """Whether arrays have a byte in common; of strides for which that takes long to find out,
    whether what they lie between overlaps."""
    try:
        return numpy.shares_memory(x, y, max_work=100_000)
    except RuntimeError:  # TooHardError: numpy has it in one place or another
        return numpy.may_share_memory(x, y)


def _bytes_of(x):
    """An array over a host tensor, of whatever type numpy knows of that size."""
    return numpy.asarray(Described(*describe(x)))


class Tensors:
    """Those of one BatchAttention. `shapes` is the same object until a plan wants others."""

    def __init__(self, pool):
        self.pool, self.session = pool, pool.session
        self.rows = self.dtype = self.shapes = self._heads = None
        self._strides = {}  # (row, head) in elements of those that are not contiguous
        self.kept, self.staged, self.spare = [], [], {}

    def plan(self, heads, rows, dtype, strides):
        """Those of another batch."""
        if strides or self._strides or (heads, rows, dtype) != (self._heads, self.rows, self.dtype):
            self._heads, self.rows, self.dtype, self._strides = heads, rows, dtype, strides
            self.shapes = {name: self._shape(name) for name in STRIDED}

    def planned(self):
        """What plan() has set, for plan_again()."""
        return self._heads, self.rows, self.dtype, self._strides, self.shapes

    def plan_again(self, planned):
        """Those of a batch that was there before."""
        self._heads, self.rows, self.dtype, self._strides, self.shapes = planned

    def _shape(self, name):
        heads = self.pool.num_kv_heads if name in "kv" else self._heads
        dim = self.pool.head_dim if name in "qk" else self.pool.head_dim_vo
        return (self.rows, heads) if name == "lse" else (self.rows, heads, dim)

    def new(self, name, like):
        """A new tensor of the framework of @like."""
        dtype = "float32" if name == "lse" else self.dtype
        if type(like).__module__.partition(".")[0] == "torch":
            import torch

            return torch.empty(self.shapes[name], dtype=getattr(torch, dtype), device=like.device)
        return numpy.empty(self.shapes[name], {"bfloat16": "uint16"}.get(dtype, dtype))

    def check(self, name, shape, strides, dtype):
        """Refuse a tensor that is not what the plan wants. Return: whether its strides are
        right."""
        wanted, of = self.shapes[name], "float32" if name == "lse" else self.dtype
        planned = self._strides.get(name)
        if tuple(shape) != wanted or dtype != of:
            raise ValueError(
                f"{name_of(name)} is {tuple(shape)} of {dtype}; the plan wants {wanted} of {of}"
            )
        if planned is None:
            return tuple(strides) == contiguous(wanted) or self.rows == 0
        if tuple(strides[:2]) != planned or (name != "lse" and strides[2] != 1):
            raise ValueError(
                f"{name_of(name)} has strides {tuple(strides)}; they were planned as {planned}"
            )
        return True

    def fill(self, place, name, x, read, back):
        """Fill in struct attnd_tensor, and keep what it names."""
        place.memory, place.offset_bytes, keep = self.place(name, x, read, back)
        self.kept.append(keep)

    def place(self, name, x, read, back):
        """(memory, offset, what keeps it) of a tensor, or of a copy in memory of the session.
        Copies that are written go to @back; without it they are refused."""
        if (
            type(x) is Tensor and x.contiguous and x.shape == self.shapes[name] and not
            self._strides and x.dtype == ("float32" if name == "lse" else self.dtype)
            and x.memory._native is self.session._native
        ):  # fmt: skip
            return x.memory.handle, x.offset, x
        refuse_gradient(name_of(name), x)
        if not read and is_read_only(x):
            raise ValueError(f"{name_of(name)} is read-only")
        described = describe(x, name_of(name))
        _, shape, strides, dtype, kind, _ = described
        if not read and _overlap(shape, strides):
            raise ValueError(
                f"{name_of(name)} has strides {tuple(strides)}: elements of it share their bytes"
            )
        if self.check(name, shape, strides, dtype):
            try:
                return self.session.place(described)
            except LookupError:
                if kind != CPU:
                    raise
        elif kind != CPU:
            raise ValueError(f"{name_of(name)} is not contiguous: say its strides to plan()")
        if back is None and not read:
            raise Elsewhere(
                f"{name_of(name)} must lie in memory of the session, contiguous as planned"
            )
        if not read:
            refuse_inference(name_of(name), x)
        own = self._stage(name, dtype)
        if read:
            copy(own, x)
        else:
            back.append((x, own))
        return own.memory.handle, own.offset, own

    def _stage(self, name, dtype):
        """A contiguous tensor in memory of the session, for one that lies elsewhere. bring_back()
        gives its memory to the next."""
        if name in self._strides:
            raise Elsewhere(
                f"{name_of(name)} was planned with strides: it must lie in memory of the session"
            )
        nbytes = math.prod(self.shapes[name]) * BYTES[dtype]
        spare = self.spare.setdefault(name, [])
        memory = spare.pop() if spare else None
        if memory is None or memory.nbytes < nbytes:
            memory = self.session.memory(max(2 * nbytes, 4096))
        self.staged.append((name, memory))
        return memory.tensor(self.shapes[name], dtype)

    def apart(self, back):
        """Refuse outputs of the caller that share bytes: one would be written over the other. Those
        in memory of the session the service refuses."""
        if len(back) == 2:
            (x, _), (y, _) = back
            if _share(_bytes_of(x), _bytes_of(y)):
                raise ValueError("lse shares bytes with out")

    def enough(self):
        """Whether so much is kept for what is in flight that something has to be waited for."""
        return len(self.staged) >= _STAGED_MAX or len(self.kept) >= _KEPT_MAX

    def bring_back(self, back):
        """What ended wrote into copies, and the memory of these for the next."""
        for to, source in back:
            copy(to, source)
        if self.staged:
            for name, memory in self.staged:
                self.spare.setdefault(name, []).append(memory)
            self.staged = []
