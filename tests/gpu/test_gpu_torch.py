#!/usr/bin/env python3
"""test_gpu_torch.py - an engine of PyTorch: its tensors, its allocators, its streams and graphs.

Every client is a process of its own beside the real daemon and worker, and uses the package of
client/python as any engine in Python would. Results are compared element by element with float64
by PyTorch; outputs are poisoned with NaN before. ATTND_SEED repeats a run. Exit status 77: there is no
PyTorch, or no GPU.
"""
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES, PAGE_SIZE, HEADS, HEADS_KV, DIM, LAYERS = 64, 16, 8, 2, 128, 2
SEED = int(os.environ.get("ATTND_SEED", random.SystemRandom().randrange(1 << 32)))

# ---- an engine ----------------------------------------------------------------------------------


class Engine:
    """K and V of some layers, a batch of random requests, q and o: tensors as PyTorch places them."""

    def __init__(self, torch, path):
        self.torch = torch
        self.session = attnd.Session(path, "torch")
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

    def export(self, tensor):
        """The handle of the memory that a tensor lies in."""
        return self.session.place(attnd.memory.describe(tensor))[0]

    def place(self):
        """Everything exported, a pool of the planes, the batch planned."""
        self.torch.cuda.synchronize()
        pool = attnd.PagePool.from_tensors(self.session, list(zip(self.k, self.v)))
        self.attention = attnd.BatchAttention(pool)

        def starts(counts):
            return [sum(counts[:i]) for i in range(len(counts) + 1)]

        self.attention.plan(
            qo_indptr=starts(self.qo),
            kv_indptr=starts([len(pages) for pages in self.pages]),
            kv_indices=[page for pages in self.pages for page in pages],
            kv_last_page_len=[(tokens - 1) % PAGE_SIZE + 1 for tokens in self.kv],
            num_qo_heads=HEADS, causal=True, natural_lse=True,
        )  # fmt: skip

    def poison(self):
        for tensor in [*self.o, self.lse]:
            tensor.fill_(float("nan"))
        self.torch.cuda.synchronize()

    def run(self, layer):
        self.attention.submit(self.q[layer], layer, self.o[layer], self.lse).wait(20)

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
    memories = {engine.export(tensor) for tensor in tensors}
    assert len(memories) == segments(torch, tensors) < len(tensors), memories


def claim_a_graph_of_torch_holds_attention_between_its_kernels(torch, path):
    engine = Engine(torch, path)
    engine.place()
    for layer in range(LAYERS):
        engine.attention.prepare(engine.q[layer], layer, engine.o[layer])
    fed = [torch.zeros_like(q) for q in engine.q]
    graph, outs = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for layer in range(LAYERS):
            engine.q[layer].copy_(fed[layer])
            engine.attention.run(engine.q[layer], layer, engine.o[layer])
            outs.append(engine.o[layer] * 2)
    for _ in range(50):
        for q in fed:
            q.normal_()
        engine.poison()
        graph.replay()
        torch.cuda.synchronize()
        engine.attention.lane_error()
        for layer in range(LAYERS):
            engine.check(layer, lse=False)
            assert torch.equal(outs[layer], engine.o[layer] * 2), "read before it was written"


def claim_expandable_segments_need_no_trust_and_what_spans_two_is_refused(torch, path):
    large = torch.empty(48 << 20, device="cuda", dtype=torch.uint8)
    engine = Engine(torch, path)
    try:
        engine.export(large)
    except attnd.Error as refused:
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
    except attnd.Error as refused:
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
    global attnd
    sys.path.insert(0, str(ROOT / "client/python"))
    import torch

    import attnd

    torch.cuda.init()
    CLAIMS[number][0](torch, path)


def with_daemon(options, directory, body):
    """body(path of the socket) beside a daemon that is ready."""
    program = ROOT / "attnd"
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
