"""Rotation and new keys of a run that takes q, k and v as they leave the QKV product: what
BatchAttention.run_fused() is given, as the library takes it."""

from . import _abi, _convert
from ._dlpack import CUDA
from .memory import describe


def _tensor(name, x, shape, dtype):
    """(address, strides) of a tensor on the GPU; None in @shape: any number."""
    address, has, strides, found, kind, _ = describe(x, name)
    if kind != CUDA or found != dtype:
        raise TypeError(f"{name} is of {found}; it has to be of {dtype}, on the GPU")
    if len(has) != len(shape) or any(n is not None and n != m for n, m in zip(shape, has)):
        raise ValueError(f"{name} is {tuple(has)}; it has to be {shape}")
    if has[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{name} has gaps: strides {tuple(strides)}")
    return address, strides


def _angles(args, cos_sin, interleaved):
    rows, two, half = cos_sin.shape
    if two != 2:
        raise ValueError(f"cos_sin is {tuple(cos_sin.shape)}; it has to be [positions, 2, pairs]")
    args.cos_sin, strides = _tensor("cos_sin", cos_sin, (rows, 2, half), "float32")
    if (rows > 1 and strides[0] != 2 * half) or strides[1] != half:
        raise ValueError(f"cos_sin has gaps: strides {tuple(strides)}")
    args.table_rows, args.rotary_dim = rows, 2 * half
    args.interleaved = 1 if _convert.flag("interleaved", interleaved) else 0


def args_of(pool, dtype, k, v, cos_sin, positions, slots, interleaved):
    """struct attnd_cuda_fused_args."""
    rows = len(k)
    shape = rows, pool.num_kv_heads, pool.head_dim
    args = _abi.CudaFusedArgs(rows=rows)
    args.k, (args.k_row_stride, args.k_head_stride, _) = _tensor("k", k, shape, dtype)
    args.v, (args.v_row_stride, args.v_head_stride, _) = _tensor("v", v, shape, dtype)
    if cos_sin is not None:
        _angles(args, cos_sin, interleaved)
    if positions is not None:
        args.positions, _ = _tensor("positions", positions, (rows,), "int32")
    if slots is not None:
        args.slots, _ = _tensor("slots", slots, (rows,), "int32")
    return args
