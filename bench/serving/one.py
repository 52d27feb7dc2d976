#!/usr/bin/env python3
"""One engine with one attention, in a process of its own: what it measures goes to a JSON file.

Prompts are random numbers of a seed, the same for all. What fails is written down, and the rest
goes on.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time
import traceback

import starts
import llama

FORCED = 600, 1200, 2400, 3512  # tokens of prompts whose log-probabilities are compared
TAILS = 5, 17, 64, 256, 777, 1500, 2900  # behind a prefix of 512


def draw(count, seed):
    return random.Random(seed).choices(range(3, 32000 - 1), k=count)


def forced(engine, given):
    """Log-probabilities of fixed prompts: nothing that was answered comes into them."""
    engine.forget()
    return [[round(x, 5) for x in engine.forced(draw(n, 300 + n))] for n in FORCED]


def answers(engine, given):
    """Greedy tokens of prompts over a common prefix; the second time the prefix cache has them."""
    prompts = [draw(512, 1) + draw(n, 100 + n) for n in TAILS] + [draw(n, 200 + n) for n in (1, 16)]
    engine.forget()
    return [engine.generate(prompts, 64) for _ in range(2)]


def timed(engine, count, size, new, seed):
    prompts = [draw(size, seed * 1000 + i) for i in range(count)]
    engine.forget()
    began = time.perf_counter()
    made = engine.generate(prompts, new)
    took = time.perf_counter() - began
    if any(len(tokens) != new for tokens in made):
        raise RuntimeError(f"an answer is not of {new} tokens")
    return took


def speed(engine, given):
    """@given.requests prompts of @given.tokens, @given.answered each, and the same with one token
    answered, by which the two parts are told apart; and one prompt alone."""
    count, size, new = given.requests, given.tokens, given.answered
    timed(engine, count, size, min(new, 8), 40)
    first = [timed(engine, count, size, 1, 50 + i) for i in range(given.repeat)]
    whole = [timed(engine, count, size, new, 60 + i) for i in range(given.repeat)]
    alone = [timed(engine, 1, size, 1, 70 + i) for i in range(5)]
    whole_alone = [timed(engine, 1, size, new, 80 + i) for i in range(2)]
    ttft, steps = statistics.median(alone), max(new - 1, 1)
    return {
        "prompt_tokens_s": count * size / min(first), "answered_tokens_s": count * new / min(whole),
        "tpot_ms": (min(whole) - min(first)) / steps * 1e3, "ttft_alone_ms": ttft * 1e3,
        "tpot_alone_ms": (min(whole_alone) - ttft) / steps * 1e3,
        "first_s": first, "whole_s": whole,
    }  # fmt: skip


def profile(engine, given):
    """What takes the GPU's time while @given.requests prompts are answered, by torch.profiler: the
    engine must be in this process (vLLM)."""
    import torch

    with torch.profiler.profile() as profiler:
        timed(engine, given.requests, given.tokens, 16, 90)
    table = profiler.key_averages().table(
        sort_by="self_cuda_time_total", row_limit=30, max_name_column_width=60
    )
    pathlib.Path(given.out).with_suffix(".profile.txt").write_text(table)


PARTS = {"forced": forced, "answers": answers, "speed": speed, "profile": profile}


def arguments():
    ap = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    ap.add_argument("--engine", choices=starts.ENGINES, required=True)
    ap.add_argument("--attention", required=True)
    ap.add_argument("--graphs", choices=("full", "pieces", "off"), default="full")
    ap.add_argument("--model", required=True, help="folder; made if it is not there")
    ap.add_argument("--shape", choices=llama.SHAPES, default="small")
    ap.add_argument("--out", required=True)
    ap.add_argument("--parts", default="forced,answers,speed", help=f"of {', '.join(PARTS)}")
    ap.add_argument("--page-size", type=int)
    ap.add_argument("--kv-dtype", default="auto")
    ap.add_argument("--requests", type=int, default=starts.REQUESTS)
    ap.add_argument("--tokens", type=int, default=1024)
    ap.add_argument("--answered", type=int, default=128)
    ap.add_argument("--repeat", type=int, default=3)
    return ap.parse_args()


def main():
    given, result = arguments(), {"errors": {}, "seconds": {}}
    result["given"] = vars(given)

    def part(name, function, *of):
        began = time.perf_counter()
        try:
            result[name] = function(*of)
        except BaseException as why:
            traceback.print_exc()
            result["errors"][name] = f"{type(why).__name__}: {why}"
        result["seconds"][name] = round(time.perf_counter() - began, 1)
        pathlib.Path(given.out).write_text(json.dumps(result))

    engine = None

    def begin():
        nonlocal engine
        folder = llama.make(given.model, given.shape)
        engine = starts.start(given.engine, folder, given.attention, given)
        return engine.facts

    part("facts", begin)
    for name in given.parts.split(",") if engine else ():
        part(name, PARTS[name], engine, given)
    if engine:
        part("end", engine.close)
    sys.stdout.flush()
    os._exit(1 if result["errors"] else 0)  # engines leave threads behind


if __name__ == "__main__":  # engines start processes that import this
    main()
