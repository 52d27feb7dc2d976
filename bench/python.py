#!/usr/bin/env python3
"""What Python costs: plan and run of a decode batch through the package, and through C.

Both do the same calls on the same service in short turns, and the figure is the median difference
of a turn's medians. With --generate, client/python/examples/generate.py is run too, and the record
says how many of its tokens equal those of eager attention. --fuzz SECONDS goes on with calls of the
whole package for so long (client/python/tests/test_property.py), in --processes at once.
--architectures builds each model of transformers that can be small (test_architectures.py). --gpu
DEVICE does both on a GPU of that name: tokens by the CUDA worker, and in place of C FlashInfer's
plan() of 64 decodes beside ours.

    make && make check-python      # the program in C, and an interpreter with what models need
    ATTND_LIBRARY_PATH=build build/python/bin/python bench/python.py --generate

Exit status: 0 measured; 1 something failed.
"""

import argparse
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
PLACES = "client/python/tests", "client/python", "bench/engines"
sys.path[:0] = [str(ROOT / place) for place in PLACES]
import attnd  # noqa: E402
import figures  # noqa: E402
from service import BUILD, service  # noqa: E402

REQUESTS, HEADS, DIM, ROUNDS, TURNS = 64, 8, 64, 100, 201
GENERATE_S = 600
SEEDS = 100000  # more than a process comes to


def turns_us(path):
    """[(Python's, C's)]: median host times of plan + run, in turns."""
    command = [BUILD / "bench/host_time", str(ROUNDS)]
    if not command[0].exists():
        sys.exit(f"bench/python.py: {command[0]} is not there: `make` builds it")
    environment = dict(os.environ, ATTND_SOCKET=path)
    with attnd.Session(path) as session, subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        bufsize=1,
    ) as c:  # fmt: skip
        pool = attnd.PagePool(session, 1, REQUESTS, 16, 1, DIM)
        attention, cache = attnd.BatchAttention(pool), pool.kv_cache(0)
        q, out = (session.empty((REQUESTS, HEADS, DIM)) for _ in range(2))
        starts = np.arange(REQUESTS + 1, dtype=np.int32)
        pages, last = pool.alloc_pages(REQUESTS), np.ones(REQUESTS, np.int32)
        turns = []
        for _ in range(TURNS):
            took = []
            for _ in range(ROUNDS):
                begin = time.perf_counter_ns()
                attention.plan(starts, starts, pages, last, HEADS)
                attention.run(q, cache, out)
                took.append(time.perf_counter_ns() - begin)
            c.stdin.write("again\n")
            turns.append((statistics.median(took) * 1e-3, float(c.stdout.readline())))
        c.stdin.close()
        return turns


def tokens_checked(device):
    """The tokens of generate.py that equal eager's; it fails if one differs."""
    command = [sys.executable, ROOT / "client/python/examples/generate.py", "--device", device]
    options = ("--trust",) if device == "cuda" else ()
    with service(*options, backend=device) as path:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=GENERATE_S,
            env=dict(os.environ, ATTND_SOCKET=path, PYTHONPATH=str(ROOT / "client/python")),
        )  # fmt: skip
    print(done.stdout, end="")
    said = re.search(r"^(\d+) tokens checked, 0 differ$", done.stdout, re.MULTILINE)
    if done.returncode != 0 or said is None:
        sys.exit("bench/python.py: generate.py failed")
    return int(said[1])


def test_begun(name, cpu=None, **variables):
    """A test program of the package, which runs. @cpu: it and its service have that one alone."""
    pinned = ["taskset", "-c", str(cpu)] if cpu is not None else []
    places = {"ATTND_BUILD": str(BUILD), "PYTHONPATH": str(ROOT / "client/python")}
    return subprocess.Popen(
        [*pinned, sys.executable, "-m", "unittest", name], stdout=subprocess.PIPE, text=True,
        cwd=ROOT / "client/python/tests", env=dict(os.environ, **places, **variables),
    )  # fmt: skip


def test_output(name, run, wants):
    """What it prints; it ends this one if the test fails, or if it does not print what it should.
    Return: the match."""
    text = run.communicate()[0]
    said = re.search(wants, text, re.MULTILINE)
    if run.returncode != 0 or said is None:
        print(text)
        sys.exit(f"bench/python.py: {name} failed")
    return said


def calls_fuzzed(seconds, seed, processes):
    """In so many processes at once, each with seeds, a service and a processor of its own."""
    seeds = [seed + SEEDS * i for i in range(processes)]
    cpus = sorted(os.sched_getaffinity(0))
    runs = [
        test_begun("test_property", cpus[i % len(cpus)], ATTND_PROPERTY_S=str(seconds),
                   ATTND_PROPERTY_SEED=str(first))
        for i, first in enumerate(seeds)
    ]  # fmt: skip
    wants = r"^python.calls_fuzzed (\d+) calls, (.*)$"
    calls = sum(int(test_output("test_property", run, wants)[1]) for run in runs)
    return (
        "python.calls_fuzzed", calls, "calls", "higher",
        "of the whole package, in any order: no wrong answer, signal, hang or leak; "
        f"{processes} processes, first seeds {seeds[0]} to {seeds[-1]}",
    )  # fmt: skip


def architectures():
    said = test_output(
        "test_architectures", test_begun("test_architectures"),
        r"^(\d+) same, (\d+) refused, (\d+) WRONG, (\d+) BROKEN, (\d+) not built$",
    )  # fmt: skip
    same, refused, wrong, broken, rest = (int(x) for x in said.groups())
    return (
        "python.architectures",
        round(100 * (same + refused) / (same + refused + wrong + broken), 1),
        "%", "higher",
        f"{same} have eager's tokens, {refused} are refused by name in their first pass, "
        f"{wrong + broken} are wrong; {rest} cannot be built small",
    )  # fmt: skip


def flashinfer_plan_us(path, flashinfer):
    """Plan of 64 decodes at 4096 tokens: ours, waited for, and FlashInfer's, as its users call
    it."""
    import torch

    def median(plan):
        took = []
        for _ in range(300):
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            plan()
            took.append(time.perf_counter_ns() - begin)
        return statistics.median(took[50:]) * 1e-3

    pages, dim = 256, 128
    starts = torch.arange(REQUESTS + 1, dtype=torch.int32)
    kv_starts, indices = starts * pages, torch.arange(REQUESTS * pages, dtype=torch.int32)
    last = torch.full((REQUESTS,), 16, dtype=torch.int32)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    peer = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace, "NHD", use_tensor_cores=True, backend="fa2"
    )
    theirs = median(lambda: peer.plan(
        kv_starts.cuda(), indices.cuda(), last.cuda(), 32, 8, dim, 16,
        q_data_type=torch.float16, kv_data_type=torch.float16,
    ))  # fmt: skip
    on_device = kv_starts.cuda(), indices.cuda(), last.cuda()
    placed = median(
        lambda: peer.plan(
            *on_device, 32, 8, dim, 16, q_data_type=torch.float16, kv_data_type=torch.float16
        )
    )
    with attnd.Session(path) as session:
        pool = attnd.PagePool(session, 1, REQUESTS * pages, 16, 8, dim, device="cuda", leased=False)
        attention = attnd.BatchAttention(pool)
        ours = median(
            lambda: attention.plan(starts, kv_starts, indices, last, 32, causal=True, wait=True)
        )
        attention.close()
    return ours, min(theirs, placed)


def main():
    options = argparse.ArgumentParser(description="What Python costs.")
    options.add_argument(
        "--record", metavar="DIR", help="write python-cpu.json or python-DEVICE.json there"
    )
    options.add_argument(
        "--generate", action="store_true", help="generate tokens and compare them with eager's"
    )
    options.add_argument(
        "--fuzz", metavar="SECONDS", type=int, help="calls of the whole package for so long"
    )
    options.add_argument(
        "--processes", metavar="N", type=int, default=1, help="that do so at once (1)"
    )
    options.add_argument("--seed", metavar="N", type=int, default=0, help="where they begin (0)")
    options.add_argument(
        "--architectures", action="store_true", help="each model that transformers builds small"
    )
    options.add_argument(
        "--gpu", metavar="DEVICE", help="on a GPU of this name: plan beside FlashInfer's"
    )
    options.add_argument("--peers", metavar="DIR", help="a folder to import flashinfer from")
    options = options.parse_args()
    found, device = [], options.gpu or "cpu"
    if options.gpu:
        import flashinfer_way

        try:
            flashinfer = flashinfer_way.import_flashinfer(options.peers)
        except ImportError as missing:
            print(f"bench/python.py: FlashInfer is left out: {missing}", file=sys.stderr)
        else:
            with service("--trust", backend="cuda") as path:
                ours, theirs = flashinfer_plan_us(path, flashinfer)
            found.append((
                "python.plan_us_over_flashinfer", round(ours / theirs, 3), "ratio", "lower",
                f"64 decodes at 4096, waited for: {ours:.1f} us over FlashInfer's {theirs:.1f} us",
            ))  # fmt: skip
    else:
        with service() as path:
            turns = turns_us(path)
        over = statistics.median(ours - theirs for ours, theirs in turns)
        ours, theirs = (statistics.median(x) for x in zip(*turns))
        found.append((
            "python.run_us_over_c", round(over, 1), "us", "lower",
            f"64 decodes: {ours:.1f} us from Python, {theirs:.1f} from C, median of "
            f"{TURNS} turns of {ROUNDS}",
        ))  # fmt: skip
    if options.generate:
        found.append((
            "python.generate_tokens_checked", tokens_checked("cuda" if options.gpu else "cpu"),
            "tokens", "higher",
            "generate.py: continuous batching, a shared prefix; none differs from eager attention",
        ))  # fmt: skip
    if options.fuzz:
        found.append(calls_fuzzed(options.fuzz, options.seed, options.processes))
    if options.architectures:
        found.append(architectures())
    for name, value, unit, _, notes in found:
        print(f"{name} {value} {unit} ({notes})")
    if options.record:
        commit, dirty = figures.stamp_commit(ROOT)
        if dirty:
            sys.exit(
                "bench/python.py: the checkout has changes: figures of it cannot be found again"
            )
        command = figures.command_line("bench/python.py", sys.argv[1:])
        figures.write_records(
            pathlib.Path(options.record, f"python-{device}.json"),
            figures.records([], found, device, commit, dirty, command),
        )


if __name__ == "__main__":
    main()
