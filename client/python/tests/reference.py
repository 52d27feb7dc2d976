"""Attention in float64, written from the contract and from nothing else."""

import numpy as np


def alibi_slope(head, heads):
    """As the paper has it: a geometric series for powers of two, and what is between them of the
    next one."""
    power = 1 << (heads.bit_length() - 1)
    if head < power:
        return 2.0 ** (-8.0 * (head + 1) / power)
    return 2.0 ** (-4.0 * (2 * (head - power) + 1) / power)


def rotated(x, positions, theta=10000.0, scale=1.0, dim=None, llama31=None):
    """x [tokens, heads, dim] with the halves of its first @dim dimensions turned, each pair by its
    token's position; @llama31: (low, high, old context), which divides low frequencies only."""
    x, dim = x.astype(np.float64), dim or x.shape[2]
    for i in range(dim // 2):
        frequency = theta ** (-2.0 * i / dim)
        slow = 1.0  # how much of it is divided by the scale
        if llama31:
            low, high, old = llama31
            slow = 1 - min(max((old * frequency / (2 * np.pi) - low) / (high - low), 0), 1)
        angle = np.asarray(positions) * frequency * (slow / scale + 1 - slow)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[:, :, i].copy(), x[:, :, i + dim // 2].copy()
        x[:, :, i], x[:, :, i + dim // 2] = a * cos - b * sin, b * cos + a * sin
    return x


def fp8_values(mantissa):
    """The 256 numbers of fp8 with @mantissa bits: 3 is e4m3 without infinities, 2 is e5m2."""
    bias, values = (1 << (6 - mantissa)) - 1, np.empty(256)
    for byte in range(256):
        exponent, rest = (byte & 127) >> mantissa, byte & ((1 << mantissa) - 1)
        fraction = rest / (1 << mantissa) + (exponent > 0)
        value = fraction * 2.0 ** (max(exponent, 1) - bias)
        if mantissa == 3 and byte & 127 == 127:
            value = np.nan
        if mantissa == 2 and exponent == 31:
            value = np.nan if rest else np.inf
        values[byte] = -value if byte & 128 else value
    return values


def attention(
    q, k, v, causal, scale, window_left=-1, logits_soft_cap=0, sinks=None, alibi=False, mask=None,
    rope=None,
):  # fmt: skip
    """q [rows, heads, dim], k [tokens, heads_kv, dim], v [tokens, heads_kv, dim_vo], sinks [heads],
    alibi: True for the paper's slopes, or [heads], mask bool [rows, tokens], rope: rotated()'s
    options. Return: o, lse in base 2."""
    rows, heads, dim = q.shape
    group = heads // k.shape[1]
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    if rope is not None:
        q = rotated(q, len(k) - rows + np.arange(rows), **rope)
        k = rotated(k, np.arange(len(k)), **rope)
    o, lse = np.zeros((rows, heads, v.shape[2])), np.full((rows, heads), -np.inf)
    if sinks is not None:
        lse[:] = np.asarray(sinks, np.float64) / np.log(2)
    for row in range(rows):
        position = len(k) - rows + row
        keys = [
            j for j in range(len(k))
            if (j <= position or not causal) and (window_left < 0 or j >= position - window_left)
            and (mask is None or mask[row, j])
        ]  # fmt: skip
        for head in range(heads):
            if not keys:
                continue
            s = k[keys, head // group] @ q[row, head] * scale
            if logits_soft_cap:
                s = logits_soft_cap * np.tanh(s / logits_soft_cap)
            if alibi is not False:
                slope = alibi_slope(head, heads) if alibi is True else alibi[head]
                s += slope * (np.array(keys) - position)
            top = s.max() if sinks is None else max(s.max(), sinks[head])
            weights = np.exp(s - top)
            total = weights.sum() + (0 if sinks is None else np.exp(sinks[head] - top))
            o[row, head] = weights @ v[keys, head // group] / total
            lse[row, head] = (np.log(total) + top) / np.log(2)
    return o, lse


class Batch:
    """Requests of random lengths on random pages, and what attention must give for them."""

    def __init__(self, draw, pages, page_size, requests=5, longest=70, decode=False):
        if pages < requests * -(-(longest - 1) // page_size):
            raise ValueError(f"{pages} pages have no room for each draw")
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

    def expected(self, q, k, v, causal=True, scale=None, masks=None, **variant):
        """k and v: planes [page, token, head, dim]; @masks: one of each request; @variant as
        attention()'s."""
        scale = scale or q.shape[2] ** -0.5
        outs, row = [], 0
        masks = masks or [None] * len(self.pages)
        for rows, tokens, pages, mask in zip(self.qo_len, self.kv_len, self.pages, masks):
            keys, values = (x[pages].reshape(-1, *x.shape[2:])[:tokens] for x in (k, v))
            outs.append(
                attention(q[row : row + rows], keys, values, causal, scale, mask=mask, **variant)
            )
            row += rows
        return np.concatenate([o for o, _ in outs]), np.concatenate([lse for _, lse in outs])
