"""Attention by FlashInfer in the engine's own process: of its ways, the fastest for the batch.

Chunks go to its FA2 or FA3, decodes to its kernels for CUDA cores or for tensor cores, and the
whole batch to one of its calls that take it all. Each is planned once and timed before anything is
measured. A way that is not built, that cannot be captured where that is how it is timed, or whose
results differ from the others', is left out.
"""

import math
import os
import sys
import tempfile

WORKSPACE_BYTES = 256 << 20
REPLAYS = 3
DIFFERENCE_MAX = 4e-3  # root mean square over that of the first way


def import_flashinfer(peers):
    """The package; @peers: a folder to look in first, or None. Nothing is compiled here."""
    if peers:
        sys.path.insert(0, os.path.abspath(peers))
    base = os.path.join(tempfile.gettempdir(), f"attnd-flashinfer-{os.getuid()}")
    os.makedirs(base, exist_ok=True)
    os.environ.setdefault("FLASHINFER_WORKSPACE_BASE", base)
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
    import flashinfer

    return flashinfer


class Planner:
    """Plans FlashInfer's ways over a range of a batch's requests. A way is a call of a layer.

    @window_left: of all rows, or None. @mask: None, or the bits of a mask of all requests: (uint8,
    in which byte each request begins). What it has no kernel for, it refuses."""

    def __init__(self, torch, flashinfer, batch, buffers, window_left=None, mask=None):
        self.torch, self.flashinfer, self.batch, self.buffers = torch, flashinfer, batch, buffers
        self.options = {} if window_left is None else {"window_left": window_left}
        self.mask = mask
        heads_q, self.dim = buffers.q[0].shape[1:]
        self.heads, self.dim_vo = (heads_q, buffers.k[0].shape[2]), buffers.o[0].shape[2]
        self.common = dict(
            sm_scale=1 / math.sqrt(self.dim), q_data_type=buffers.q[0].dtype,
            kv_data_type=buffers.k[0].dtype,
        )  # fmt: skip

    @property
    def plain(self):
        """No window and no mask."""
        return not self.options and self.mask is None

    def workspace(self):
        return self.torch.zeros(WORKSPACE_BYTES, dtype=self.torch.uint8, device="cuda")

    def ints(self, values):
        return self.torch.tensor(values, dtype=self.torch.int32, device="cuda")

    def arrays(self, first, last):
        """The page table of the requests [first, last)."""
        return [self.ints(values) for values in self.batch.part(first, last)]

    def call(self, first, last, run):
        """@run(q, cache, o) over the rows of the requests [first, last)."""
        begin, end = (sum(self.batch.rows[:at]) for at in (first, last))
        buffers = self.buffers

        def attend(layer):
            cache = (buffers.k[layer], buffers.v[layer])
            run(buffers.q[layer][begin:end], cache, buffers.o[layer][begin:end])

        return attend

    def prefill_wrapper(self, backend):
        return self.flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace(), "NHD", backend=backend
        )

    def decode_wrapper(self, tensor_cores):
        return self.flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            self.workspace(), "NHD", use_tensor_cores=tensor_cores, backend="fa2"
        )

    def prefill(self, backend, first, last):
        wrapper = self.prefill_wrapper(backend)
        masked = {} if self.mask is None else {"packed_custom_mask": self.mask[0]}
        wrapper.plan(
            *self.arrays(first, last), *self.heads, self.dim,
            self.batch.page_size, head_dim_vo=self.dim_vo, causal=self.mask is None, **masked,
            **self.options, **self.common,
        )  # fmt: skip
        if self.mask is not None:  # of bits that are packed already it counts bits, and reads bytes
            wrapper._mask_indptr_buf = self.ints(self.mask[1])
        return self.call(first, last, lambda q, cache, o: wrapper.run(q, cache, out=o))

    def decode(self, tensor_cores, first, last):
        wrapper = self.decode_wrapper(tensor_cores)
        wrapper.plan(
            *self.arrays(first, last)[1:], *self.heads, self.dim,
            self.batch.page_size, **self.options, **self.common,
        )  # fmt: skip
        return self.call(first, last, lambda q, cache, o: wrapper.run(q, cache, out=o))

    def persistent(self, first, last):
        wrapper = self.flashinfer.BatchAttention(kv_layout="NHD", device="cuda")
        qo, kv, indices, _ = self.arrays(first, last)
        wrapper.plan(
            qo, kv, indices, self.ints(self.batch.tokens[first:last]), *self.heads, self.dim,
            self.dim_vo, self.batch.page_size, causal=True, **self.common,
        )  # fmt: skip
        lse = self.torch.zeros(sum(self.batch.rows), self.heads[0], device="cuda")

        def run(q, cache, o):
            wrapper.run(q, cache, out=o, lse=lse[: len(q)])

        return self.call(first, last, run)

    def ways(self, first, last):
        """{name: a function that plans it} of a range."""
        found = {}
        if all(rows == 1 for rows in self.batch.rows[first:last]):
            found["decode on tensor cores"] = lambda: self.decode(True, first, last)
            found["decode on CUDA cores"] = lambda: self.decode(False, first, last)
        else:
            found["FA2"] = lambda: self.prefill("fa2", first, last)
            if self.mask is None:
                found["FA3"] = lambda: self.prefill("fa3", first, last)
        if self.plain:
            found["BatchAttention"] = lambda: self.persistent(first, last)
        return found


class FlashInferAttention:
    """The fastest way, or the fastest of chunks and of decodes one after the other."""

    appends = False

    def __init__(self, planner, time_us):
        """@time_us(call): microseconds of a layer. RuntimeError: no way takes the batch."""
        self.planner, self.time_us, self.left_out = planner, time_us, {}
        batch = planner.batch
        count, cut = len(batch.rows), batch.chunks
        self.calls, self.name, us = self.fastest(0, count)
        if 0 < cut < count and planner.plain:
            (chunks, of_chunks, a), (decodes, of_decodes, b) = (
                self.fastest(0, cut), self.fastest(cut, count)
            )  # fmt: skip
            if a + b < us:
                self.calls, us = chunks + decodes, a + b
                self.name = f"{of_chunks}, then {of_decodes}"
        if not self.calls:
            raise RuntimeError("; ".join(f"{k}: {v}" for k, v in self.left_out.items()))

    def fastest(self, first, last):
        """Return: ([call], its name, microseconds of a layer); ([], "", inf) if there is none."""
        best, expected, planner = ([], "", math.inf), None, self.planner
        begin, end = (sum(planner.batch.rows[:at]) for at in (first, last))
        for name, plan in planner.ways(first, last).items():
            try:
                call = plan()
                call(0)
                found = planner.buffers.o[0][begin:end].float()
                expected = found if expected is None else expected
                off = ((found - expected).square().mean() / expected.square().mean()).sqrt().item()
                if not off <= DIFFERENCE_MAX:
                    raise ValueError(f"its results differ by {off:.1e} of their size")
                us = self.time_us(call)
            except Exception as error:  # whatever a package does that is not complete
                self.left_out[name] = str(error).split("\n")[0][:160] or repr(error)
                continue
            if us < best[2]:
                best = ([call], name, us)
        return best

    def attend(self, layer):
        for call in self.calls:
            call(layer)

    def close(self):
        pass


def time_in_graph(torch, layers):
    """A time_us(call): a graph of all layers, replayed. The calls of a graph must not be the
    first."""

    def time_us(call):
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for layer in range(layers):
                call(layer)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(REPLAYS):
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / layers)
        return min(times)

    return time_us
