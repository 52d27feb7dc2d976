"""Rotation and new keys of a run that takes q, k and v as they leave the QKV product: what
BatchAttention.run_fused() is given, as the library takes it."""

from . import _abi, _convert
from .memory import on_gpu


def _rows(args, name, x, shape, dtype):
    """New rows of K or V. Return: how many."""
    address, (rows, *_), (row, head, _) = on_gpu(name, x, shape, dtype)
    setattr(args, name, address)
    for of, stride in ("row", row), ("head", head):
        field = f"{name}_{of}_stride"
        setattr(args, field, _convert.integer(field, stride, 0, _convert.U32))
    return _convert.integer(f"rows of {name}", rows, 0, _convert.U32)


def _angles(args, cos_sin, interleaved):
    args.cos_sin, (rows, _, half), strides = on_gpu(
        "cos_sin", cos_sin, (None, 2, None), "float32"
    )
    if (rows > 1 and strides[0] != 2 * half) or strides[1] != half:
        raise ValueError(f"cos_sin has gaps: strides {tuple(strides)}")
    args.table_rows, args.rotary_dim = rows, 2 * half
    args.interleaved = 1 if _convert.flag("interleaved", interleaved) else 0


def args_of(pool, dtype, k, v, cos_sin, positions, slots, interleaved):
    """struct attnd_cuda_fused_args."""
    args, heads = _abi.CudaFusedArgs(), (pool.num_kv_heads, pool.head_dim)
    args.rows = rows = _rows(args, "k", k, (None, *heads), dtype)
    _rows(args, "v", v, (rows, *heads), dtype)
    if cos_sin is not None:
        _angles(args, cos_sin, interleaved)
    if positions is not None:
        args.positions, *_ = on_gpu("positions", positions, (rows,), "int32")
    if slots is not None:
        args.slots, *_ = on_gpu("slots", slots, (rows,), "int32")
    return args
