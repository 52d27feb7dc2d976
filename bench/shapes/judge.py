"""Sampled rows of a result against attention by its definition, in numpy and float32.

It reads q, pages and page lists as everybody does, and shares no code with what it judges. Only the
keys of one KV head are fetched at a time.
"""

import math
import random

import numpy

# Root mean square over a row, against that of the reference; fp8 rounds keys in the pool, which the
# reference reads, and its probabilities.
RELATIVE_ERROR_MAX = {"fp16": 4e-3, "bf16": 2e-2, "fp8": 4e-2}
REQUESTS, ROWS = 3, 2


def sample(case, seed):
    """[(request, row in it, KV head)]: the first and the last, and random ones."""
    draw = random.Random(seed)
    requests, heads = case.batch.requests, case.shape.heads_kv
    last = len(requests) - 1
    found = []
    for request in sorted({0, last, draw.randint(0, last)})[:REQUESTS]:
        rows = requests[request][0]
        picked = {0, rows - 1, min(127, rows - 1), draw.randrange(rows)}
        for row in draw.sample(sorted(picked), min(ROWS, len(picked))):
            found.append((request, row, draw.randrange(heads)))
    return found


def visible(case, request, row):
    """Which keys a row sees, bool [keys]."""
    rows, tokens = case.batch.requests[request]
    keys, before = numpy.arange(tokens), tokens - rows
    if case.batch.tree:
        seen = keys < before
        while True:
            seen[before + row] = True
            if row == 0:
                return seen
            row = (row - 1) // 2
    seen = keys <= before + row
    if case.batch.window:
        seen &= keys > before + row - case.batch.window
    return seen


def mask_of(case):
    """custom_mask of a batch of trees: bool, [rows * keys] of each request, one after the other."""
    return numpy.concatenate(
        [
            visible(case, request, row)
            for request, (rows, _) in enumerate(case.batch.requests)
            for row in range(rows)
        ]
    )


def packed_mask_of(case):
    """The same as bits, least significant first, each request from a byte of its own: (uint8, in
    which byte each begins, and the end)."""
    bits = numpy.split(mask_of(case), numpy.cumsum([n * keys for n, keys in case.batch.requests]))
    parts = [numpy.packbits(part, bitorder="little") for part in bits[:-1]]
    starts = numpy.cumsum([0] + [len(part) for part in parts])
    return numpy.concatenate(parts), starts.tolist()


def expected(q, k, v, seen):
    """q: [group, dim_qk]; k: [keys, dim_qk]; v: [keys, dim_vo]; seen: bool [keys]."""
    scores = q @ k[seen].T / math.sqrt(q.shape[1])
    scores = numpy.exp(scores - scores.max(1, keepdims=True))
    return scores / scores.sum(1, keepdims=True) @ v[seen]


def check(case, device, layer, o, seed):
    """@device: what can fetch rows and keys as float32 (device.py). Return: rows compared;
    ValueError says which is off."""
    if not device.finite(o):
        raise ValueError("a row is not finite, or was not written")
    starts = numpy.cumsum([0] + [rows for rows, _ in case.batch.requests])
    group = case.shape.heads_q // case.shape.heads_kv
    asked = sample(case, seed)
    for request, row, head in asked:
        at, heads = starts[request] + row, slice(head * group, head * group + group)
        k, v = device.keys(layer, request, head)
        right = expected(device.q_rows(at, heads), k, v, visible(case, request, row))
        off = device.rows(o, at, heads) - right
        error = math.sqrt((off**2).mean() / (right**2).mean())
        if not error <= RELATIVE_ERROR_MAX[case.shape.type]:
            raise ValueError(
                f"request {request}, row {row}, KV head {head}: off by {error:.2e} of its size"
            )
    return len(asked)
