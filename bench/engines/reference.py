"""Attention by its definition in float64, for a sample of rows of every layer.

It reads the same q, pages and page lists as the ways do, and shares no code with them.
"""

import math
import random

RELATIVE_ERROR_MAX = 4e-3  # root mean square over a row, against that of the reference
REQUESTS_MAX = 3
ROWS_MAX = 6


def sample(batch, seed):
    """[(request, its first row in the batch, [rows])]: edges of requests and tiles, random ones."""
    draw = random.Random(seed)
    first = [sum(batch.rows[:r]) for r in range(len(batch.rows))]
    last = len(batch.rows) - 1
    requests = {0, last, draw.randint(0, last)}
    found = []
    for request in sorted(requests)[:REQUESTS_MAX]:
        rows = batch.rows[request]
        picked = {0, rows - 1, min(127, rows - 1), min(128, rows - 1)}
        while len(picked) < min(ROWS_MAX, rows):
            picked.add(draw.randrange(rows))
        found.append((request, first[request], sorted(picked)))
    return found


def expected(torch, batch, buffers, layer, request, first, rows):
    """o of these rows, [rows, heads_q, dim] in float64. Row i of n sees keys 0..tokens - n + i."""
    tokens, count = batch.tokens[request], batch.rows[request]
    q = buffers.q[layer][[first + row for row in rows]].double()
    keys, values = (
        plane[layer][batch.pages[request]].flatten(0, 1)[:tokens].double()
        for plane in (buffers.k, buffers.v)
    )
    heads_kv, dim = keys.shape[1:]
    grouped = q.unflatten(1, (heads_kv, -1))
    scores = torch.einsum("rkgd,tkd->rkgt", grouped, keys) / math.sqrt(dim)
    position = torch.arange(tokens, device=q.device)
    end = torch.tensor([tokens - count + row for row in rows], device=q.device)
    unseen = position[None, :] > end[:, None]
    scores = scores.masked_fill(unseen[:, None, None, :], float("-inf"))
    return torch.einsum("rkgt,tkd->rkgd", scores.softmax(-1), values).flatten(1, 2)


def verify(torch, batch, buffers, seed):
    """Compare o of all layers. Return: {rows, worst}, or a ValueError that names the row."""
    rows_checked, worst = 0, 0.0
    for layer, o in enumerate(buffers.o):
        lost = o.isnan().flatten(1).any(1).nonzero().flatten().tolist()
        if lost:
            raise ValueError(f"layer {layer}: {len(lost)} rows are NaN, the first is {lost[0]}")
        for request, first, rows in sample(batch, seed + layer):
            right = expected(torch, batch, buffers, layer, request, first, rows)
            error = (o[[first + row for row in rows]].double() - right).square().mean((1, 2)).sqrt()
            relative = (error / right.square().mean((1, 2)).sqrt()).tolist()
            rows_checked += len(rows)
            for row, off in zip(rows, relative):
                if not off <= RELATIVE_ERROR_MAX:
                    raise ValueError(
                        f"layer {layer}, request {request}, row {row}: off by {off:.2e} of its size"
                    )
                worst = max(worst, off)
    return {"rows": rows_checked, "worst": worst}
