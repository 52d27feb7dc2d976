"""The ways to compute attention: objects with `attend(layer)`, called while a graph is captured, and
`announce()`, called in front of the product before it.

All ways read q from the product's output, where its rows lie among those of k and v, and write the
same o. What they need is planned once, before the capture.
"""

import math
import os
import pathlib
import sys
import tempfile

from cases import PAGE_SIZE

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))  # behind an installed one
WORKSPACE_BYTES = 256 << 20
ONE_WAVE_ROWS = 640  # of the QKV product, 5 x 24 tiles of 128 x 256


def starts(counts):
    """[0, a, a + b, ...] of [a, b, ...]."""
    found = [0]
    for count in counts:
        found.append(found[-1] + count)
    return found


class PagedBatch:
    """A role's requests as page tables."""

    def __init__(self, requests, pages):
        self.rows = [rows for rows, _ in requests]
        self.tokens = [tokens for _, tokens in requests]
        self.counts = [-(-tokens // PAGE_SIZE) for tokens in self.tokens]
        at = starts(self.counts)
        self.pages = [pages[at[i] : at[i + 1]] for i in range(len(requests))]

    def part(self, first, last):
        """qo_indptr, kv_indptr, kv_indices, kv_last_page_len of the requests [first, last)."""
        return (
            starts(self.rows[first:last]),
            starts(self.counts[first:last]),
            [page for pages in self.pages[first:last] for page in pages],
            [(tokens - 1) % PAGE_SIZE + 1 for tokens in self.tokens[first:last]],
        )

    @property
    def chunks(self):
        """How many requests come first that have more than one row."""
        return sum(rows > 1 for rows in self.rows)


class NoAttention:
    """The same layers without attention: the ceiling. o is what it was."""

    def announce(self):
        pass

    def attend(self, layer):
        pass

    def close(self):
        pass


class FlashInferAttention:
    """FA3 for chunks, the decode kernels on tensor cores for decodes, one after the other."""

    def __init__(self, torch, flashinfer, batch, buffers):
        self.buffers = buffers
        self.chunks, self.decodes = None, None
        heads_q, dim = buffers.q[0].shape[1:]
        heads_kv = buffers.k[0].shape[2]
        common = dict(
            sm_scale=1 / math.sqrt(dim), q_data_type=torch.float16, kv_data_type=torch.float16
        )
        cut, count = batch.chunks, len(batch.rows)
        self.row = sum(batch.rows[:cut])

        def workspace():
            return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

        def tables(first, last):
            return [
                torch.tensor(values, dtype=torch.int32, device="cuda")
                for values in batch.part(first, last)
            ]

        if cut > 0:
            self.chunks = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
                workspace(), "NHD", backend="fa3"
            )
            self.chunks.plan(
                *tables(0, cut), heads_q, heads_kv, dim, PAGE_SIZE, causal=True, **common
            )
        if cut < count:
            self.decodes = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                workspace(), "NHD", use_tensor_cores=True, backend="fa2"
            )
            self.decodes.plan(*tables(cut, count)[1:], heads_q, heads_kv, dim, PAGE_SIZE, **common)

    def announce(self):
        pass

    def attend(self, layer):
        q, o = self.buffers.q[layer], self.buffers.o[layer]
        cache = (self.buffers.k[layer], self.buffers.v[layer])
        if self.chunks:
            self.chunks.run(q[: self.row], cache, out=o[: self.row])
        if self.decodes:
            self.decodes.run(q[self.row :], cache, out=o[self.row :])

    def close(self):
        pass


class AttndAttention:
    """One session, a pool of the engine's own tensors, one plan, a prepared run a layer."""

    def __init__(self, batch, buffers, socket_path, name):
        import attnd

        self.buffers, self.refusals, self.rows = buffers, attnd.Error, batch.rows
        self.session = attnd.Session(socket_path, name)
        layers = list(zip(buffers.k, buffers.v))
        self.pool = attnd.PagePool.from_tensors(self.session, layers)
        self.attention = attnd.BatchAttention(self.pool)
        self.attention.plan(
            *batch.part(0, len(batch.rows)), buffers.q[0].shape[1], causal=True,
            q_strides=buffers.q[0].stride()[:2], out_strides=buffers.o[0].stride()[:2],
        )  # fmt: skip
        for layer in range(len(layers)):
            self.attention.prepare(buffers.q[layer], layer, buffers.o[layer])

    def announce(self):
        """A product of few rows is there at once, and so are workers when it ends; one of many
        rows has more CTAs than the GPU takes, which would wait for the workers."""
        if sum(self.rows) <= ONE_WAVE_ROWS:
            self.attention.announce()

    def attend(self, layer):
        self.attention.run(self.buffers.q[layer], layer, self.buffers.o[layer])

    def residency(self):
        return self.session.info["residency"]

    def lane_error(self):
        """What the first run failed with since this was last asked, in words, or None."""
        try:
            self.attention.lane_error()
        except self.refusals as failure:
            return str(failure)
        return None

    def close(self):
        self.attention.close()
        self.pool.release()
        self.session.close()


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
