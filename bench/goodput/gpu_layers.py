"""Whole layers of a model on a GPU, step after step: the layers of bench/engines, launched eagerly.

Shapes change with every step, so no graph is captured on either side. FlashInfer and attnd both
plan each step on the host, from the same arrays.
"""

import pathlib
import sys

import numpy

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
import flashinfer_way  # noqa: E402
import model  # noqa: E402
import reference  # noqa: E402
from batch import StepBatch  # noqa: E402
from leases import LeasedPages  # noqa: E402
from scheduler import FreePages  # noqa: E402


class Layers:
    """execute() of one engine. @cache: planes, pages, plan(batch, room), attend(layer)."""

    def __init__(self, torch, weights, cache, limits, priority):
        self.torch, self.cache, self.limits = torch, cache, limits
        self.page_size = limits.page_size
        self.verified, self.worst = 0, 0.0
        self.positions, self.slots = (
            torch.zeros(limits.budget, dtype=torch.int32, device="cuda") for _ in range(2)
        )
        self.staged = torch.zeros(2, limits.budget, dtype=torch.int32).pin_memory()
        room = model.Room(
            torch, weights, cache.planes, limits.budget, self.positions, self.slots
        )  # fmt: skip
        self.rooms = {limits.budget: room}
        self.whole = room
        self.stream = torch.cuda.Stream(priority=priority)

    def room(self, rows):
        if rows not in self.rooms:
            self.rooms[rows] = self.whole.narrowed(rows)
        return self.rooms[rows]

    def execute(self, parts):
        """@parts: [(sequence, rows, tokens)]. Returns when the step is computed."""
        batch = StepBatch([(s.pages, rows, tokens) for s, rows, tokens in parts], self.page_size)
        self.launch(batch)
        self.stream.synchronize()

    def launch(self, batch):
        torch, rows = self.torch, int(batch.qo_indptr[-1])
        room = self.room(rows)
        with torch.cuda.stream(self.stream):
            for staged, on_gpu, places in zip(
                self.staged, (self.positions, self.slots), batch.places()
            ):
                staged[:rows] = torch.from_numpy(places)
                on_gpu[:rows].copy_(staged[:rows], non_blocking=True)
            self.cache.plan(batch, room)
            room.run(self.cache)

    def verify(self, batch, seed):
        """A step into poisoned outputs; a sample of its rows of all layers is compared."""
        room = self.room(int(batch.qo_indptr[-1]))
        with self.torch.cuda.stream(self.stream):
            room.poison()
        self.launch(batch)
        self.stream.synchronize()
        found = reference.verify(self.torch, batch, room.buffers, seed)
        self.verified += found["rows"]
        self.worst = max(self.worst, found["worst"])


class FlashInferCache:
    """Pages in tensors of the engine's own. Chunks by FA3, or FA2 where that is not built; decodes
    by its kernels on tensor cores."""

    def __init__(self, torch, flashinfer, weights, pages, page_size):
        sizes = weights.sizes
        memory = torch.zeros(
            len(weights.layers), 2, pages, page_size, sizes.heads_kv, sizes.head_dim,
            dtype=torch.float16, device="cuda",
        )  # fmt: skip
        self.torch, self.flashinfer = torch, flashinfer
        self.planes = [(layer[0], layer[1]) for layer in memory]
        self.pages, self.calls, self.wrappers = FreePages(pages), [], {}
        self.backend = "fa3"

    def plan(self, batch, room):
        planner = Replanner(self, batch, room.buffers)
        cut, count = batch.chunks, len(batch.rows)
        self.calls = []
        if cut:
            self.calls.append(self.prefill(planner, cut))
        if cut < count:
            self.calls.append(planner.decode(True, cut, count))

    def prefill(self, planner, cut):
        try:
            return planner.prefill(self.backend, 0, cut)
        except Exception:
            if self.backend == "fa2":
                raise
            self.backend = "fa2"
            return planner.prefill(self.backend, 0, cut)

    appends = False

    def attend(self, layer):
        for call in self.calls:
            call(layer)

    def close(self):
        self.planes = self.wrappers = None


class Replanner(flashinfer_way.Planner):
    """Plans step after step in the same wrappers. Arrays are on the host, where its plan reads them
    and copies them itself, except for the page ids, which it takes as they are."""

    def __init__(self, cache, batch, buffers):
        super().__init__(cache.torch, cache.flashinfer, batch, buffers)
        self.wrappers = cache.wrappers

    def arrays(self, first, last):
        qo, kv, indices, lengths = (
            self.torch.from_numpy(numpy.ascontiguousarray(values, numpy.int32))
            for values in self.batch.part(first, last)
        )
        return qo, kv, indices.cuda(non_blocking=True), lengths

    def kept(self, key, make):
        if key not in self.wrappers:
            self.wrappers[key] = make()
        return self.wrappers[key]

    def prefill_wrapper(self, backend):
        return self.kept(backend, lambda: super(Replanner, self).prefill_wrapper(backend))

    def decode_wrapper(self, tensor_cores):
        return self.kept(
            tensor_cores, lambda: super(Replanner, self).decode_wrapper(tensor_cores)
        )  # fmt: skip


class ServiceCache:
    """A pool of the service; one fused plan a step. @token: of another engine's pool, or None."""

    def __init__(self, weights, socket_path, name, pages, page_size, limits, token=None):
        import attnd

        sizes = weights.sizes
        self.session = attnd.Session(socket_path, name)
        if token:
            self.pool = attnd.PagePool.attach(self.session, token)
        else:
            self.pool = attnd.PagePool(
                self.session, len(weights.layers), pages, page_size, sizes.heads_kv,
                sizes.head_dim, device="cuda",
            )  # fmt: skip
        views = [self.pool.kv_cache(layer) for layer in range(len(weights.layers))]
        self.planes = [(view[0].torch(), view[1].torch()) for view in views]
        self.pages, self.limits = LeasedPages(attnd, self.pool), limits
        self.attention, self.room = attnd.BatchAttention(self.pool), None

    def prepare(self, room):
        """A plan as large as they come, and the runs of all layers: what blocks, in front of all
        steps. It names pages that are leased, and computes nothing."""
        budget, size = self.limits.budget, self.limits.page_size
        requests = min(self.limits.running, budget)
        rows = [budget // requests + (i < budget % requests) for i in range(requests)]
        each = max(-(-rows[0] // size), self.pool.pages // 2 // requests)
        pages = self.pages.alloc(each * requests)
        if pages is None:
            raise RuntimeError(
                f"the pool has {self.pool.pages} pages: too few for {requests} requests"
            )
        held = [pages[each * i : each * (i + 1)] for i in range(requests)]
        self.plan(StepBatch([(p, n, each * size) for p, n in zip(held, rows)], size), room)
        for layer, (q, o) in enumerate(zip(room.buffers.q, room.buffers.o)):
            self.attention.prepare(q, layer, o)
        self.pages.free(pages)

    def options(self, room):
        q, o = room.buffers.q[0], room.buffers.o[0]
        return {"causal": True, "q_strides": q.stride()[:2], "out_strides": o.stride()[:2]}

    def plan(self, batch, room):
        self.room = room
        heads = room.buffers.q[0].shape[1]
        self.attention.plan(*batch.part(0, len(batch.rows)), heads, **self.options(room))

    appends = False

    def attend(self, layer):
        buffers = self.room.buffers
        self.attention.run(buffers.q[layer], layer, buffers.o[layer])

    def lane_error(self):
        self.attention.lane_error()

    def share(self):
        return self.pool.share(writable=True)

    def close(self):
        self.pages.give_back()
        self.planes = self.room = None
        self.attention.close()
        self.pool.release()
        self.session.close()
