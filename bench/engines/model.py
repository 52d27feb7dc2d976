"""The layers around attention, as an engine has them: llama-3-8b's, fp16, random weights.

A step is one CUDA graph over all layers: rms norm, QKV product, attention, O product, rms norm,
gate/up product, SiLU, down product. Keys and values of the context lie in the cache already:
nothing is appended, so every step computes the same and any of them can be verified.
"""

import dataclasses

from cases import LAYERS, PAGE_SIZE, PAGES, ROLES, rows_of
from ways import PagedBatch

HIDDEN, HEADS_Q, HEADS_KV, DIM, INTERMEDIATE = 4096, 32, 8, 128, 14336
QKV = (HEADS_Q + 2 * HEADS_KV) * DIM
EPSILON = 1e-5


@dataclasses.dataclass
class Buffers:
    """What attention of each layer reads and writes."""

    q: list  # [rows, heads_q, dim], cut out of qkv
    o: list  # [rows, heads_q, dim]
    k: list  # [pages, page_size, heads_kv, dim]
    v: list


class Model:
    """Weights, and a cache of pages; every role of this process uses the same."""

    def __init__(self, torch, seed):
        self.torch = torch
        torch.manual_seed(seed)
        self.layers = [self.make_layer() for _ in range(LAYERS)]
        self.cache = self.normal(1.0, LAYERS, 2, PAGES, PAGE_SIZE, HEADS_KV, DIM)
        order = torch.randperm(PAGES, generator=torch.Generator().manual_seed(seed))
        self.pages = order.tolist()

    def normal(self, deviation, *shape):
        tensor = self.torch.empty(*shape, dtype=self.torch.float16, device="cuda")
        return tensor.normal_(0, deviation)

    def make_layer(self):
        """Weights as torch.nn.Linear keeps them, [out, in], seen from the other side."""

        def linear(out, inner):
            return self.normal(inner**-0.5, out, inner).t()

        ones = self.torch.ones(HIDDEN, dtype=self.torch.float16, device="cuda")
        return dict(
            norm=ones,
            qkv=linear(QKV, HIDDEN),
            out=linear(HIDDEN, HIDDEN),
            gate_up=linear(2 * INTERMEDIATE, HIDDEN),
            down=linear(HIDDEN, INTERMEDIATE),
        )


class Step:
    """The batch of one role, and the buffers of its steps."""

    def __init__(self, torch, model, role):
        self.torch, self.model = torch, model
        self.batch = PagedBatch(ROLES[role], model.pages)
        rows = rows_of(role)
        self.x0 = model.normal(1.0, rows, HIDDEN)
        self.x = torch.empty_like(self.x0)
        self.qkv = [model.normal(1.0, rows, QKV) for _ in range(LAYERS)]
        self.gate_up = model.normal(1.0, rows, 2 * INTERMEDIATE)
        self.activated = model.normal(1.0, rows, INTERMEDIATE)
        cut = HEADS_Q * DIM
        self.buffers = Buffers(
            q=[qkv[:, :cut].unflatten(1, (HEADS_Q, DIM)) for qkv in self.qkv],
            o=[model.normal(1.0, rows, HEADS_Q, DIM) for _ in range(LAYERS)],
            k=[layer[0] for layer in model.cache],
            v=[layer[1] for layer in model.cache],
        )

    def poison(self):
        for o in self.buffers.o:
            o.fill_(float("nan"))

    def run(self, way):
        """All layers, into the current stream."""
        torch, x = self.torch, self.x
        gate, up = self.gate_up.split(INTERMEDIATE, 1)
        x.copy_(self.x0)
        for i, layer in enumerate(self.model.layers):
            normed = torch.nn.functional.rms_norm(x, (HIDDEN,), layer["norm"], EPSILON)
            way.announce()
            torch.mm(normed, layer["qkv"], out=self.qkv[i])
            way.attend(i)
            x.addmm_(self.buffers.o[i].flatten(1), layer["out"])
            normed = torch.nn.functional.rms_norm(x, (HIDDEN,), layer["norm"], EPSILON)
            torch.mm(normed, layer["gate_up"], out=self.gate_up)
            torch.mul(torch.nn.functional.silu(gate), up, out=self.activated)
            x.addmm_(self.activated, layer["down"])

    def capture(self, way):
        """A graph of run(way). What loads kernels runs once before."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.run(way)
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.run(way)
        torch.cuda.synchronize()
        return graph
