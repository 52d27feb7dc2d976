"""A small model of numpy over the CPU worker, so that all of the bench runs without a GPU.

Layers are as small as they come, but they are layers: K and V of each step are stored, attention
reads what earlier steps stored, and a sample of its rows is compared with the definition.
"""

import math
import random

import numpy
from batch import StepBatch
from leases import LeasedPages
from scheduler import FreePages

LAYERS, HIDDEN, HEADS_Q, HEADS_KV, DIM = 2, 64, 4, 2, 16
EMBEDDINGS = 64
ERROR_MAX = 4e-3  # root mean square of a row, against the definition's
VERIFIED_ROWS = 2  # of a step


class Weights:
    def __init__(self, seed):
        draw = numpy.random.default_rng(seed)
        self.embedding = draw.standard_normal((EMBEDDINGS, HIDDEN))
        wide = (HEADS_Q + 2 * HEADS_KV) * DIM
        self.qkv = draw.standard_normal((LAYERS, HIDDEN, wide)) / math.sqrt(HIDDEN)
        self.out = draw.standard_normal((LAYERS, HEADS_Q * DIM, HIDDEN)) / math.sqrt(HIDDEN)


def normed(x):
    return x / numpy.sqrt((x * x).mean(1, keepdims=True) + 1e-5)


class Layers:
    """execute() by @cache: append(layer, k, v), attend(layer, q), planes(layer)."""

    def __init__(self, seed, cache):
        self.weights, self.cache, self.draw = Weights(seed), cache, random.Random(seed)
        self.page_size, self.verified, self.worst = cache.page_size, 0, 0.0

    def execute(self, parts):
        """@parts: [(sequence, rows, tokens)]."""
        batch = StepBatch([(s.pages, rows, tokens) for s, rows, tokens in parts], self.page_size)
        positions, slots = batch.places()
        numbers = numpy.repeat([s.request.number for s, _, _ in parts], batch.of_rows)
        x = self.weights.embedding[(31 * numbers + positions) % EMBEDDINGS]
        self.cache.plan(batch, slots)
        for layer in range(LAYERS):
            qkv = (normed(x) @ self.weights.qkv[layer]).astype(numpy.float16)
            q, k, v = (
                part.reshape(len(x), -1, DIM)
                for part in numpy.split(qkv, (HEADS_Q * DIM, (HEADS_Q + HEADS_KV) * DIM), 1)
            )
            o = self.cache.attend(layer, *map(numpy.ascontiguousarray, (q, k, v)))
            self.verify(batch, layer, q, o)
            x = x + o.reshape(len(x), -1).astype(float) @ self.weights.out[layer]

    def verify(self, batch, layer, q, o):
        for _ in range(VERIFIED_ROWS):
            request = self.draw.randrange(len(batch.rows))
            row = self.draw.randrange(batch.rows[request])
            at = int(batch.qo_indptr[request]) + row
            seen = batch.tokens[request] - batch.rows[request] + row + 1
            right = attention(*self.cache.planes(layer), batch.pages[request], seen, q[at])
            off = math.sqrt(((o[at] - right) ** 2).mean() / (right**2).mean())
            if not off <= ERROR_MAX:
                raise ValueError(f"layer {layer}, request {request}, row {row}: off by {off:.2e}")
            self.verified, self.worst = self.verified + 1, max(self.worst, off)


def attention(k_plane, v_plane, pages, seen, q):
    """The definition, in float64, of one row: o [heads_q, dim]. Planes [page, token, head, dim]."""
    k, v = (
        plane[pages].reshape(-1, *plane.shape[2:])[:seen].astype(float)
        for plane in (k_plane, v_plane)
    )
    group = q.shape[0] // k.shape[1]
    k, v = (numpy.repeat(x, group, 1) for x in (k, v))
    scores = numpy.einsum("hd,thd->ht", q.astype(float), k) / math.sqrt(q.shape[1])
    weight = numpy.exp(scores - scores.max(1, keepdims=True))
    return numpy.einsum("ht,thd->hd", weight / weight.sum(1, keepdims=True), v)


class OwnCache:
    """Without a service: pages in arrays of the engine's own, attention by numpy in float32."""

    def __init__(self, pages, page_size):
        shape = LAYERS, 2, pages, page_size, HEADS_KV, DIM
        self.memory, self.page_size = numpy.zeros(shape, numpy.float16), page_size
        self.pages = FreePages(pages)

    def planes(self, layer):
        return self.memory[layer]

    def plan(self, batch, slots):
        self.batch, self.slots = batch, slots

    def attend(self, layer, q, k, v):
        batch, out = self.batch, numpy.empty_like(q)
        for plane, new in zip(self.memory[layer], (k, v)):
            plane.reshape(-1, HEADS_KV, DIM)[self.slots] = new
        for request, rows in enumerate(batch.rows):
            first = int(batch.qo_indptr[request])
            pages, tokens = batch.pages[request], batch.tokens[request]
            k_seen, v_seen = (
                plane[pages].reshape(-1, HEADS_KV, DIM)[:tokens].astype(numpy.float32)
                for plane in self.memory[layer]
            )
            out[first : first + rows] = self.rows(q[first : first + rows], k_seen, v_seen)
        return out

    @staticmethod
    def rows(q, k, v):
        """The last rows of a request, causally."""
        grouped = q.astype(numpy.float32).reshape(len(q), HEADS_KV, -1, DIM)
        scores = numpy.einsum("rkgd,tkd->rkgt", grouped, k) / math.sqrt(DIM)
        unseen = numpy.arange(len(k))[None] > numpy.arange(len(k) - len(q), len(k))[:, None]
        scores = numpy.where(unseen[:, None, None], -numpy.inf, scores)
        weight = numpy.exp(scores - scores.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        return numpy.einsum("rkgt,tkd->rkgd", weight, v).reshape(q.shape)

    def close(self):
        pass


class ServiceCache:
    """A pool of the service and its CPU worker. @token: of another engine's pool, or None."""

    def __init__(self, socket_path, name, pages, page_size, token=None):
        import attnd

        self.session = attnd.Session(socket_path, name)
        if token:
            self.pool = attnd.PagePool.attach(self.session, token)
        else:
            self.pool = attnd.PagePool(self.session, LAYERS, pages, page_size, HEADS_KV, DIM)
        self.pages, self.page_size = LeasedPages(attnd, self.pool), page_size
        self.attention = attnd.BatchAttention(self.pool)

    def planes(self, layer):
        return [x.numpy() for x in self.pool.kv_cache(layer)]

    def plan(self, batch, slots):
        self.attention.plan(*batch.part(0, len(batch.rows)), HEADS_Q, causal=True)

    def attend(self, layer, q, k, v):
        self.attention.append(k, v, layer)
        return self.attention.run(q, layer)[0]

    def share(self):
        return self.pool.share(writable=True)

    def close(self):
        self.pages.give_back()
        self.attention.close()
        self.pool.release()
        self.session.close()
