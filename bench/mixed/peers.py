#!/usr/bin/env python3
"""FlashInfer's ways to compute what bench/pod and bench/cascade measure, from its Python package.

peers.py [--peers DIR] [--sample N] [--heads 32/8] [--only WAY,...] pod|cascade > FILE

A line a way of a case: "<case> flashinfer_<what>_<way> <microseconds>". Of pod, <what> is prefill, decode, or
one: a call, or calls in order or side by side, that do both. The same --sample picks the same cases as the
programs do. Each way is planned before it is timed; times are medians of event pairs behind a kernel that waits,
so that they are the GPU's and not Python's, and behind a write of 256 MB. All ways of a case must agree. What is
not here or does not work is said on standard error and left out. fp16, head_dim 128, pages of 16, shuffled.
"""
import argparse
import math
import os
import sys

DIM, PAGE = 128, 16
WORKSPACE_BYTES, FLUSH_BYTES, WAIT_CYCLES = 256 << 20, 256 << 20, 1 << 20
CHUNKS, CONTEXTS, DECODES, LENGTHS = (512, 1024, 2048), (4096, 12288, 16384), (16, 32, 64, 128, 220), (4096, 12288, 16384)
CASCADES = (
    *((8192, 64, 128), (1024, 16, 128), (1024, 64, 128), (1024, 256, 128), (8192, 16, 128), (8192, 256, 128)),
    *((8192, 64, 1024), (32768, 16, 128), (32768, 64, 128), (32768, 256, 128), (0, 8, 4096), (0, 64, 2048)),
)


def say(words):
    print(f"peers.py: {words}", file=sys.stderr, flush=True)


def pod_cases():
    for i in range(135):
        yield CHUNKS[i % 3], CONTEXTS[i // 3 % 3], DECODES[i // 9 % 5], LENGTHS[i // 45]


class Gpu:
    """What is the same for all cases."""

    def __init__(self, torch, flashinfer, heads):
        self.torch, self.flashinfer, (self.heads_q, self.heads_kv) = torch, flashinfer, heads
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.side = torch.cuda.Stream()
        self.scale = 1 / math.sqrt(DIM)
        self.types = {"q_data_type": torch.float16, "kv_data_type": torch.float16, "sm_scale": self.scale}
        self.shape = (self.heads_q, self.heads_kv, DIM, PAGE)

    def random(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.float16)

    def ints(self, values):
        return self.torch.tensor(list(values), dtype=self.torch.int32, device="cuda")

    def workspace(self):
        return self.torch.zeros(WORKSPACE_BYTES, dtype=self.torch.uint8, device="cuda")

    def time_us(self, call, count):
        times = []
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(-3, count):
            self.torch.cuda._sleep(WAIT_CYCLES)
            self.flush.fill_(1)
            begin.record()
            call()
            end.record()
            end.synchronize()
            if i >= 0:
                times.append(begin.elapsed_time(end) * 1e3)
        return sorted(times)[len(times) // 2]


class Batch:
    """Requests in order: pages of each, and rows of q."""

    def __init__(self, gpu, rows, lengths, prefix=0):
        pages_each = [(length + PAGE - 1) // PAGE for length in lengths]
        common = prefix // PAGE
        total = common + sum(pages - common for pages in pages_each)
        ids = gpu.torch.randperm(total).tolist()
        at, self.pages = common, []
        for pages in pages_each:
            self.pages.append(ids[:common] + ids[at : at + pages - common])
            at += pages - common
        self.gpu, self.rows, self.lengths, self.common = gpu, rows, lengths, common
        self.q = gpu.random(sum(rows), gpu.heads_q, DIM)
        self.kv = gpu.random(total, PAGE, gpu.heads_kv, DIM), gpu.random(total, PAGE, gpu.heads_kv, DIM)

    def arrays(self, first, end, skip=0):
        """qo_indptr, kv_indptr, indices, last_page_len, kv_len of requests first..end."""
        qo, kv, indices = [0], [0], []
        for r in range(first, end):
            indices += self.pages[r][skip:]
            qo.append(qo[-1] + self.rows[r])
            kv.append(len(indices))
        last = [(length - 1) % PAGE + 1 for length in self.lengths[first:end]]
        return [self.gpu.ints(values) for values in (qo, kv, indices, last, self.lengths[first:end])]

    def prefill(self, backend, first, end, begin_row, end_row):
        wrapper = self.gpu.flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.gpu.workspace(), "NHD", backend=backend)
        qo, kv, indices, last, _ = self.arrays(first, end)
        wrapper.plan(qo, kv, indices, last, *self.gpu.shape, causal=True, **self.gpu.types)
        return lambda: wrapper.run(self.q[begin_row:end_row], self.kv)

    def decode(self, tensor_cores, first):
        wrapper = self.gpu.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.gpu.workspace(), "NHD", use_tensor_cores=tensor_cores, backend="fa2"
        )
        _, kv, indices, last, _ = self.arrays(first, len(self.rows))
        wrapper.plan(kv, indices, last, *self.gpu.shape, **self.gpu.types)
        row = sum(self.rows[:first])
        return lambda: wrapper.run(self.q[row:], self.kv)

    def cascade(self, backend):
        wrapper = self.gpu.flashinfer.MultiLevelCascadeAttentionWrapper(2, self.gpu.workspace(), "NHD")
        if backend == "fa2":  # it picks FA3 by itself on Hopper
            wrapper._batch_prefill_wrappers = [
                self.gpu.flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.gpu.workspace(), "NHD", backend="fa2")
                for _ in range(2)
            ]
        qo, kv, indices, last, _ = self.arrays(0, len(self.rows), self.common)
        ints = self.gpu.ints
        wrapper.plan(
            [ints([0, sum(self.rows)]), qo],
            [ints([0, self.common]), kv],
            [ints(self.pages[0][: self.common]), indices],
            [ints([PAGE]), last],
            *self.gpu.shape,
            causal=True,
            sm_scale=self.gpu.scale,
            q_data_type=self.gpu.torch.float16,
        )
        return lambda: wrapper.run(self.q, self.kv)

    def batch_pod(self):
        wrapper = self.gpu.flashinfer.BatchPODWithPagedKVCacheWrapper(
            self.gpu.torch.zeros(2 * WORKSPACE_BYTES, dtype=self.gpu.torch.uint8, device="cuda"), "NHD"
        )
        wrapper.plan(
            *self.arrays(0, 1)[:4],
            *self.arrays(1, len(self.rows))[:4],
            num_qo_heads=self.gpu.heads_q,
            num_kv_heads=self.gpu.heads_kv,
            head_dim=DIM,
            page_size=PAGE,
            **self.gpu.types,
        )
        row = self.rows[0]
        run = lambda: wrapper.run(self.q[:row], self.kv, self.q[row:], self.kv, causal_p=True)
        return lambda: self.gpu.torch.cat(run()) if self.checking else run()

    def pod(self):
        wrapper = self.gpu.flashinfer.PODWithPagedKVCacheWrapper(self.gpu.workspace(), "NHD")
        _, kv, indices, last, _ = self.arrays(1, len(self.rows))
        wrapper.plan(kv, indices, last, *self.gpu.shape, **self.gpu.types)
        chosen = self.gpu.torch.tensor(self.pages[0], device="cuda")
        shape = (-1, self.gpu.heads_kv, DIM)
        k, v = (plane[chosen].reshape(shape)[: self.lengths[0]].contiguous() for plane in self.kv)
        row = self.rows[0]
        run = lambda: wrapper.run(self.q[:row], k, v, self.q[row:], self.kv, causal_p=True, sm_scale_p=self.gpu.scale)
        return lambda: self.gpu.torch.cat(run()) if self.checking else run()

    def persistent(self):
        wrapper = self.gpu.flashinfer.BatchAttention(kv_layout="NHD", device="cuda")
        qo, kv, indices, _, lengths = self.arrays(0, len(self.rows))
        wrapper.plan(
            *(qo, kv, indices, lengths, self.gpu.heads_q, self.gpu.heads_kv, DIM, DIM, PAGE), causal=True, **self.gpu.types
        )
        out = self.gpu.torch.zeros_like(self.q)
        lse = self.gpu.torch.zeros(self.q.shape[0], self.gpu.heads_q, device="cuda")
        return lambda: wrapper.run(self.q, self.kv, out=out, lse=lse)[0]

    def together(self, backend, side_by_side):
        """Prefill, then decode; or both at once, in two streams."""
        torch, row = self.gpu.torch, self.rows[0]
        first, second = self.prefill(backend, 0, 1, 0, row), self.decode(True, 1)
        fork, join = torch.cuda.Event(), torch.cuda.Event()

        def run():
            if not side_by_side:
                both = first(), second()
            else:
                fork.record()
                self.gpu.side.wait_event(fork)
                with torch.cuda.stream(self.gpu.side):
                    decoded = second()
                    join.record()
                both = first(), decoded
                torch.cuda.current_stream().wait_event(join)
            return torch.cat(both) if self.checking else both

        return run


def pod_ways(batch):
    end, row = len(batch.rows), batch.rows[0]
    for backend in "fa2", "fa3":
        yield f"prefill_{backend}", lambda backend=backend: batch.prefill(backend, 0, 1, 0, row)
    for name, tensor_cores in ("tc", True), ("cc", False):
        yield f"decode_{name}", lambda tensor_cores=tensor_cores: batch.decode(tensor_cores, 1)
    for backend in "fa2", "fa3":
        yield f"one_serial_{backend}", lambda backend=backend: batch.together(backend, False)
        yield f"one_streams_{backend}", lambda backend=backend: batch.together(backend, True)
        yield f"one_prefill_{backend}", lambda backend=backend: batch.prefill(backend, 0, end, 0, None)
    yield "one_pod", batch.pod
    yield "one_batch_pod", batch.batch_pod
    yield "one_persistent", batch.persistent


def cascade_ways(batch):
    yield "decode_tc", lambda: batch.decode(True, 0)
    if batch.common:
        yield "cascade_fa2", lambda: batch.cascade("fa2")
        yield "cascade_fa3", lambda: batch.cascade("fa3")


def agree(results, name, out, torch):
    """The first way of each kind judges the others of that kind."""
    kind = name.split("_")[0]
    if kind == "cascade":
        kind = "decode"
    first = results.setdefault(kind, out.float())
    worst = (first - out.float()).abs().max().item()
    if first.shape != out.shape or not worst < 1e-2:
        raise RuntimeError(f"it differs from the others by {worst}")


def measure(gpu, label, batch, ways, only, count):
    results = {}
    for name, make in ways:
        if only and not any(name.startswith(word) for word in only):
            continue
        try:
            call = make()
            batch.checking = True
            agree(results, name, call(), gpu.torch)
            batch.checking = False
            print(f"{label} flashinfer_{name} {gpu.time_us(call, count):.2f}", flush=True)
        except Exception as error:  # whatever a package does that is not complete
            say(f"{label} {name}: left out: {str(error).splitlines()[0] if str(error) else error!r}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", metavar="DIR", default=os.environ.get("ATTND_PEERS"))
    parser.add_argument("--sample", type=int, default=1)
    parser.add_argument("--heads", default="32/8")
    parser.add_argument("--only", default="")
    parser.add_argument("--count", type=int, default=9)
    parser.add_argument("what", choices=("pod", "cascade"))
    options = parser.parse_args()
    if options.peers:
        sys.path.insert(0, options.peers)
    try:
        import flashinfer
        import torch
    except Exception as error:
        say(f"no FlashInfer here, no peer is measured: {error}")
        return 1
    say(f"flashinfer {getattr(flashinfer, '__version__', 'of no version')}")
    gpu = Gpu(torch, flashinfer, [int(number) for number in options.heads.split("/")])
    only = [word for word in options.only.split(",") if word]
    if options.what == "pod":
        for chunk, context, decodes, length in list(pod_cases())[:: options.sample]:
            batch = Batch(gpu, [chunk] + [1] * decodes, [context] + [length] * decodes)
            measure(gpu, f"{chunk}@{context}+{decodes}x{length}", batch, pod_ways(batch), only, options.count)
            del batch
            torch.cuda.empty_cache()
    else:
        for prefix, requests, own in CASCADES[:: options.sample]:
            batch = Batch(gpu, [1] * requests, [prefix + own] * requests, prefix)
            measure(gpu, f"{prefix}_{requests}x{own}", batch, cascade_ways(batch), only, options.count)
            del batch
            torch.cuda.empty_cache()
    return 0


if __name__ == "__main__":
    sys.exit(main())
