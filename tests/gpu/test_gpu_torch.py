#!/usr/bin/env python3
"""test_gpu_torch.py - an engine of PyTorch: its tensors, its allocators, its streams and graphs.

Every client is a process of its own beside the real daemon and worker, and loads libattnd.so and
libattnd-cuda.so as any engine in Python would. Results are compared element by element with float64
by PyTorch; outputs are poisoned with NaN before. ATTND_SEED repeats a run. Exit status 77: there is no
PyTorch, or no GPU.
"""
import ctypes as c
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

PAGES, PAGE_SIZE, HEADS, HEADS_KV, DIM, LAYERS = 64, 16, 8, 2, 128, 2
SEED = int(os.environ.get("ATTND_SEED", random.SystemRandom().randrange(1 << 32)))
FP16, PAGES_OF_ENGINE, CAUSAL, LSE_LN = 1, 2, 1, 2

# ---- attnd.h ------------------------------------------------------------------------------------

u16, u32, u64, i32, i64 = c.c_uint16, c.c_uint32, c.c_uint64, c.c_int32, c.c_int64


def struct(name, /, **fields):
    """A struct of attnd.h; one that begins with `size` knows its own."""
    kind = type(name, (c.Structure,), {"_fields_": list(fields.items())})
    if "size" in fields:
        kind.__init__ = lambda self, **values: c.Structure.__init__(
            self, **{"size": c.sizeof(kind), **values}
        )
    return kind


Tensor = struct("Tensor", memory=u32, offset_bytes=u64)
Fault = struct("Fault", code=i32, field=u32, index=u64, value=i64, limit=i64)
OpenArgs = struct(
    "OpenArgs", size=u32, ring_entries=u32, arena_bytes=u64, socket_path=c.c_char_p, name=c.c_char_p
)
Plane = struct(
    "Plane", memory=u32, offset_bytes=u64, stride_page=i64, stride_token=i64, stride_head=i64
)
PoolDesc = struct(
    "PoolDesc", size=u32, layers=u32, pages=u32, page_size=u32, heads_kv=u32, dim_qk=u32, dim_vo=u32,
    dtype=u32, page_owner=u32, k=c.POINTER(Plane), v=c.POINTER(Plane), memory_kind=u32,
)  # fmt: skip
PlanArgs = struct(
    "PlanArgs", size=u32, pool=u32, requests=u32, rows=u32, pages=u32, levels=u32, heads_q=u32
)
Ints = c.POINTER(i32)
Level = struct(
    "Level", requests=u32, qo_indptr=Ints, kv_indptr=Ints, kv_indices=Ints, kv_last_page_len=Ints
)
Strides = struct("Strides", row=i64, head=i64)
Batch = struct(
    "Batch", size=u32, levels=u32, heads_q=u32, dtype=u32, flags=u32, reserve_pages=u32,
    sm_scale=c.c_float, level=c.POINTER(Level), q=Strides, o=Strides, lse=Strides, k=Strides, v=Strides,
)  # fmt: skip
Op = struct("Op", user_data=u64, lane=u16, flags=u16, timeout_us=u32)
RunArgs = struct("RunArgs", size=u32, layer=u32, q=Tensor, o=Tensor, lse=Tensor)
PrepareArgs = struct(
    "PrepareArgs", size=u32, layer=u32, lane=u32, zero=u32, q=Tensor, o=Tensor, lse=Tensor
)
Completion = struct(
    "Completion", user_data=u64, fault=Fault, operation=u32, lane=u32, begin_ns=u64, end_ns=u64
)


class Refused(Exception):
    """What a call of the library failed with."""

    def __init__(self, name, limit):
        super().__init__(f"{name}, limit {limit}")
        self.name = name


class Session:
    """One session; every call that fails raises Refused."""

    def __init__(self, path):
        self.attnd = c.CDLL("libattnd.so.0", mode=c.RTLD_GLOBAL)
        self.cuda = c.CDLL("libattnd-cuda.so.0")
        self.attnd.attnd_error_name.restype = c.c_char_p
        self.session = c.c_void_p()
        args = OpenArgs(socket_path=path.encode(), name=b"torch")
        self.call(self.attnd.attnd_open, c.byref(args), c.byref(self.session))

    def call(self, function, *args):
        code = function(*args)
        if code < 0:
            fault = Fault()
            self.attnd.attnd_last_fault(c.byref(fault))
            raise Refused(self.attnd.attnd_error_name(code).decode(), fault.limit)
        return code

    def __getattr__(self, name):
        """session.run(...) is attnd_run(session, ...); session.cuda_export(...) likewise."""
        library = self.cuda if name.startswith("cuda_") else self.attnd
        function = getattr(library, "attnd_" + name)
        return lambda *args: self.call(function, self.session, *args)

    def export(self, tensor):
        place = Tensor()
        bytes_ = u64(tensor.numel() * tensor.element_size())
        self.cuda_export(u64(tensor.data_ptr()), bytes_, c.byref(place))
        return place

    def finish(self):
        """The operation in flight, which must succeed."""
        done = Completion()
        assert self.wait(c.byref(done), u32(1), u64(20_000_000_000)) == 1, "nothing completed"
        assert done.fault.code == 0, (done.operation, done.fault.code, done.fault.value)


def ints(values):
    return (i32 * len(values))(*values)


# ---- an engine ----------------------------------------------------------------------------------


class Engine:
    """K and V of some layers, a batch of random requests, q and o: tensors as PyTorch places them."""

    def __init__(self, torch, path):
        self.torch = torch
        self.session = Session(path)
        random.seed(SEED)
        torch.manual_seed(SEED)
        shape = (PAGES, PAGE_SIZE, HEADS_KV, DIM)
        self.k = [self.random(*shape) for _ in range(LAYERS)]
        self.v = [self.random(*shape) for _ in range(LAYERS)]
        self.qo = [1, random.randint(2, 9), random.randint(20, 70)]
        self.kv = [rows + random.randint(0, 200) for rows in self.qo]
        counts = [-(-tokens // PAGE_SIZE) for tokens in self.kv]
        ids = random.sample(range(PAGES), sum(counts))
        self.pages = [[ids.pop() for _ in range(count)] for count in counts]
        self.rows = sum(self.qo)
        self.q = [self.random(self.rows, HEADS, DIM) for _ in range(LAYERS)]
        self.o = [torch.empty_like(q) for q in self.q]
        self.lse = torch.empty(self.rows, HEADS, device="cuda")

    def random(self, *shape):
        return self.torch.randn(*shape, device="cuda", dtype=self.torch.float16)

    def tensors(self):
        return [*self.k, *self.v, *self.q, *self.o, self.lse]

    def place(self):
        """Everything exported, a pool of the planes, the batch planned."""
        session = self.session
        self.torch.cuda.synchronize()

        def planes(tensors):
            found = [session.export(t) for t in tensors]
            strides = [self.k[0].stride(i) for i in range(3)]
            return (Plane * LAYERS)(*[Plane(f.memory, f.offset_bytes, *strides) for f in found])

        pool, self.plan = u32(), u32()
        desc = PoolDesc(
            layers=LAYERS, pages=PAGES, page_size=PAGE_SIZE, heads_kv=HEADS_KV, dim_qk=DIM,
            dim_vo=DIM, dtype=FP16, page_owner=PAGES_OF_ENGINE, k=planes(self.k), v=planes(self.v),
        )  # fmt: skip
        session.pool_create(c.byref(desc), c.byref(pool))
        room = PlanArgs(
            pool=pool, requests=len(self.qo), rows=self.rows, pages=PAGES, levels=1, heads_q=HEADS
        )
        session.plan_create(c.byref(room), c.byref(self.plan))
        flat = [page for pages in self.pages for page in pages]

        def starts(counts):
            return ints([sum(counts[:i]) for i in range(len(counts) + 1)])

        level = Level(
            len(self.qo),
            starts(self.qo),
            starts([len(pages) for pages in self.pages]),
            ints(flat),
            ints([(tokens - 1) % PAGE_SIZE + 1 for tokens in self.kv]),
        )
        batch = Batch(flags=CAUSAL | LSE_LN, level=c.pointer(level))
        session.plan_set(self.plan, c.byref(batch), c.byref(Op()))
        session.finish()

    def poison(self):
        for tensor in [*self.o, self.lse]:
            tensor.fill_(float("nan"))
        self.torch.cuda.synchronize()

    def run(self, layer):
        args = RunArgs(
            layer=layer,
            q=self.session.export(self.q[layer]),
            o=self.session.export(self.o[layer]),
            lse=self.session.export(self.lse),
        )
        self.session.run(self.plan, c.byref(args), c.byref(Op()))
        self.session.finish()

    def expected(self, layer):
        """o [rows, heads, dim] and lse [rows, heads], in float64."""
        torch, outs, sums, row = self.torch, [], [], 0
        for rows, tokens, pages in zip(self.qo, self.kv, self.pages):
            q = self.q[layer][row : row + rows].double()
            keys, values = (
                plane[layer][pages].double().flatten(0, 1)[:tokens].repeat_interleave(
                    HEADS // HEADS_KV, dim=1
                )
                for plane in (self.k, self.v)
            )
            scores = torch.einsum("rhd,thd->hrt", q, keys) / DIM**0.5
            seen = torch.ones(rows, tokens, device="cuda", dtype=torch.bool).tril(tokens - rows)
            scores = scores.masked_fill(~seen, float("-inf"))
            outs.append(torch.einsum("hrt,thd->rhd", scores.softmax(-1), values))
            sums.append(scores.logsumexp(-1).T)
            row += rows
        return torch.cat(outs), torch.cat(sums)

    def check(self, layer, lse=True):
        outs, sums = self.expected(layer)
        error = (self.o[layer].double() - outs).abs().max().item()
        assert error < 2e-3, f"o of layer {layer} is off by {error}"  # NaN is not less either
        if lse:
            error = (self.lse.double() - sums).abs().max().item()
            assert error < 2e-3, f"lse of layer {layer} is off by {error}"


# ---- the claims ---------------------------------------------------------------------------------


def segments(torch, tensors):
    """How many segments of the caching allocator they lie in."""
    starts = set()
    for tensor in tensors:
        for segment in torch.cuda.memory_snapshot():
            begin = segment["address"]
            if begin <= tensor.data_ptr() < begin + segment["total_size"]:
                starts.add(begin)
    return len(starts)


def claim_tensors_cut_out_of_segments_are_one_import_each_segment(torch, path):
    engine = Engine(torch, path)
    engine.place()
    for layer in range(LAYERS):
        engine.poison()
        engine.run(layer)
        engine.check(layer)
    tensors = engine.tensors()
    memories = {engine.session.export(tensor).memory for tensor in tensors}
    assert len(memories) == segments(torch, tensors) < len(tensors), memories


def claim_a_graph_of_torch_holds_attention_between_its_kernels(torch, path):
    engine = Engine(torch, path)
    engine.place()
    session, prepared = engine.session, []
    for layer in range(LAYERS):
        args = PrepareArgs(
            layer=layer, q=session.export(engine.q[layer]), o=session.export(engine.o[layer])
        )
        prepared.append(u32())
        session.prepare(engine.plan, c.byref(args), c.byref(prepared[layer]))
    session.cuda_stream_open()
    fed = [torch.zeros_like(q) for q in engine.q]
    graph, outs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        stream = c.c_void_p(torch.cuda.current_stream().cuda_stream)
        for layer in range(LAYERS):
            engine.q[layer].copy_(fed[layer])
            session.cuda_run_on_stream(u32(0), prepared[layer], stream)
            outs.append(engine.o[layer] * 2)
    for _ in range(50):
        for q in fed:
            q.normal_()
        engine.poison()
        graph.replay()
        torch.cuda.synchronize()
        assert session.cuda_lane_error(u32(0)) == 0
        for layer in range(LAYERS):
            engine.check(layer, lse=False)
            assert torch.equal(outs[layer], engine.o[layer] * 2), "read before it was written"


def claim_expandable_segments_need_no_trust_and_what_spans_two_is_refused(torch, path):
    large = torch.empty(48 << 20, device="cuda", dtype=torch.uint8)
    engine = Engine(torch, path)
    try:
        engine.session.export(large)
    except Refused as refused:
        assert refused.name == "ATTND_E_RANGE", refused
    else:
        raise AssertionError("memory of several allocations was taken for one")
    engine.place()
    engine.poison()
    engine.run(0)
    engine.check(0)


def claim_memory_of_cudamallocasync_is_refused_by_name(torch, path):
    engine = Engine(torch, path)
    try:
        engine.place()
    except Refused as refused:
        assert refused.name == "ATTND_E_UNSUPPORTED", refused
    else:
        raise AssertionError("it was taken, from a pool that cannot be exported")


# What PyTorch allocates by, and the daemon's options.
CLAIMS = [
    (claim_tensors_cut_out_of_segments_are_one_import_each_segment, "", ["--trust"]),
    (claim_a_graph_of_torch_holds_attention_between_its_kernels, "", ["--trust"]),
    (
        claim_expandable_segments_need_no_trust_and_what_spans_two_is_refused,
        "expandable_segments:True",
        [],
    ),
    (claim_memory_of_cudamallocasync_is_refused_by_name, "backend:cudaMallocAsync", ["--trust"]),
]

# ---- processes ----------------------------------------------------------------------------------


def client(number, path):
    import torch

    torch.cuda.init()
    CLAIMS[number][0](torch, path)


def with_daemon(options, directory, body):
    """body(path of the socket) beside a daemon that is ready."""
    program = pathlib.Path(__file__).resolve().parents[2] / "attnd"
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notify.bind(f"{directory}/notify")
    notify.settimeout(30)
    environment = dict(os.environ, NOTIFY_SOCKET=f"{directory}/notify")
    path = f"{directory}/socket"
    command = [program, "--socket", path, "--backend", "cuda", "--verbose", *options]
    with open(f"{directory}/log", "w") as log:
        daemon = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        while b"READY=1" not in notify.recv(256):
            pass
        return body(path)
    finally:
        daemon.terminate()
        daemon.wait(20)
        notify.close()


def run_claim(number):
    claim, allocator, options = CLAIMS[number]
    name = claim.__name__.removeprefix("claim_")
    print(f"[ RUN      ] {name}", flush=True)
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=allocator, ATTND_SEED=str(SEED))
    command = [sys.executable, __file__, "client", str(number)]
    with tempfile.TemporaryDirectory(prefix="attnd-test-") as directory:

        def body(path):
            return subprocess.run(command + [path], env=environment, timeout=60).returncode

        try:
            status = with_daemon(options, directory, body)
        except (subprocess.TimeoutExpired, TimeoutError) as late:
            status = late
        if status != 0:
            print(pathlib.Path(directory, "log").read_text())
    print(f"[{'       OK' if status == 0 else '  FAILED '} ] {name}", flush=True)
    return status == 0


def main():
    try:
        import torch
    except ImportError:
        print("no PyTorch")
        return 77
    if not torch.cuda.is_available():
        print("no GPU")
        return 77
    print(f"ATTND_SEED={SEED}", flush=True)
    results = [run_claim(number) for number in range(len(CLAIMS))]
    return 0 if all(results) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        client(int(sys.argv[2]), sys.argv[3])
    else:
        sys.exit(main())
