"""Models of Hugging Face's transformers on attnd: an attention function and a paged cache.

`register()` makes "attnd" an attention implementation of every model that takes part in the
registry. It works with a PagedCache, which is told before each forward pass which sequences take
part and how many new tokens each has: the tokens of all of them are packed in one row, prompts
beside single tokens, and each sequence attends to its own pages. K and V are stored in the type of
the pool, whatever type the model computes in. Layers say their scale, window, soft cap and sinks:
a step is planned once for all layers that attend alike.

    register()
    model.set_attn_implementation("attnd")
    cache = PagedCache(pool, num_qo_heads)
    a, b = cache.sequence(), cache.sequence()
    positions = cache.step([(a, len(prompt)), (b, 1)])
    model(input_ids=packed, position_ids=positions, past_key_values=cache, use_cache=True)
"""

import torch
import transformers

from ._layers import Ways


class Sequence:
    """One sequence: its pages, and how many tokens of it are stored there."""

    def __init__(self):
        self.pages, self.length = [], 0


class PagedCache(transformers.Cache):
    """KV pages of many sequences in one pool of the service."""

    is_compileable = False

    def __init__(self, pool, num_qo_heads):
        if pool.dtype != pool.rows_dtype:
            raise TypeError("a PagedCache keeps K and V as the model has them, and not in fp8")
        super().__init__(layers=[])
        self.pool, self.num_qo_heads = pool, num_qo_heads
        self.dtype = getattr(torch, pool.dtype)
        self._ways, self._way = Ways(pool, num_qo_heads), {"causal": True}
        self._room, self._buffers = 0, {}
        self._planes = [
            tuple(x if isinstance(x, torch.Tensor) else x.torch() for x in pool.kv_cache(layer))
            for layer in range(pool.layers)
        ]

    # ---- sequences ----

    def sequence(self, pages=(), length=None):
        """A new sequence; @pages: leases that it takes over, for instance claimed from a ticket,
        full of tokens unless @length says fewer."""
        made = Sequence()
        made.pages = list(map(int, pages))
        made.length = len(made.pages) * self.pool.page_size if length is None else length
        return made

    def fork(self, sequence, tokens):
        """A new sequence that begins with the first @tokens of another, as far as these fill pages:
        shared pages are read by both and written by none."""
        shared = sequence.pages[: min(tokens, sequence.length) // self.pool.page_size]
        if shared:
            self.pool.share_pages(shared)
        return self.sequence(shared)

    def end(self, sequence):
        """Give a sequence's pages back."""
        if sequence.pages:
            self.pool.free_pages(sequence.pages)
        sequence.pages, sequence.length = [], 0

    def step(self, batch):
        """Begin a forward pass of [(sequence, new tokens), ...]: pages for what is new. Return: the
        positions of the new tokens, [1, tokens]."""
        size, qo, kv, pages, last, positions = self.pool.page_size, [0], [0], [], [], []
        for sequence, tokens in batch:
            length = sequence.length + tokens
            missing = -(-length // size) - len(sequence.pages)
            if missing > 0:
                sequence.pages += self.pool.alloc_pages(missing).tolist()
            positions.append(torch.arange(sequence.length, length))
            sequence.length = length
            qo.append(qo[-1] + tokens)
            pages += sequence.pages[: -(-length // size)]
            kv.append(len(pages))
            last.append((length - 1) % size + 1)
        self._ways.begin((qo, kv, pages, last))
        self._make_buffers(qo[-1])
        positions = torch.cat(positions)
        if self.pool.device == "cuda":  # the pages that new tokens go to, for the stream
            table = torch.cat([
                torch.tensor(s.pages)[torch.arange(s.length - n, s.length) // size] for s, n in
                batch ])  # fmt: skip
            self._slots = table.cuda(), (positions % size).cuda()
            positions = positions.cuda()
        return positions[None]

    def _make_buffers(self, rows):
        """q, k, v and o of a pass, in memory of the session: copies into them are the only ones."""
        self.rows = rows
        if rows > self._room:
            self._room = max(64, 1 << (rows - 1).bit_length())
            session, device = self.pool.session, self.pool.device
            for name in "qkvo":
                heads = self.num_qo_heads if name in "qo" else self.pool.num_kv_heads
                shape = self._room, heads, self.pool.head_dim
                self._buffers[name] = session.empty(shape, self.pool.dtype, device).torch()

    def buffer(self, name):
        return self._buffers[name][: self.rows]

    # ---- what transformers calls ----

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Store the new tokens. What comes back only leads the attention function to this cache."""
        new = [self._rows(x) for x in (key_states, value_states)]
        if self.pool.device == "cuda":
            for plane, x in zip(self._planes[layer_idx], new):
                plane[self._slots] = x.to(self.dtype)
        else:
            k, v = self.buffer("k"), self.buffer("v")
            k.copy_(new[0])
            v.copy_(new[1])
            self._ways.attention(**self._way).append(k, v, layer_idx)
        key_states.attnd_cache = self
        return key_states, value_states

    def _rows(self, x):
        """[1, heads, tokens, dim] as [tokens, heads, dim]."""
        if x.shape[0] != 1 or x.shape[2] != self.rows:
            raise ValueError(f"step() planned one row of {self.rows} tokens, not {tuple(x.shape)}")
        return x[0].transpose(0, 1)

    def get_seq_length(self, layer_idx=0):
        return 0  # of which sequence? positions come from step()

    def get_max_length(self, layer_idx=0):
        return -1

    def get_mask_sizes(self, query_length, layer_idx=0):
        return query_length, 0

    def attend(self, query, layer, sinks=None, **way):
        """Attention of the step's tokens on one layer, in the way of plan()'s options. Return: [1,
        tokens, heads, dim]."""
        if sinks is not None:
            way["sinks"] = self._ways.sinks(layer, sinks)
        self._way = way  # most likely the one of the next layer's append
        q, o = self.buffer("q"), self.buffer("o")
        q.copy_(self._rows(query))
        self._ways.attention(**way).run(q, layer, o)
        return o[None].to(query.dtype, copy=True)


def attention(
    module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None,
    s_aux=None, is_causal=None, **kwargs,
):  # fmt: skip
    """The attention function "attnd" of transformers' registry."""
    cache = getattr(key, "attnd_cache", None)
    if cache is None:
        raise ValueError(
            "attention 'attnd' works with past_key_values=attnd.transformers.PagedCache"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotImplementedError("attention 'attnd' of transformers is causal")
    out = cache.attend(
        query, module.layer_idx, s_aux, causal=True, sm_scale=scaling, logits_soft_cap=softcap,
        window_left=sliding_window - 1 if sliding_window else -1,
    )  # fmt: skip
    return out, None


def register():
    """Make "attnd" known to transformers."""
    transformers.AttentionInterface.register("attnd", attention)
