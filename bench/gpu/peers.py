#!/usr/bin/env python3
"""Attention, matrix products and a neighbour by PyTorch: what the CUDA worker is measured beside.

peers.py [--peers DIR] measure   peers and ceilings, lines of "<name> <value>"
peers.py gemm                    the time of a 4096^3 product, which a service beside it may slow down
peers.py hold                    a kernel that does not end; says "running" when it is under way

Times are medians of event pairs around the call, microseconds; inputs rotate past the L2. What is not
here or does not work is skipped and said on standard error. fp16, head_dim 128, 32/8 heads.

FlashInfer's Python package is measured where it can be imported: its decodes, and its FA3 for a chunk of
a prompt. DIR (or $ATTND_PEERS) is a folder to import it from, too. Its times come behind a kernel that
waits, so that they are the GPU's and not Python's.
"""
import argparse
import os
import sys
import time

try:
    import torch
except ImportError:
    sys.exit("peers.py: no torch here, nothing is measured")
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

HEADS_Q, HEADS_KV, DIM, PAGE = 32, 8, 128, 16
L2_BYTES = 60 << 20
WORKSPACE_BYTES = 256 << 20
HOST_CYCLES = 1 << 19  # of the GPU's clock: longer than Python takes to launch


def skipped(name, error):
    print(f"peers.py: {name}: skipped: {str(error).splitlines()[0] if str(error) else error!r}", file=sys.stderr)


def time_us(call, count=20, hide_host=False):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for i in range(-5, count):
        if hide_host:
            torch.cuda._sleep(HOST_CYCLES)
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
        skipped(name, error)


class Paged:
    """`requests` requests of `kv` tokens each, in shuffled pages, as often as it takes to leave the L2."""

    def __init__(self, requests, rows, kv):
        pages = requests * kv // PAGE
        kv_bytes = 4 * requests * kv * HEADS_KV * DIM
        self.copies = 2 + 4 * L2_BYTES // kv_bytes
        self.caches = [
            (random(pages, PAGE, HEADS_KV, DIM), random(pages, PAGE, HEADS_KV, DIM)) for _ in range(self.copies)
        ]
        self.q = random(requests * rows, HEADS_Q, DIM)
        self.qo_indptr = self.steps(requests, rows)
        self.kv_indptr = self.steps(requests, kv // PAGE)
        self.indices = torch.randperm(pages, device="cuda").to(torch.int32)
        self.last_page_len = torch.full((requests,), PAGE, dtype=torch.int32, device="cuda")
        self.heads = (HEADS_Q, HEADS_KV, DIM, PAGE)
        self.types = {"q_data_type": torch.float16, "kv_data_type": torch.float16}

    @staticmethod
    def steps(count, step):
        return torch.arange(count + 1, dtype=torch.int32, device="cuda") * step

    def measure(self, wrapper, count):
        out = torch.empty_like(self.q)
        first = wrapper.run(self.q, self.caches[0], out=out).clone()
        run = lambda i: wrapper.run(self.q, self.caches[i % self.copies], out=out)
        return first, time_us(run, count, hide_host=True)


def workspace():
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")


def agree(one, other):
    """Two kernels of one library must say the same, else neither is a peer."""
    worst = (one.float() - other.float()).abs().max().item()
    if not worst < 5e-3:
        raise RuntimeError(f"its kernels differ by {worst}")


def flashinfer_decode(flashinfer, name, requests, kv, count):
    batch = Paged(requests, 1, kv)
    found = []
    for tensor_cores in False, True:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            workspace(), "NHD", use_tensor_cores=tensor_cores, backend="fa2"
        )
        wrapper.plan(batch.kv_indptr, batch.indices, batch.last_page_len, *batch.heads, **batch.types)
        found.append(batch.measure(wrapper, count))
    agree(found[0][0], found[1][0])
    print(f"flashinfer_python_{name}_us {min(us for _, us in found):.2f}", flush=True)


def flashinfer_chunk(flashinfer, name, rows, kv):
    batch = Paged(1, rows, kv)
    found = {}
    for backend in "fa2", "fa3":
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace(), "NHD", backend=backend)
        wrapper.plan(
            batch.qo_indptr, batch.kv_indptr, batch.indices, batch.last_page_len, *batch.heads, causal=True, **batch.types
        )
        found[backend] = batch.measure(wrapper, 50)
    agree(found["fa2"][0], found["fa3"][0])
    print(f"fa3_{name}_us {found['fa3'][1]:.2f}", flush=True)
    print(f"flashinfer_python_{name}_us {min(us for _, us in found.values()):.2f}", flush=True)


def measure_flashinfer():
    try:
        import flashinfer
    except Exception as error:  # whatever a package does that is not complete
        return skipped("flashinfer", error)
    print(f"peers.py: flashinfer {getattr(flashinfer, '__version__', 'of no version')}", file=sys.stderr)
    calls = [
        (flashinfer_decode, "decode_64x8192", 64, 8192, 30),
        (flashinfer_decode, "decode_8x4096", 8, 4096, 100),
        (flashinfer_decode, "decode_1x8192", 1, 8192, 300),
        (flashinfer_chunk, "chunk_1024_at_16384", 1024, 16384),
        (flashinfer_chunk, "rows_64_at_32768", 64, 32768),
    ]
    for call, *arguments in calls:
        try:
            call(flashinfer, *arguments)
        except Exception as error:
            skipped(arguments[0], error)
        torch.cuda.empty_cache()


def product_us(size, count):
    sets = [(random(size, size), random(size, size)) for _ in range(3)]
    return time_us(lambda i: torch.mm(*sets[i % 3]), count)


def measure():
    print(f"matmul_8192_tflops {2 * 8192**3 / product_us(8192, 20) * 1e-6:.1f}", flush=True)
    for rows, kv, shape in (8192, 8192, "8192"), (16384, 16384, "16384"):
        attention(f"cudnn_prefill_{shape}", SDPBackend.CUDNN_ATTENTION, rows, kv)
        attention(f"fa2_prefill_{shape}", SDPBackend.FLASH_ATTENTION, rows, kv)
    attention("fa2_chunk_1024_at_16384", SDPBackend.FLASH_ATTENTION, 1024, 16384)
    measure_flashinfer()
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="DIR", default=os.environ.get("ATTND_PEERS"))
    parser.add_argument("what", choices=calls)
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, options.peers)
    calls[options.what]()
