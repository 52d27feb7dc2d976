"""What the engines' modules share: a batch that layers attend to in different ways, a pool over an
engine's own KV tensors, and page tables of those engines as CSR arrays. _steps.py has what they do
on a GPU whose streams execute their runs.

An engine hands q and out at another address in every pass. They are copied through two buffers that
stay where they are: a run is prepared for its addresses, once for each layer.
"""

import numpy
import torch

from ._library import allocation_of
from .attention import BatchAttention
from .pool import PagePool


def csr_of_blocks(query_start_loc, seq_lens, block_table, block_size):
    """A dense table of blocks, [requests, blocks], as CSR arrays. Requests of no rows at the end
    are padding: they get no pages. Return: qo_indptr, kv_indptr, kv_indices, kv_last_page_len."""
    qo, lengths, table = (_host(x) for x in (query_start_loc, seq_lens, block_table))
    lengths = numpy.where(qo[1:] > qo[:-1], lengths[: len(qo) - 1], 0)
    blocks = -(-lengths // block_size)
    kv = numpy.zeros(len(qo), numpy.int32)
    numpy.cumsum(blocks, out=kv[1:])
    indices = table[: len(lengths)][numpy.arange(table.shape[1]) < blocks[:, None]]
    last = numpy.where(lengths > 0, (lengths - 1) % block_size + 1, 1)
    return qo.astype(numpy.int32), kv, indices.astype(numpy.int32), last.astype(numpy.int32)


def _host(x):
    return x.cpu().numpy() if isinstance(x, torch.Tensor) else numpy.asarray(x)


def identity(x):
    """What a tensor of an engine is: its place, its form, and which allocation that is. An engine
    that frees its memory and makes it anew may get the same addresses."""
    allocation = allocation_of(x.data_ptr()) if x.is_cuda else x.untyped_storage().nbytes()
    return x.data_ptr(), allocation, x.shape, x.stride(), x.dtype


class Ways:
    """One batch, planned once for each way in which layers attend to it: models mix layers with and
    without a window. A way is a set of plan()'s options."""

    def __init__(self, pool, num_qo_heads):
        self.pool, self.num_qo_heads = pool, num_qo_heads
        self._csr, self._attentions, self._planned = None, {}, set()
        self._sinks = self._sinks_rows = None

    def begin(self, csr):
        """The batch of the next pass: qo_indptr, kv_indptr, kv_indices, kv_last_page_len. It is
        planned when a layer asks."""
        self._csr = csr
        self._planned.clear()

    def attention(self, **options):
        """BatchAttention of the batch in this way. Values of @options can be hashed: sinks are the
        table of sinks(), and a tensor without dimensions is the number that it is now."""
        if any(getattr(x, "shape", None) == () for x in options.values()):
            options = {
                name: x.item() if getattr(x, "shape", None) == () else x
                for name, x in options.items()
            }
        way = tuple(options.items())
        if way not in self._planned:
            if way not in self._attentions:
                self._attentions[way] = BatchAttention(self.pool)
            self._attentions[way].plan(*self._csr, self.num_qo_heads, **options)
            self._planned.add(way)
        return self._attentions[way]

    def sinks(self, layer, values):
        """The table of all layers' sinks, [layers, heads], with @values in the layer's place: one
        for all passes, so that layers with sinks are planned once. They are copied each time:
        weights may be written in place in ways that PyTorch does not count (through .data, or in
        inference mode), and others may lie where they lay."""
        if tuple(values.shape) != (self.num_qo_heads,):
            raise ValueError(f"sinks are {tuple(values.shape)}; they are ({self.num_qo_heads},)")
        if self._sinks is None:
            shape = self.pool.layers, self.num_qo_heads
            self._sinks = self.pool.session.empty(shape, "float32", self.pool.device)
            self._sinks_rows = self._sinks.torch()
        self._sinks_rows[layer].copy_(values.detach())
        return self._sinks


class Layers:
    """Attention over the layers of one engine, planned on the host: [(k, v), ...], each [page,
    token, head, dim]. @dtype: of q; @kv_dtype: the type of fp8 that planes of uint8 hold; @options:
    of plan(), in all ways; what else _steps.Steps is told, this does without."""

    def __init__(
        self, session, planes, num_qo_heads, *, dtype, kv_dtype=None, requests=None, rows=None,
        sizes=(), keys=None, **options,
    ):  # fmt: skip
        self.pool = PagePool.from_tensors(session, planes, dtype=kv_dtype)
        self.num_qo_heads, self.dtype, self.rows = num_qo_heads, dtype, 0
        self._options = {"q_data_type": dtype, **options}
        self._ways = Ways(self.pool, num_qo_heads)
        self._q = self._o = None

    def begin(self, starts, lengths, table):
        """A step: qo_indptr [requests + 1], lengths in tokens [requests] and pages [requests, most]
        of it, which come to the host. Return: what runs its layers."""
        csr = csr_of_blocks(starts, lengths, table, self.pool.page_size)
        self.rows = int(csr[0][-1])
        self._ways.begin(csr)
        if self._q is None or len(self._q) < self.rows:
            room = max(256, 1 << (self.rows - 1).bit_length())
            pool = self.pool
            shapes = [(room, self.num_qo_heads, d) for d in (pool.head_dim, pool.head_dim_vo)]
            if pool.device == "cuda":
                self._q, self._o = (
                    torch.empty(shape, dtype=getattr(torch, self.dtype), device="cuda")
                    for shape in shapes
                )
            else:
                self._q, self._o = (pool.session.empty(x, self.dtype).torch() for x in shapes)
        return self

    def run(self, layer, q, out, sinks=None, name=None, **way):
        """Attention of the step on one layer, in the way that options of plan() say. Rows beyond
        the step's are left as they are."""
        if sinks is not None:
            way["sinks"] = self._ways.sinks(layer, sinks)
        rows = self.rows
        if len(q) < rows or len(out) < rows:
            raise ValueError(f"q has {len(q)} rows and out {len(out)}; the step has {rows}")
        attention = self._ways.attention(**self._options, **way)
        self._q[:rows].copy_(q[:rows])
        attention.run(self._q[:rows], layer, self._o[:rows])
        out[:rows].copy_(self._o[:rows])
