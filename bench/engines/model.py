"""The layers around attention, as an engine has them: sizes of a model, fp16, random weights.

A step is one CUDA graph over all layers: rms norm, QKV product, rotation and update of the cache,
attention, O product, rms norm, gate/up product, SiLU, down product. A step stores the keys and
values of its own rows where the last one did, so every step computes the same and any of them can
be verified.
"""

import dataclasses

import rotate
from cases import CACHE_TOKENS, LAYERS, ROLES
from ways import PagedBatch

EPSILON = 1e-5


@dataclasses.dataclass
class Buffers:
    """What attention of each layer reads and writes."""

    q: list  # [rows, heads_q, dim], cut out of qkv
    o: list  # [rows, heads_q, dim]
    k: list  # [pages, page_size, heads_kv, dim]
    v: list
    new_k: list = ()  # [rows, heads_kv, dim], cut out of qkv
    new_v: list = ()
    cos_sin: object = None  # float32 [positions, 2, dim / 2]


class Weights:
    """Of all layers; @longest: tokens that a request may have."""

    def __init__(self, torch, sizes, seed, layers=LAYERS, longest=CACHE_TOKENS):
        self.torch, self.sizes = torch, sizes
        torch.manual_seed(seed)
        self.layers = [self.make_layer() for _ in range(layers)]
        self.rotate = rotate.Kernel()
        self.cos_sin = rotate.table(torch, longest, sizes.head_dim)

    def normal(self, deviation, *shape):
        tensor = self.torch.empty(*shape, dtype=self.torch.float16, device="cuda")
        return tensor.normal_(0, deviation)

    def make_layer(self):
        """Weights as torch.nn.Linear keeps them, [out, in], seen from the other side."""
        sizes = self.sizes

        def linear(out, inner):
            return self.normal(inner**-0.5, out, inner).t()

        ones = self.torch.ones(sizes.hidden, dtype=self.torch.float16, device="cuda")
        return dict(
            norm=ones,
            qkv=linear(sizes.qkv, sizes.hidden),
            out=linear(sizes.hidden, sizes.heads_q * sizes.head_dim),
            gate_up=linear(2 * sizes.ffn, sizes.hidden),
            down=linear(sizes.hidden, sizes.ffn),
        )


class Model(Weights):
    """Weights, and a cache of pages; every role of this process uses the same."""

    def __init__(self, torch, sizes, page_size, seed):
        longest = max(tokens for role in ROLES.values() for _, tokens in role)
        super().__init__(torch, sizes, seed, longest=longest)
        self.page_size = page_size
        pages = CACHE_TOKENS // page_size
        self.cache = self.normal(
            1.0, LAYERS, 2, pages, page_size, sizes.heads_kv, sizes.head_dim
        )  # fmt: skip
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed))
        self.pages = order.tolist()


class Room:
    """Buffers for steps of so many rows over K and V of each layer (@planes), and the layers. What
    a step stores lies where @positions and @slots say, int32 on the GPU."""

    def __init__(self, torch, model, planes, rows, positions, slots):
        self.torch, self.model, sizes = torch, model, model.sizes
        self.positions, self.slots, self.planes = positions, slots, planes
        self.x0 = model.normal(1.0, rows, sizes.hidden)
        self.x = torch.empty_like(self.x0)
        self.qkv = [model.normal(1.0, rows, sizes.qkv) for _ in planes]
        self.gate_up = model.normal(1.0, rows, 2 * sizes.ffn)
        self.activated = model.normal(1.0, rows, sizes.ffn)
        o = [model.normal(1.0, rows, sizes.heads_q, sizes.head_dim) for _ in planes]
        self.cut(o)

    def cut(self, o):
        """q of each layer out of its qkv, and the arguments of what stores k and v."""
        sizes = self.model.sizes
        heads = sizes.heads_q, sizes.heads_kv, sizes.heads_kv
        parts = [
            [part.unflatten(1, (-1, sizes.head_dim))
             for part in qkv.split([count * sizes.head_dim for count in heads], 1)]
            for qkv in self.qkv
        ]  # fmt: skip
        q, new_k, new_v = (list(of_layers) for of_layers in zip(*parts))
        self.buffers = Buffers(
            q=q, o=o, k=[k for k, _ in self.planes], v=[v for _, v in self.planes],
            new_k=new_k, new_v=new_v, cos_sin=self.model.cos_sin,
        )  # fmt: skip
        self.appends = [self.append_of(layer) for layer in range(len(self.planes))]

    def narrowed(self, rows):
        """The same buffers for a step of fewer rows: the first ones."""
        room = object.__new__(Room)
        room.torch, room.model, room.planes = self.torch, self.model, self.planes
        room.positions, room.slots = self.positions, self.slots
        for name in ("x0", "x", "gate_up", "activated"):
            setattr(room, name, getattr(self, name)[:rows])
        room.qkv = [qkv[:rows] for qkv in self.qkv]
        room.cut([o[:rows] for o in self.buffers.o])
        return room

    def append_of(self, layer):
        """Arguments of a layer's rotation and update of the cache."""
        sizes, buffers = self.model.sizes, self.buffers
        tensors = (
            self.qkv[layer], self.positions, self.slots, self.model.cos_sin, buffers.k[layer],
            buffers.v[layer],
        )  # fmt: skip
        return rotate.Args(
            *(tensor.data_ptr() for tensor in tensors), len(self.x), sizes.heads_q, sizes.heads_kv,
            sizes.head_dim,
        )  # fmt: skip

    def poison(self):
        """What a step writes: o, and new rows of the cache."""
        for o in self.buffers.o:
            o.fill_(float("nan"))
        for plane in [*self.buffers.k, *self.buffers.v]:
            plane.flatten(0, 1)[self.slots.long()] = float("nan")

    def appended(self):
        """q as attention has seen it, where a way has left it as it was. What that way has stored
        is held against what the separate kernel stores there: AssertionError."""
        buffers, slots = self.buffers, self.slots.long()
        planes = [
            (f"{name} of layer {layer}, stored by the run", plane.flatten(0, 1))
            for name, of_layers in (("K", buffers.k), ("V", buffers.v))
            for layer, plane in enumerate(of_layers)
        ]
        stored = [plane[slots] for _, plane in planes]
        for layer in range(len(self.planes)):
            self.append(layer)
        for (name, plane), found in zip(planes, stored):  # NaN is equal to nothing
            self.torch.testing.assert_close(
                found, plane[slots], rtol=2e-2, atol=1e-2, msg=lambda why: f"{name}: {why}"
            )

    def append(self, layer):
        """q and k rotated, k and v in the cache, into the current stream."""
        self.model.rotate.launch(
            self.appends[layer], self.torch.cuda.current_stream().cuda_stream
        )  # fmt: skip

    def run(self, way):
        """All layers, into the current stream."""
        torch, x, hidden = self.torch, self.x, self.model.sizes.hidden
        gate, up = self.gate_up.split(self.model.sizes.ffn, 1)
        x.copy_(self.x0)
        for i, layer in enumerate(self.model.layers):
            normed = torch.nn.functional.rms_norm(x, (hidden,), layer["norm"], EPSILON)
            torch.mm(normed, layer["qkv"], out=self.qkv[i])
            if not way.appends:
                self.append(i)
            way.attend(i)
            x.addmm_(self.buffers.o[i].flatten(1), layer["out"])
            normed = torch.nn.functional.rms_norm(x, (hidden,), layer["norm"], EPSILON)
            torch.mm(normed, layer["gate_up"], out=self.gate_up)
            torch.mul(torch.nn.functional.silu(gate), up, out=self.activated)
            x.addmm_(self.activated, layer["down"])


class Step(Room):
    """The batch of one role, and the buffers of its steps."""

    def __init__(self, torch, model, role):
        self.batch = PagedBatch(ROLES[role], model.pages, model.page_size)
        places = (
            torch.tensor(values, dtype=torch.int32, device="cuda") for values in self.batch.places()
        )
        planes = [(layer[0], layer[1]) for layer in model.cache]
        super().__init__(torch, model, planes, sum(self.batch.rows), *places)

    def verify_append(self):
        """One append by itself, of the last layer, against its definition."""
        torch, layer = self.torch, LAYERS - 1
        self.qkv[layer].normal_(0, 1)
        before = self.qkv[layer].clone()
        self.append(layer)
        planes = (self.buffers.k[layer], self.buffers.v[layer])
        k, v = (plane.flatten(0, 1)[self.slots.long()] for plane in planes)
        cos_sin = self.model.cos_sin[self.positions.long()]
        rotate.verify(torch, before, self.qkv[layer], k, v, self.model.sizes, cos_sin)

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
