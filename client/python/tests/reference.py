"""Attention in float64, written from the contract and from nothing else."""

import numpy as np


def attention(q, k, v, causal, scale):
    """q [rows, heads, dim], k and v [tokens, heads_kv, dim]. Return: o, lse in base 2."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    o, lse = np.zeros(q.shape), np.full((rows, heads), -np.inf)
    for row in range(rows):
        seen = len(k) - rows + row + 1 if causal else len(k)
        for head in range(heads):
            if seen <= 0:
                continue
            s = k[:seen, head // group] @ q[row, head] * scale
            weights = np.exp(s - s.max())
            o[row, head] = weights @ v[:seen, head // group] / weights.sum()
            lse[row, head] = (np.log(weights.sum()) + s.max()) / np.log(2)
    return o, lse


class Batch:
    """Requests of random lengths on random pages, and what attention must give for them."""

    def __init__(self, draw, pages, page_size, requests=5, longest=70, decode=False):
        self.page_size = page_size
        self.kv_len = [int(n) for n in draw.integers(1, longest, requests)]
        self.qo_len = [1 if decode else int(draw.integers(1, n + 1)) for n in self.kv_len]
        counts = [-(-n // page_size) for n in self.kv_len]
        order = iter(draw.permutation(pages)[: sum(counts)])
        self.pages = [[int(next(order)) for _ in range(n)] for n in counts]
        self.rows = sum(self.qo_len)

    def csr(self):
        def starts(counts):
            return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)

        last = [(n - 1) % self.page_size + 1 for n in self.kv_len]
        flat = np.concatenate(self.pages).astype(np.int32)
        return (
            starts(self.qo_len),
            starts([len(p) for p in self.pages]),
            flat,
            np.array(last, np.int32),
        )

    def expected(self, q, k, v, causal=True, scale=None):
        """k and v: planes [page, token, head, dim]."""
        scale = scale or q.shape[2] ** -0.5
        outs, row = [], 0
        for rows, tokens, pages in zip(self.qo_len, self.kv_len, self.pages):
            keys, values = (x[pages].reshape(-1, *x.shape[2:])[:tokens] for x in (k, v))
            outs.append(attention(q[row : row + rows], keys, values, causal, scale))
            row += rows
        return np.concatenate([o for o, _ in outs]), np.concatenate([lse for _, lse in outs])
