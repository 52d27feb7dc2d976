"""The ways to compute attention: objects with `attend(layer)`, called while a graph is captured.

All ways read q from the product's output, where its rows lie among those of k and v, and write the
same o. What they need is planned once, before the capture.
"""

import ctypes as c
import math
import os
import sys
import tempfile

from attnd_session import (
    CAUSAL, FP16, PAGES_OF_ENGINE, Batch, Level, Op, Plane, PlanArgs, PoolDesc, PrepareArgs,
    Session, Strides, ints, u32,
)  # fmt: skip
from cases import PAGE_SIZE

LANE = 0
WORKSPACE_BYTES = 256 << 20


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

    def __init__(self, torch, batch, buffers, socket_path, name):
        self.torch = torch
        self.session = session = Session(socket_path, name)
        self.plan = self.make_plan(batch, buffers)
        self.prepared = []
        for layer in range(len(buffers.q)):
            args = PrepareArgs(
                layer=layer,
                lane=LANE,
                q=session.export(buffers.q[layer]),
                o=session.export(buffers.o[layer]),
            )
            self.prepared.append(u32())
            session.prepare(self.plan, c.byref(args), c.byref(self.prepared[layer]))
        session.cuda_stream_open()

    def make_plan(self, batch, buffers):
        session, layers = self.session, len(buffers.q)
        pages, page_size, heads_kv, dim = buffers.k[0].shape
        rows, heads_q = buffers.q[0].shape[:2]

        def planes(tensors):
            found = [session.export(tensor) for tensor in tensors]
            strides = tensors[0].stride()[:3]
            return (Plane * layers)(*[Plane(at.memory, at.offset_bytes, *strides) for at in found])

        pool, plan = u32(), u32()
        desc = PoolDesc(
            layers=layers, pages=pages, page_size=page_size, heads_kv=heads_kv, dim_qk=dim,
            dim_vo=dim, dtype=FP16, page_owner=PAGES_OF_ENGINE, k=planes(buffers.k),
            v=planes(buffers.v),
        )  # fmt: skip
        session.pool_create(c.byref(desc), c.byref(pool))
        qo, kv, indices, last = batch.part(0, len(batch.rows))
        room = PlanArgs(
            pool=pool.value, requests=len(batch.rows), rows=rows, pages=len(indices), levels=1,
            heads_q=heads_q,
        )  # fmt: skip
        session.plan_create(c.byref(room), c.byref(plan))
        level = Level(len(batch.rows), ints(qo), ints(kv), ints(indices), ints(last))
        described = Batch(
            flags=CAUSAL,
            level=c.pointer(level),
            q=Strides(*buffers.q[0].stride()[:2]),
            o=Strides(*buffers.o[0].stride()[:2]),
        )
        session.plan_set(plan, c.byref(described), c.byref(Op()))
        session.finish()
        return plan

    def attend(self, layer):
        stream = c.c_void_p(self.torch.cuda.current_stream().cuda_stream)
        self.session.cuda_run_on_stream(u32(LANE), self.prepared[layer], stream)

    def close(self):
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
