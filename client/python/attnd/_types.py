"""Names of what signatures take and give, for type checkers: nothing here is needed at run time."""

from __future__ import annotations

import typing
from collections.abc import Sequence

import numpy

if typing.TYPE_CHECKING:
    import torch

    from .memory import Tensor
    from .pool import KVCache

    Array = typing.Union[numpy.ndarray, torch.Tensor, Tensor]  # or of any library with DLPack
    Ints = typing.Union[Sequence[int], numpy.ndarray, torch.Tensor]  # int32 values
    Levels = typing.Union[Ints, Sequence[Ints]]  # of one level, or of a cascade's
    DType = typing.Union[str, numpy.dtype, type, torch.dtype]
    Layer = typing.Union[int, KVCache, Array, tuple[Array, Array]]
    Strides = typing.Optional[tuple[int, int]]  # (row, head), in elements
    Device = typing.Literal["cpu", "cuda"]
