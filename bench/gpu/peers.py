#!/usr/bin/env python3
"""Attention, matrix products and a neighbour by PyTorch: what the CUDA worker is measured beside.

peers.py measure   peers and ceilings, lines of "<name> <value>"
peers.py gemm      the time of a 4096^3 product, which somebody else's service may slow down
peers.py hold      a kernel that does not end; says "running" when it is under way

Times are medians of event pairs around the call, microseconds; inputs rotate past the L2. What this
PyTorch cannot do is skipped and said on standard error. fp16, head_dim 128, 32/8 heads.
"""
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("peers.py: no torch here, nothing is measured")
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

HEADS_Q, HEADS_KV, DIM = 32, 8, 128


def time_us(call, count=20):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(-5, count):
        begin.record()
        call(abs(i))
        end.record()
        end.synchronize()
        if i >= 0:
            times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times)[len(times) // 2]


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.float16)


def attention(name, backend, rows, kv):
    """One causal request, the last `rows` of `kv` tokens being queries; K and V contiguous."""
    try:
        sets = [
            (random(1, HEADS_Q, rows, DIM), random(1, HEADS_KV, kv, DIM), random(1, HEADS_KV, kv, DIM))
            for _ in range(3)
        ]
        options = {"enable_gqa": True, "is_causal": True}
        if rows < kv:
            from torch.nn.attention.bias import causal_lower_right

            options = {"enable_gqa": True, "attn_mask": causal_lower_right(rows, kv)}
        with sdpa_kernel(backend):
            us = time_us(lambda i: sdpa(*sets[i % 3], **options))
        print(f"{name}_us {us:.2f}", flush=True)
    except (RuntimeError, ImportError, NotImplementedError) as error:
        print(f"peers.py: {name}: skipped: {str(error).splitlines()[0]}", file=sys.stderr)


def product_us(size, count):
    sets = [(random(size, size), random(size, size)) for _ in range(3)]
    return time_us(lambda i: torch.mm(*sets[i % 3]), count)


def measure():
    print(f"matmul_8192_tflops {2 * 8192**3 / product_us(8192, 20) * 1e-6:.1f}", flush=True)
    for rows, kv, shape in (8192, 8192, "8192"), (16384, 16384, "16384"):
        attention(f"cudnn_prefill_{shape}", SDPBackend.CUDNN_ATTENTION, rows, kv)
        attention(f"fa2_prefill_{shape}", SDPBackend.FLASH_ATTENTION, rows, kv)
    attention("fa2_chunk_1024_at_16384", SDPBackend.FLASH_ATTENTION, 1024, 16384)
    torch.cuda.empty_cache()
    time.sleep(0.1)  # while the driver clears what was freed, memory is slower
    print(f"matmul_8192_again_tflops {2 * 8192**3 / product_us(8192, 20) * 1e-6:.1f}", flush=True)


def gemm():
    print(f"gemm_4096_us {product_us(4096, 200):.2f}", flush=True)


def hold():
    torch.cuda.init()
    under_way = torch.cuda.Event()
    torch.cuda._sleep(1 << 10)
    torch.cuda.synchronize()
    under_way.record()
    torch.cuda._sleep(1 << 36)  # clock cycles: half a minute
    under_way.synchronize()
    print("running", flush=True)
    torch.cuda.synchronize()


if __name__ == "__main__":
    calls = {"measure": measure, "gemm": gemm, "hold": hold}
    if len(sys.argv) != 2 or sys.argv[1] not in calls:
        sys.exit(__doc__)
    calls[sys.argv[1]]()
