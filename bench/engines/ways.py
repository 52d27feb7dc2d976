"""The ways to compute attention: objects with `attend(layer)`, called while a graph is captured.
Where `appends` is true, attend() also rotates, and updates the cache; else that is done in front of
it. FlashInfer's is in flashinfer_way.py.

All ways read q from the product's output, where its rows lie among those of k and v, and write the
same o. What they need is planned once, before the capture.
"""

import pathlib
import sys

from cases import PAGE_SIZE

# Behind an installed one.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))


def starts(counts):
    """[0, a, a + b, ...] of [a, b, ...]."""
    found = [0]
    for count in counts:
        found.append(found[-1] + count)
    return found


class PagedBatch:
    """A role's requests as page tables."""

    def __init__(self, requests, pages, page_size=PAGE_SIZE):
        self.page_size = page_size
        self.rows = [rows for rows, _ in requests]
        self.tokens = [tokens for _, tokens in requests]
        self.counts = [-(-tokens // page_size) for tokens in self.tokens]
        at = starts(self.counts)
        self.pages = [pages[at[i] : at[i + 1]] for i in range(len(requests))]

    def part(self, first, last):
        """qo_indptr, kv_indptr, kv_indices, kv_last_page_len of the requests [first, last)."""
        return (
            starts(self.rows[first:last]),
            starts(self.counts[first:last]),
            [page for pages in self.pages[first:last] for page in pages],
            [(tokens - 1) % self.page_size + 1 for tokens in self.tokens[first:last]],
        )

    def places(self):
        """Of every row: its position, and its slot in the cache (page * page_size + token)."""
        positions = [
            tokens - rows + row
            for rows, tokens in zip(self.rows, self.tokens)
            for row in range(rows)
        ]
        requests = [request for request, rows in enumerate(self.rows) for _ in range(rows)]
        size = self.page_size
        slots = [
            self.pages[request][position // size] * size + position % size
            for request, position in zip(requests, positions)
        ]
        return positions, slots

    @property
    def chunks(self):
        """How many requests come first that have more than one row."""
        return sum(rows > 1 for rows in self.rows)


class NoAttention:
    """The same layers without attention: the ceiling. o is what it was."""

    appends = False

    def attend(self, layer):
        pass

    def close(self):
        pass


class AttndSession:
    """One session, and a pool of the engine's own tensors: those of all layers."""

    def __init__(self, buffers, socket_path, name):
        import attnd

        self.attnd = attnd
        self.session = attnd.Session(socket_path, name)
        self.pool = attnd.PagePool.from_tensors(self.session, list(zip(buffers.k, buffers.v)))
        self.plans = []

    def attention(self, batch, buffers, fuses=True):
        """Attention of one batch. @fuses: runs also rotate and update the cache, if that is one
        launch, and the engine's streams execute them."""
        planned = AttndAttention(self.attnd.BatchAttention(self.pool), batch, buffers)
        executor = self.session.info["executor"]  # known: runs are prepared
        planned.appends = fuses and one_launch(batch, buffers) and executor == "engine"
        self.plans.append(planned)
        return planned

    def residency(self):
        return self.session.info["residency"]

    def lane_error(self):
        """What the first run failed with since this was last asked, in words, or None."""
        if not self.plans:
            return None
        try:
            self.plans[0].attention.lane_error()
        except self.attnd.Error as failure:
            return str(failure)
        return None

    def close(self):
        for planned in self.plans:
            planned.attention.close()
        self.pool.release()
        self.session.close()


def one_launch(batch, buffers):
    """Does a run of the batch rotate and update the cache in its own launch? All requests have few
    rows then, of all heads that share K."""
    _, heads_q, dim = buffers.q[0].shape
    group = heads_q // buffers.new_k[0].shape[1]
    return max(batch.rows) * group <= (16 if dim <= 128 else 8)


class AttndAttention:
    """One plan, a prepared run a layer."""

    appends = False  # unless its session says otherwise

    def __init__(self, attention, batch, buffers):
        self.attention, self.buffers = attention, buffers
        attention.plan(
            *batch.part(0, len(batch.rows)), buffers.q[0].shape[1], causal=True,
            q_strides=buffers.q[0].stride()[:2], out_strides=buffers.o[0].stride()[:2],
        )  # fmt: skip
        for layer in range(len(buffers.q)):
            attention.prepare(buffers.q[layer], layer, buffers.o[layer])

    def attend(self, layer):
        q, o, new = self.buffers.q[layer], self.buffers.o[layer], self.buffers
        if self.appends:
            self.attention.run_fused(
                q, new.new_k[layer], new.new_v[layer], layer, o, cos_sin=new.cos_sin
            )  # fmt: skip
        else:
            self.attention.run(q, layer, o)
