"""Where a case lies: on the GPU in a few large tensors of PyTorch, or in a session's host memory.

Both have K and V of two layers in shuffled pages, q and o, and give the judge rows and keys in
float32. On the GPU all cases lie in the same allocations, so none costs the service new memory.
"""

import time

import numpy

from shapes import BYTES, pages_of

LAYERS = 2
TORCH_TYPES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
FLUSH_BYTES = 256 << 20
FILL_ELEMENTS = 1 << 28
HOLD_CYCLES = 400_000  # of the GPU's clock, some 0.2 ms: the host's time for a call is hidden
HOLD_S = 2e-4
HOLD_DOUBLED_MAX = 4


def plane_elements(case):
    """Of K and of V of one layer; V of latents has none of its own."""
    shape = case.shape
    slots = pages_of(case.batch, shape.page) * shape.page * shape.heads_kv
    return slots * shape.dim_qk, 0 if shape.latent else slots * shape.dim_vo


class Cuda:
    """Tensors of one process on the GPU."""

    def __init__(self, torch, cases, seed):
        self.torch, self.filled = torch, None
        torch.manual_seed(seed)
        self.need = {}  # type -> bytes of the largest case
        for case in cases:
            nbytes = LAYERS * sum(plane_elements(case)) * BYTES[case.shape.type]
            self.need[case.shape.type] = max(self.need.get(case.shape.type, 0), nbytes)
        rows = max(case.batch.rows * case.shape.heads_q * case.shape.dim_qk for case in cases)
        self.kv = self.raw(max(self.need.values()))
        self.rows_q, self.rows_o, self.rows_peer = (self.raw(2 * rows) for _ in range(3))
        self.flush = torch.zeros(FLUSH_BYTES // 4, device="cuda")
        self.sink = torch.zeros((), device="cuda")

    def raw(self, nbytes):
        return self.torch.zeros(nbytes, dtype=self.torch.uint8, device="cuda")

    def typed(self, name):
        return getattr(self.torch, TORCH_TYPES[name])

    def fill(self, name):
        """Normal numbers of a type, in the pool and in q; once for all cases of the type."""
        if self.filled == name:
            return
        torch, dtype = self.torch, self.typed(name)
        room = self.kv[: self.need[name]].view(dtype)
        for at in range(0, len(room), FILL_ELEMENTS):
            part = room[at : at + FILL_ELEMENTS]
            if name == "fp8":
                part.copy_(torch.randn(len(part), device="cuda", dtype=torch.float16))
            else:
                part.normal_()
        self.rows_q.view(self.row_type(name)).normal_()
        self.filled = name

    def row_type(self, name):
        """The type of q and o beside a pool of this type."""
        return self.torch.bfloat16 if name == "bf16" else self.torch.float16

    def lay(self, case, batch):
        """@batch: the page tables. Sets k, v (by layer), q, o and o_peer."""
        shape = case.shape
        self.fill(shape.type)
        pages = pages_of(case.batch, shape.page)
        room = self.kv[: self.need[shape.type]].view(self.typed(shape.type))
        self.k, self.v, at = [], [], 0
        for _ in range(LAYERS):
            for planes, count, dim in zip(
                (self.k, self.v), plane_elements(case), (shape.dim_qk, shape.dim_vo)
            ):
                if count:
                    plane = room[at : at + count]
                    planes.append(plane.view(pages, shape.page, shape.heads_kv, dim))
                    at += count
        if shape.latent:
            self.v = [plane[..., : shape.dim_vo] for plane in self.k]
        self.pages = [self.torch.tensor(of, device="cuda") for of in batch.pages]
        self.tokens = batch.tokens
        dtype, rows = self.row_type(shape.type), case.batch.rows

        def of(raw, dim):
            count = rows * shape.heads_q * dim
            return raw.view(dtype)[:count].view(rows, shape.heads_q, dim)

        self.q = of(self.rows_q, shape.dim_qk)
        self.o, self.o_peer = (of(raw, shape.dim_vo) for raw in (self.rows_o, self.rows_peer))

    # ---- for the judge ----

    def finite(self, o):
        return bool(self.torch.isfinite(o).all().item())

    def q_rows(self, at, heads):
        return self.rows(self.q, at, heads)

    def rows(self, x, at, heads):
        return x[at, heads].float().cpu().numpy()

    def keys(self, layer, request, head):
        pages, tokens = self.pages[request], self.tokens[request]
        return tuple(
            plane[:, :, head][pages].flatten(0, 1)[:tokens].float().cpu().numpy()
            for plane in (self.k[layer], self.v[layer])
        )

    def poison(self, o):
        o.fill_(float("nan"))
        self.torch.cuda.synchronize()

    def wait(self):
        self.torch.cuda.synchronize()

    # ---- time ----

    def sample_us(self, call, layer, hold=1):
        """One call by an event pair, behind a kernel that waits and one that turns the L2 over."""
        torch = self.torch
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        torch.cuda._sleep(hold * HOLD_CYCLES)
        since = time.perf_counter()
        torch.sum(self.flush, 0, out=self.sink)
        begin.record()
        call(layer)
        end.record()
        late = time.perf_counter() - since > hold * HOLD_S
        end.synchronize()
        if late and hold < 1 << HOLD_DOUBLED_MAX:  # the GPU may have waited for the host
            return self.sample_us(call, layer, 2 * hold)
        return begin.elapsed_time(end) * 1e3

    def bytes_per_s(self):
        """Reading, measured."""
        torch = self.torch
        room = self.kv[: 4 << 30].view(torch.float32)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(8):
            begin.record()
            torch.sum(room, 0, out=self.sink)
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)
        return len(room) * 4 / min(times)


class Host:
    """Memory of a session: for runs without a GPU. fp16 only."""

    def __init__(self, session, seed):
        self.session, self.draw = session, numpy.random.default_rng(seed)

    def lay(self, case, batch):
        shape, rows = case.shape, case.batch.rows
        self.batch = batch
        self.q_memory, self.o_memory = (
            self.session.empty((rows, shape.heads_q, dim), "float16")
            for dim in (shape.dim_qk, shape.dim_vo)
        )
        self.q, self.o = self.q_memory.numpy(), self.o_memory.numpy()
        self.q[...] = self.draw.standard_normal(self.q.shape)

    def planes(self, pool):
        """K and V are the pool's own."""
        self.k, self.v = zip(
            *([x.numpy() for x in pool.kv_cache(layer)] for layer in range(LAYERS))
        )
        for plane in (*self.k, *self.v):
            plane[...] = self.draw.standard_normal(plane.shape)

    def finite(self, o):
        return bool(numpy.isfinite(o).all())

    def q_rows(self, at, heads):
        return self.rows(self.q, at, heads)

    def rows(self, x, at, heads):
        return x[at, heads].astype(numpy.float32)

    def keys(self, layer, request, head):
        pages, tokens = self.batch.pages[request], self.batch.tokens[request]
        return tuple(
            plane[pages][:, :, head].reshape(-1, plane.shape[3])[:tokens]
            for plane in (self.k[layer], self.v[layer])
        )

    def poison(self, o):
        o[...] = numpy.nan

    def wait(self):
        pass

    def sample_us(self, call, layer):
        since = time.perf_counter()
        call(layer)
        return (time.perf_counter() - since) * 1e6

    def bytes_per_s(self):
        return 1e10  # nobody compares a dry run with anything
