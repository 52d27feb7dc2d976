"""Models of Hugging Face's transformers on attnd: an attention function, its masks, a paged cache.

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

What a model asks for and attnd does not compute is refused by its name in the first forward pass:
padding, masks of one's own, chunks, blocks that see each other, gradients, dropout. K and V that
come out of the cache stand for what is stored. A model that computes with them, because it attends
by itself, is told so.
"""

import functools

import torch
import transformers
from transformers.masking_utils import AttentionMaskInterface

from . import _convert
from ._layers import Ways


class Lacking(NotImplementedError, AttributeError):
    """hasattr() says no, and whoever needs it learns what is missing."""


class Stored(torch.Tensor):
    """K or V of a layer's new tokens, which the cache has stored. Only attention() uses it; what
    asks for its shape, type or place gets that."""

    @staticmethod
    def of(x, cache, layer):
        self = x.detach().as_subclass(Stored)
        self.cache, self.layer = cache, layer
        return self

    def to(self, *args, **kwargs):
        """Models that share layers move them to where they are."""
        return self

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if getattr(function, "__name__", "") not in _ASKED:
            raise NotImplementedError(
                f"attention 'attnd': the model computes with what its cache gave ({function}): it "
                "attends by itself, and not by the attention function that it was told"
            )
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))


_ASKED = "__get__", "size", "dim", "numel", "stride", "element_size", "is_contiguous", "__len__"
_ASKED += "is_floating_point", "get_device", "ndimension", "__repr__", "__hash__"


class Mask:
    """What a mask of transformers comes to: causal, with a window of keys or without."""

    def __init__(self, window):
        self.window = window

    def _refuse(self, *_, **__):
        raise NotImplementedError(
            "attention 'attnd': the model computes with its attention mask, which is not there"
        )

    __getitem__ = __add__ = __radd__ = __mul__ = __rmul__ = __eq__ = __invert__ = _refuse
    __hash__ = object.__hash__

    def __getattr__(self, name):
        raise Lacking(f"attention 'attnd': the model asks its attention mask for {name}")


def mask(
    batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=None,
    attention_mask=None, local_size=None, use_vmap=False, device="cpu", **_,
):  # fmt: skip
    """The mask function "attnd" of transformers' registry. Return: a Mask."""
    if attention_mask is not None and not bool(attention_mask.all()):
        raise NotImplementedError(
            "attention 'attnd': attention_mask has zeros. step() packs sequences without padding"
        )
    if use_vmap:
        raise NotImplementedError(
            "attention 'attnd': the model adds to its mask (or_mask_function, and_mask_function)"
        )

    def sees(queries, keys):
        zero = torch.zeros(1, dtype=torch.long, device=device)
        queries, keys = (torch.as_tensor(x, device=device).reshape(-1) for x in (queries, keys))
        return mask_function(zero, zero, queries, keys).expand(len(queries))

    own = torch.arange(q_length - 1) + q_offset
    if bool(sees(own, own + 1).any()):
        raise NotImplementedError("attention 'attnd': the mask lets tokens see what comes behind")
    if local_size is None:
        return Mask(None)
    size = int(local_size)
    try:
        chunk, window, before = sees([size, 4 * size, 4 * size], [size - 1, 3 * size + 1, 3 * size])
    except IndexError:
        chunk = window = before = False
    if size > 1 and not chunk:
        raise NotImplementedError(f"attention 'attnd': attention in chunks of {size} tokens")
    if not window or before:
        raise NotImplementedError(f"attention 'attnd': a mask that is no window of {size} keys")
    return Mask(size)


class Sequence:
    """One sequence of a cache: its pages, and how many tokens of it are stored there."""

    def __init__(self, cache):
        self.cache, self.pages, self.length = cache, [], 0


class _NoLayers(list):
    """What a cache of transformers keeps of each layer, and this one does not."""

    def __getitem__(self, index):
        raise Lacking("attnd's PagedCache has no layers to look into: the model wants another")


class PagedCache(transformers.Cache):
    """KV pages of many sequences in one pool of the service."""

    is_compileable = is_croppable = False

    def __init__(self, pool, num_qo_heads):
        if pool.dtype != pool.rows_dtype:
            raise TypeError("a PagedCache keeps K and V as the model has them, and not in fp8")
        super().__init__(layers=_NoLayers())
        self.pool = pool
        self.num_qo_heads = _convert.integer("num_qo_heads", num_qo_heads, 1, _convert.U16)
        self.dtype, self.rows = getattr(torch, pool.dtype), 0
        self._ways, self._way = Ways(pool, self.num_qo_heads), {"causal": True}
        self._room, self._buffers = 0, {}
        self._begun, self._stored, self._positions = [], set(), None  # of the step
        self._planes = [
            tuple(x if isinstance(x, torch.Tensor) else x.torch() for x in pool.kv_cache(layer))
            for layer in range(pool.layers)
        ]

    def __getattr__(self, name):
        raise Lacking(f"attnd's PagedCache has no {name}: the model needs another cache")

    # ---- sequences ----

    def sequence(self, pages=(), length=None):
        """A new sequence; @pages: leases that it takes over, for instance claimed from a ticket,
        full of tokens unless @length says fewer."""
        self.pool.session.check()
        made = Sequence(self)
        pages = _convert.as_array("pages", pages).tolist()
        most = len(pages) * self.pool.page_size
        made.length = most if length is None else _convert.integer("length", length, 0, most)
        made.pages = pages
        return made

    def fork(self, sequence, tokens):
        """A new sequence that begins with the first @tokens of another, as far as these fill pages:
        shared pages are read by both and written by none."""
        self.pool.session.check()
        self._own("sequence", sequence)
        tokens = _convert.integer("tokens", tokens, 0, _convert.I32)
        shared = sequence.pages[: min(tokens, sequence.length) // self.pool.page_size]
        if shared:
            self.pool.share_pages(shared)
        return self.sequence(shared)

    def end(self, sequence):
        """Give a sequence's pages back."""
        self.pool.session.check()
        self._own("sequence", sequence)
        if sequence.pages:
            self.pool.free_pages(sequence.pages)
        sequence.pages, sequence.length = [], 0
        self._begun = [begun for begun in self._begun if begun[0] is not sequence]

    def step(self, batch):
        """Begin a forward pass of [(sequence, new tokens), ...]: pages for what is new. Where it
        fails, nothing has changed. Return: the positions of the new tokens, [1, tokens]."""
        self.pool.session.native()
        size, batch = self.pool.page_size, self._batch(batch)
        lengths = [sequence.length + tokens for sequence, tokens in batch]
        wanted = [-(-length // size) for length in lengths]
        missing = [max(n - len(s.pages), 0) for n, (s, _) in zip(wanted, batch)]
        rows = sum(tokens for _, tokens in batch)
        positions = torch.cat(
            [torch.arange(s.length, length) for (s, _), length in zip(batch, lengths)]
        )
        self._make_buffers(rows)
        new = self.pool.alloc_pages(sum(missing)).tolist() if any(missing) else []
        try:
            tables, at = [], 0
            for (sequence, _), more in zip(batch, missing):
                tables.append(sequence.pages + new[at : at + more])
                at += more
            qo, kv, pages, last = [0], [0], [], []
            for (_, tokens), table, count, length in zip(batch, tables, wanted, lengths):
                qo.append(qo[-1] + tokens)
                pages += table[:count]
                kv.append(len(pages))
                last.append((length - 1) % size + 1)
            if self.pool.device == "cuda":  # the pages that new tokens go to, for the stream
                table = torch.cat([
                    torch.tensor(table, dtype=torch.long)[torch.arange(n - tokens, n) // size]
                    for (_, tokens), table, n in zip(batch, tables, lengths)
                ])  # fmt: skip
                self._slots = table.cuda(), (positions % size).cuda()
                positions = positions.cuda()
        except BaseException:
            if new:
                self.pool.free_pages(new)
            raise
        self._begun = [(sequence, sequence.length, len(sequence.pages)) for sequence, _ in batch]
        for (sequence, _), table, length in zip(batch, tables, lengths):
            sequence.pages, sequence.length = table, length
        self._ways.begin((qo, kv, pages, last))
        self.rows, self._stored, self._positions = rows, set(), positions[None]
        return self._positions

    def _own(self, name, sequence):
        """Page ids say nothing of the pool that they are of."""
        if not isinstance(sequence, Sequence):
            raise TypeError(f"{name} is of {type(sequence).__name__}, and no sequence")
        if sequence.cache is not self:
            raise ValueError(f"{name} is a sequence of another cache")

    def _batch(self, batch):
        """step()'s batch, converted."""
        try:
            batch = [(sequence, tokens) for sequence, tokens in batch]
        except (TypeError, ValueError):
            raise TypeError(f"batch is {batch!r}; it is pairs of a sequence and tokens") from None
        made = []
        for i, (sequence, tokens) in enumerate(batch):
            self._own(f"batch[{i}]", sequence)
            if any(sequence is other for other, _ in made):
                raise ValueError(f"batch[{i}] is a sequence that is in the batch already")
            made.append((sequence, _convert.integer(f"tokens of batch[{i}]", tokens, 0, 1 << 22)))
        if not made:
            raise ValueError("batch has no sequences")
        return made

    def rollback(self):
        """Undo the last step, for instance when its forward pass has raised: sequences are as long
        as before, and the pages that it took go back."""
        self.pool.session.check()
        begun, self._begun, self.rows, self._positions = self._begun, [], 0, None
        pages = [page for sequence, _, had in begun for page in sequence.pages[had:]]
        for sequence, length, had in begun:
            sequence.pages, sequence.length = sequence.pages[:had], length
        if pages:
            self.pool.free_pages(pages)

    def _make_buffers(self, rows):
        """q, k, v and o of a pass, in memory of the session: copies into them are the only ones."""
        if rows <= self._room:
            return
        room = max(64, 1 << (rows - 1).bit_length())
        pool, made = self.pool, {}
        for name in "qkvo":
            heads = self.num_qo_heads if name in "qo" else pool.num_kv_heads
            dim = pool.head_dim if name in "qk" else pool.head_dim_vo
            made[name] = pool.session.empty((room, heads, dim), pool.dtype, pool.device).torch()
        self._room, self._buffers = room, made

    def buffer(self, name):
        return self._buffers[name][: self.rows]

    # ---- what transformers calls ----

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        """Store the new tokens. What comes back only leads the attention function to this cache."""
        self.pool.session.check()
        layer = _convert.integer("layer_idx", layer_idx, 0, self.pool.layers - 1)
        if self._positions is None or layer in self._stored:
            raise ValueError(f"layer {layer}: step() comes before each forward pass")
        new = [self._rows("kv"[i], x) for i, x in enumerate((key_states, value_states))]
        if self.pool.device == "cuda":
            for plane, x in zip(self._planes[layer], new):
                plane[self._slots] = x.to(self.dtype)
        else:
            k, v = self.buffer("k"), self.buffer("v")
            k.copy_(new[0])
            v.copy_(new[1])
            self._ways.attention(**self._way).append(k, v, layer)
        self._stored.add(layer)
        return tuple(Stored.of(x, self, layer) for x in (key_states, value_states))

    def _rows(self, name, x):
        """[1, heads, tokens, dim] as [tokens, heads, dim], as the buffer @name has them."""
        if torch.is_grad_enabled() and x.requires_grad:
            raise NotImplementedError(
                "attention 'attnd' has no gradients: call the model under torch.no_grad()"
            )
        if x.dim() != 4 or x.shape[0] != 1 or x.shape[2] != self.rows:
            raise ValueError(f"step() planned one row of {self.rows} tokens, not {tuple(x.shape)}")
        rows, wanted = x[0].transpose(0, 1), self.buffer(name).shape
        if rows.shape != wanted:
            raise ValueError(
                f"{name} has heads of {tuple(rows.shape[1:])}, and {tuple(wanted[1:])} by the pool "
                "and num_qo_heads: attnd keeps no latents for the model to expand"
            )
        return rows

    def get_seq_length(self, layer_idx=0):
        """What a model without position_ids begins to count at."""
        lengths = {had for _, had, _ in self._begun}
        if len(self._begun) > 1 and lengths != {0}:
            raise ValueError("position_ids is None: step() has given those of each sequence")
        return max(lengths, default=0)

    def get_query_offset(self, layer_idx=0):
        return 0

    def get_max_length(self, layer_idx=0):
        return -1

    def get_mask_sizes(self, query_length, layer_idx=0):
        return query_length, 0

    def check_positions(self, position_ids):
        """Those of the step, if the model hands on which it has."""
        wanted = self._positions
        if position_ids is None or position_ids is wanted or wanted is None:
            return
        if position_ids.dim() == 3:  # of text, all three are the same
            position_ids = position_ids[0]
        same = position_ids.shape == wanted.shape and torch.equal(
            position_ids.to(wanted.device, wanted.dtype), wanted
        )
        if not same:
            raise ValueError("position_ids are not those that step() gave")

    def attend(self, query, layer, sinks=None, **way):
        """Attention of the step's tokens on one layer, in the way of plan()'s options. Return: [1,
        tokens, heads, dim]."""
        self.pool.session.check()
        rows = self._rows("q", query)
        if sinks is not None:
            way["sinks"] = self._ways.sinks(layer, sinks)
        self._way = way  # most likely the one of the next layer's append
        q, o = self.buffer("q"), self.buffer("o")
        q.copy_(rows)
        self._ways.attention(**way).run(q, layer, o)
        return o[None].to(query.dtype, copy=True)


# What a cache of transformers does to all of its layers. This one has none, so it would do nothing,
# and beams that were left or drafts that were rejected would stay.
_OF_ALL_LAYERS = (
    "activate_past_recording", "batch_repeat_interleave", "batch_select_indices", "crop",
    "early_initialization", "offload", "prefetch", "reorder_cache", "reset",
)  # fmt: skip


@property
def _absent(self):
    raise AttributeError  # __getattr__() has the words


for _name in _OF_ALL_LAYERS:
    setattr(PagedCache, _name, _absent)


# What models hand on and attention does not depend on, or that is honoured elsewhere.
_IGNORED = frozenset((
    "position_ids", "cache_position", "use_cache", "output_hidden_states", "return_dict",
    "logits_to_keep", "num_items_in_batch", "output_router_logits", "position_embeddings",
    "past_key_values", "past_key_value", "layer_idx", "is_causal",
))  # fmt: skip


def attention(
    module, query, key, value, attention_mask, scaling=None, sliding_window=None, softcap=None,
    s_aux=None, is_causal=None, dropout=0.0, **kwargs,
):  # fmt: skip
    """The attention function "attnd" of transformers' registry."""
    if not isinstance(key, Stored) or not isinstance(value, Stored):
        raise ValueError(
            "attention 'attnd' works with past_key_values=attnd.transformers.PagedCache, on K and "
            "V as that gave them"
        )
    if not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotImplementedError("attention 'attnd' of transformers is causal")
    if key.cache is not value.cache or key.layer != value.layer:
        raise NotImplementedError("attention 'attnd': K and V are of two layers")
    if dropout:
        raise NotImplementedError(f"attention 'attnd' has no dropout, which is {dropout}")
    for name, said in kwargs.items():
        if name not in _IGNORED and said is not None and said is not False:
            raise NotImplementedError(f"attention 'attnd' has no {name}")
    key.cache.check_positions(kwargs.get("position_ids"))
    window = sliding_window
    if isinstance(attention_mask, Mask):  # it is what eager attention would go by
        window = attention_mask.window
    elif attention_mask is not None:
        raise NotImplementedError(
            f"attention 'attnd': attention_mask is a tensor of {tuple(attention_mask.shape)}"
        )
    out = key.cache.attend(
        query, key.layer, s_aux, causal=True, sm_scale=scaling, logits_soft_cap=softcap,
        window_left=-1 if window is None else _convert.integer("sliding_window", window, 1,
        _convert.I32) - 1,
    )  # fmt: skip
    return out, None


# What layers do, by transformers' names, as far as attnd has it.
_LAYER_TYPES = frozenset(("full_attention", "sliding_attention", "attention", "moe"))
# Models that count positions from behind their padding token's id, whatever step() says.
_OWN_POSITIONS = frozenset((
    "camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl", "xmod",
))  # fmt: skip


def check(model):
    """Refuse a model by what attnd lacks for it, as far as its class and configuration tell. The
    first forward pass refuses the rest. A model that is made with attn_implementation="attnd", or
    has it set, calls this."""
    config, modules = model.config.get_text_config(), list(model.modules())
    if modules[1:] and not any("atten" in type(x).__name__.lower() for x in modules):
        raise NotImplementedError(f"attention 'attnd': {type(model).__name__} has no attention")
    if not model._can_set_attn_implementation():
        raise NotImplementedError(
            f"attention 'attnd': {type(model).__name__} attends by itself, and takes no other "
            "attention function"
        )
    for kind in getattr(config, "layer_types", None) or ():
        if kind not in _LAYER_TYPES:
            raise NotImplementedError(f"attention 'attnd' has no layers of {kind}")
    if config.model_type in _OWN_POSITIONS:
        raise NotImplementedError(
            f"attention 'attnd': {config.model_type} counts positions from its padding token on, "
            "and not as step() does"
        )


def _checking(method):
    """A method of PreTrainedModel that is told an implementation: it else only warns of models that
    attend by themselves, or says nothing."""

    @functools.wraps(method)
    def checked(self, attn_implementation, *args, **kwargs):
        if attn_implementation == "attnd":
            check(self)
        return method(self, attn_implementation, *args, **kwargs)

    checked.of_attnd = True
    return checked


def register():
    """Make "attnd" known to transformers."""
    transformers.AttentionInterface.register("attnd", attention)
    AttentionMaskInterface.register("attnd", mask)
    for name in ("set_attn_implementation", "_check_and_adjust_attn_implementation"):
        method = getattr(transformers.PreTrainedModel, name, None)
        if method is not None and not hasattr(method, "of_attnd"):
            setattr(transformers.PreTrainedModel, name, _checking(method))
