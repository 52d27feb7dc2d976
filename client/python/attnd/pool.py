"""A pool of KV pages: its memory, its leases, and how other processes come to it.

A pool of the service lies in memory that the service made, in the order [layer][K, V][page][token]
[head][dim], and hands its pages out by leases. A page goes back when no lease of it is left, so a
prefix that several requests read is leased once for each. `share()` gives a token with which
another session attaches the pool; `offer_pages()` gives a ticket that moves leases to the session
that claims it. A pool of tensors lies in the engine's own memory, and the engine hands out its
pages itself.
"""

from __future__ import annotations

import ctypes as c
import math
import typing

import numpy

from . import _abi, _convert, _dlpack
from ._leasing import BringOperation
from ._library import lib
from ._waiting import Operation
from .errors import checked
from .memory import BYTES, Memory, Tensor, current_cuda_device, describe, dtype_name

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from ._types import Array, Device, DType, Ints, Layer
    from .session import Session

_PAGES_MAX = 1 << 24  # of a pool
_DTYPE_NAMES = {number: name for name, number in _abi.DTYPES.items()}


class KVCache(tuple):
    """K and V of one layer: tensors [page, token, head, dim]. What BatchAttention.run() takes."""

    def __new__(cls, pool, layer, k, v):
        self = super().__new__(cls, (k, v))
        self.pool, self.layer = pool, layer
        return self


class Handle:
    """A handle of the library, given back by @release when nobody has it any more. A pool's is had
    by the pool, its plans, its tensors and its namespaces (@keep)."""

    def __init__(self, native, handle, release, keep=None):
        self.native, self.handle, self.release, self.keep = native, handle, release, keep

    def __del__(self):
        if self.native is not None and self.native.alive:
            self.release(self.native, self.handle)


class PagePool:
    """A pool made by the service, with pages that are leased (or, leased=False, the engine's).

    @head_dim is that of K, and of V too unless @head_dim_vo says another (192 and 128, or 576 and
    512 for MLA). @dtype may be fp8, "float8_e4m3fn" or "float8_e5m2": append() quantises then, and
    plan() says the scales and the type of the rows beside it."""

    def __init__(
        self, session: Session, layers: int, pages: int, page_size: int, num_kv_heads: int,
        head_dim: int, dtype: DType = "float16", device: Device = "cpu", leased: bool = True,
        head_dim_vo: int | None = None,
    ) -> None:  # fmt: skip
        session.native()
        dims = head_dim, head_dim if head_dim_vo is None else head_dim_vo
        desc = _desc(layers, pages, page_size, num_kv_heads, dims, dtype, leased)
        _convert.choice("device", device, ("cpu", "cuda"))
        desc.memory_kind = _abi.HOST if device == "cpu" else _abi.DEVICE
        self._open(session, _create(session, desc))

    @classmethod
    def attach(cls, session: Session, token: bytes) -> PagePool:
        """The pool of another session, by the token that it gave."""
        native, handle = session.native(), c.c_uint32()
        token = token_of("token", token)
        checked(lib.attnd_pool_attach(native, c.byref(token), c.byref(handle)))
        return cls._of(session, handle.value)

    @classmethod
    def from_tensors(
        cls, session: Session, layers: Sequence[Array | tuple[Array, Array]],
        kv_layout: Literal["NHD", "HND"] = "NHD", leased: bool = False, dtype: DType | None = None,
    ) -> PagePool:  # fmt: skip
        """A pool in the engine's own tensors: one (k, v) for each layer, or one 5-D tensor with K
        and V in dimension 1, in FlashInfer's NHD or HND. They must stay alive as long as the pool.
        V may be a part of K's rows, as in MLA: (k, k[..., :512]). @dtype: the type of fp8 that
        tensors of uint8 hold."""
        session.native()
        _convert.choice("kv_layout", kv_layout, ("NHD", "HND"))
        order = (0, 1, 2) if kv_layout == "NHD" else (0, 2, 1)
        try:
            layers = list(layers)
        except TypeError:
            raise TypeError(f"layers is {layers!r}; it is a list of K and V of each") from None
        kept, planes, places, shapes = [], ([], []), {}, ({}, {})
        for number, layer in enumerate(layers):
            for which, x in enumerate(_split(f"layers[{number}]", layer)):
                described = _describe_plane(f"layers[{number}]", x)
                address, shape, strides, held, kind, _ = described
                memory, offset, keep = session.place(described)
                shapes[which][(*(shape[i] for i in order), shape[3], held)] = number
                planes[which].append(_abi.Plane(memory, offset, *(strides[i] for i in order)))
                kept.append(keep)
            places[_place_of(_split("layers", layer))] = number
        (*of_k, dim_qk, held), (*of_v, dim_vo, of_v_held) = map(_the_only, shapes)
        if held != of_v_held:
            raise ValueError(f"layers have K of {held} and V of {of_v_held}")
        if of_k != of_v:
            raise ValueError(f"K has {of_k} pages, tokens and heads, and V has {of_v}")
        pages, page_size, heads = of_k
        if dtype is not None:
            dtype = dtype_name(dtype)
            if dtype != held and (held != "uint8" or BYTES[dtype] != 1):
                raise ValueError(f"dtype is {dtype}, and the tensors hold {held}")
            held = dtype
        desc = _desc(len(planes[0]), pages, page_size, heads, (dim_qk, dim_vo), held, leased)
        desc.k, desc.v = ((_abi.Plane * len(of))(*of) for of in planes)
        self = cls._of(session, _create(session, desc))
        self._tensors, self._layer_at = kept, places
        self._given = [KVCache(self, i, *_split("layers", x)) for i, x in enumerate(layers)]
        self.device = "cpu" if kind == _dlpack.CPU else "cuda"
        return self

    @classmethod
    def _of(cls, session, handle):
        self = cls.__new__(cls)
        self._open(session, handle)
        return self

    def _open(self, session, handle):
        native = session.native()
        self.session, self.handle, self.plans = session, handle, 0
        self.keeper, self._layer_at, self._given, self._tensors = (
            Handle(native, handle, lib.attnd_pool_release),
            {},
            None,
            None,
        )
        info = _abi.PoolInfo()
        checked(lib.attnd_pool_info(native, handle, c.byref(info)))
        desc = info.desc
        self.layers, self.pages, self.page_size = desc.layers, desc.pages, desc.page_size
        self.num_kv_heads, self.head_dim, self.head_dim_vo = (
            desc.heads_kv, desc.dim_qk, desc.dim_vo
        )  # fmt: skip
        self.dtype = _DTYPE_NAMES[desc.dtype]
        self.rows_dtype = self.dtype if self.dtype in _abi.ROWS else "float16"
        self.leased = desc.page_owner == _abi.PAGES_OF_SERVICE
        self.writable = bool(info.writable)
        self.memory, self.device = None, "cpu"
        if info.memory:
            self.memory = self._map(native, info)
            self._planes = [
                [(p[i].offset_bytes, p[i].stride_page, p[i].stride_token, p[i].stride_head)
                 for p in (desc.k, desc.v)]
                for i in range(desc.layers)
            ]  # fmt: skip
            for layer in range(desc.layers):
                self._layer_at[_place_of(self.kv_cache(layer))] = layer

    def _map(self, native, info):
        """The pool's memory. What looks at it keeps the pool's handle, and that keeps the
        mapping."""
        where, about = (_dlpack.CPU, 0), _abi.MemoryInfo()
        checked(lib.attnd_memory_info(native, info.memory, c.byref(about)))
        if about.memory_kind != _abi.HOST:
            where, self.device = (_dlpack.CUDA, current_cuda_device()), "cuda"
        keeper = self.keeper
        memory = Memory(
            native, info.memory, info.address or None, info.memory_bytes, where,
            drop=(lambda *_: keeper, None),
        )  # fmt: skip
        return self.session.adopt(memory)

    def release(self) -> None:
        """Let the pool go, and its leases, as soon as nobody looks at its memory any more."""
        ended = self.session is None or self.session.closed
        if self.session is not None:
            self.session.check()
        if self.plans and not ended:
            self.session.destroy_doomed()
        if self.plans and not ended:
            raise ValueError(f"{self.plans} plans of this session use the pool: close them first")
        self.keeper = self.memory = self._tensors = self._given = self.session = None

    # ---- what lies in it ----

    def kv_cache(self, layer: int) -> KVCache:
        """K and V of a layer, [page, token, head, head_dim] and [.., head_dim_vo]."""
        if self.session is None:
            raise ValueError("the pool is released")
        self.session.check()
        layer = _convert.integer("layer", layer, 0, self.layers - 1)
        if self._given is not None:
            return self._given[layer]
        if self.memory is None:
            raise ValueError("the pool's memory is not mapped here: it is another engine's")
        shape = self.pages, self.page_size, self.num_kv_heads
        dims = self.head_dim, self.head_dim_vo
        k, v = (
            self.memory.tensor((*shape, dim), self.dtype, offset, (*strides, 1))
            for dim, (offset, *strides) in zip(dims, self._planes[layer])
        )
        return KVCache(self, layer, k, v)

    def layer_of(self, kv_cache: Layer) -> int:
        """Which layer a kv_cache is: a number, what kv_cache() gave, or tensors at its place."""
        if type(kv_cache) is int and 0 <= kv_cache < self.layers:
            return kv_cache
        if self.session is not None:
            self.session.check()
        if isinstance(kv_cache, KVCache):
            if kv_cache.pool is not self:
                raise ValueError("kv_cache is a layer of another pool")
            return kv_cache.layer
        if isinstance(kv_cache, (tuple, list)) or len(getattr(kv_cache, "shape", ())) > 1:
            layer = self._layer_at.get(_place_of(_split("kv_cache", kv_cache)))
            if layer is None:
                raise ValueError("kv_cache is no layer of the pool")
            return layer
        return _convert.integer("kv_cache", kv_cache, 0, self.layers - 1)

    # ---- leases ----

    def alloc_pages(self, count: int) -> numpy.ndarray:
        """Lease free pages; a numpy array of their ids."""
        native, handle = self._native(), self.handle
        pages = numpy.full(_convert.integer("count", count, 0, _PAGES_MAX), -1, numpy.int32)
        try:
            for part in _parts(pages):
                checked(lib.attnd_pages_alloc(native, handle, len(part), part.ctypes.data))
            return pages
        except BaseException:  # a signal's, too: what was leased would be nobody's
            self.free_pages(pages[pages >= 0])
            raise

    def share_pages(self, pages: Ints) -> None:
        """One more lease of each page, for this session: for another request with this prefix. Of
        all of them or, where it fails, of none."""
        native, handle, had = self._native(), self.handle, 0
        pages = _convert.as_array("pages", pages)
        try:
            for part in _parts(pages):
                checked(lib.attnd_pages_share(native, handle, len(part), part.ctypes.data))
                had += len(part)
        except BaseException:
            self.free_pages(pages[:had])
            raise

    def free_pages(self, pages: Ints) -> None:
        """Give one lease of each page back, when nothing in flight reads or writes them: the next
        owner writes them, and a batch that names them is not to be run again. Of all of them or,
        where it fails, of none."""
        native, handle = self._native(), self.handle
        pages = _convert.as_array("pages", pages)
        if len(pages) > _abi.LEASE_PAGES_MAX:
            pages = self._taken_together(pages)
        for part in _parts(pages):
            checked(lib.attnd_pages_free(native, handle, len(part), part.ctypes.data))

    def _taken_together(self, pages):
        """More pages than a call frees: that this session has each lease is known when all of them
        are in tickets. It then takes them back, and they can be freed one part after the other."""
        tickets, failure = [], None
        try:
            for part in _parts(pages):
                tickets.append(self.offer_pages(part))
        except BaseException as why:
            failure = why
        for ticket in tickets:
            self.claim_pages(ticket)
        if failure is not None:
            raise failure
        return pages

    def offer_pages(self, pages: Ints, expire_s: float = 60) -> bytes:
        """Move one lease of each page to a ticket of 16 bytes, which another session can claim
        within @expire_s seconds, 0.001 to 600."""
        ticket = _abi.Token()
        try:
            return self._offer(lib.attnd_pages_offer, pages, expire_s, ticket)
        except BaseException:  # a signal's: a ticket that nobody sees
            if any(ticket.bytes):
                self.claim_pages(bytes(ticket.bytes))
            raise

    def offer_layers(self, pages: Ints, expire_s: float = 60) -> bytes:
        """A ticket of pages that are still to be written, for another service. The leases stay, and
        the ticket has its own. layers_ready() says what is written: what nobody has claimed then
        goes back when the time is over, or when the session is closed."""
        return self._offer(lib.attnd_pages_offer_layers, pages, expire_s, _abi.Token())

    def _offer(self, function, pages, expire_s, ticket):
        native = self._native()
        pages = _convert.as_array("pages", pages)
        expire_ms = math.ceil(_convert.real("expire_s", expire_s, 0.001, 600.0) * 1000)
        checked(
            function(
                native, self.handle, len(pages), pages.ctypes.data, min(expire_ms, 600_000),
                c.byref(ticket),
            )
        )  # fmt: skip
        return bytes(ticket.bytes)

    def layers_ready(self, ticket: bytes, layers: int, *, lane: int = 0) -> Operation:
        """The first @layers layers of a ticket of offer_layers() are whole when what was submitted
        before in @lane has ended: it comes behind the appends of them."""
        self._native()
        token, layers = token_of("ticket", ticket), _convert.integer("layers", layers, 1, self.layers)
        op = _abi.Op(lane=_convert.integer("lane", lane, 0, _abi.LANES - 1))
        return self.session.submit(
            lambda native, handle, token, op: lib.attnd_pages_ready(
                native, handle, token, layers, op
            ),
            self.handle, c.byref(token), c.byref(op), Operation(self.session, "pages ready"), op,
        )  # fmt: skip

    def bring_pages(
        self, ticket: bytes, *, early: bool = False, timeout_us: int = 0, lane: int = 0
    ) -> BringOperation:
        """Claim a ticket by an operation, which gives the pages: also one of another service, whose
        bytes are brought into pages that are leased here. With @early it ends when they are leased,
        and a run of a layer waits for that layer of them."""
        self._native()
        token = token_of("ticket", ticket)
        args = _abi.ClaimArgs(
            pool=self.handle, pages_max=_abi.LEASE_PAGES_MAX, ticket=c.pointer(token),
            flags=_abi.CLAIM_EARLY if _convert.flag("early", early) else 0,
        )  # fmt: skip
        op = _abi.Op(
            lane=_convert.integer("lane", lane, 0, _abi.LANES - 1),
            timeout_us=_convert.integer("timeout_us", timeout_us, 0, _convert.U32),
        )
        return self.session.submit(
            lambda native, _, args, op: lib.attnd_pages_claim_async(native, args, op), None,
            c.byref(args), c.byref(op), BringOperation(self.session, "pages claim", self.keeper), op,
        )  # fmt: skip

    def claim_pages(self, ticket: bytes) -> numpy.ndarray:
        """The pages of a ticket of this pool, in the order in which they were offered."""
        native, token = self._native(), token_of("ticket", ticket)
        pages, pool = numpy.full(_abi.LEASE_PAGES_MAX, -1, numpy.int32), c.c_uint32()
        try:
            count = checked(
                lib.attnd_pages_claim(
                    native, c.byref(token), c.byref(pool), pages.ctypes.data, len(pages)
                )
            )
            if pool.value != self.handle:  # taken all the same: back with them
                raise ValueError("the ticket is of another pool, and its pages were given back")
            return pages[:count].copy()
        except BaseException:
            taken = pages[pages >= 0]
            if len(taken):
                lib.attnd_pages_free(native, pool, len(taken), taken.ctypes.data)
            raise

    def share(self, writable: bool = False) -> bytes:
        """A token of 16 bytes, with which other sessions attach the pool. Those that may not write
        are refused append(); what they write through kv_cache() nobody hinders."""
        native, token = self._native(), _abi.Token()
        writable = _convert.flag("writable", writable)
        checked(lib.attnd_pool_share(native, self.handle, writable, c.byref(token)))
        return bytes(token.bytes)

    def _native(self):
        if self.session is None:
            raise ValueError("the pool is released")
        return self.session.native()


def _the_only(shapes):
    """The shape of all layers, of {shape: a layer that has it}."""
    if len(shapes) != 1:
        said = " and ".join(f"{shape} in layer {layer}" for shape, layer in shapes.items())
        raise ValueError(f"layers of a pool are of one shape and type, not {said or 'none'}")
    return next(iter(shapes))


def _desc(layers, pages, page_size, num_kv_heads, head_dims, dtype, leased):
    dtype = dtype_name(dtype)
    if dtype not in _abi.DTYPES:
        raise TypeError(f"dtype is {dtype}; pools hold {' or '.join(_abi.DTYPES)}")
    numbers = {
        name: _convert.integer(name, x, 0, _convert.U32)
        for name, x in (
            ("layers", layers), ("pages", pages), ("page_size", page_size),
            ("num_kv_heads", num_kv_heads), ("head_dim", head_dims[0]),
            ("head_dim_vo", head_dims[1]),
        )
    }  # fmt: skip
    leased = _convert.flag("leased", leased)
    return _abi.PoolDesc(
        layers=numbers["layers"], pages=numbers["pages"], page_size=numbers["page_size"],
        heads_kv=numbers["num_kv_heads"], dim_qk=numbers["head_dim"],
        dim_vo=numbers["head_dim_vo"], dtype=_abi.DTYPES[dtype],
        page_owner=_abi.PAGES_OF_SERVICE if leased else _abi.PAGES_OF_ENGINE,
    )  # fmt: skip


def _create(session, desc):
    handle = c.c_uint32()
    checked(lib.attnd_pool_create(session.native(), c.byref(desc), c.byref(handle)))
    return handle.value


def token_of(name, token):
    """The struct of a token or a ticket."""
    return _abi.Token((c.c_uint8 * 16)(*_convert.blob(name, token, 16)))


def _split(name, layer):
    """K and V of a layer: the two, or what dimension 1 of one tensor holds."""
    if isinstance(layer, (tuple, list)):
        if len(layer) != 2:
            raise ValueError(f"{name} has {len(layer)} tensors; it has K and V")
        return tuple(layer)
    shape = getattr(layer, "shape", ())
    if len(shape) != 5 or shape[1] != 2:
        raise ValueError(f"{name} is of shape {tuple(shape)}; it is [page, 2, ...] of 5 dimensions")
    if isinstance(layer, Tensor):
        return tuple(_part(layer, i) for i in (0, 1))
    return layer[:, 0], layer[:, 1]


def _part(x, i):
    """x[:, i] of a tensor of a session."""
    (pages, _, *shape), (page, step, *strides) = x.shape, x.strides
    offset = x.offset + i * step * BYTES[x.dtype]
    return Tensor(x.memory, offset, (pages, *shape), (page, *strides), x.dtype)


def _describe_plane(name, x):
    """describe() of K or V of a layer."""
    described = describe(x, name)
    _, shape, strides, _, _, _ = described
    if len(shape) != 4 or strides[3] != 1 or min(strides) < 0 or 0 in shape:
        raise ValueError(
            f"{name} is of shape {shape}, strides {strides}; it has 4 dimensions, the last one "
            "head_dim without gaps"
        )
    return described


def _place_of(layer):
    """What a layer is known by: where K and V lie, and how. Its type may go by another name, and
    a dimension of one has any stride."""
    found = (describe(x, "kv_cache")[:4] for x in layer)
    return tuple(
        (at, shape, tuple(s if n > 1 else 0 for n, s in zip(shape, strides)), BYTES[dtype])
        for at, shape, strides, dtype in found
    )


def _parts(pages):
    """As many as a call takes, and the rest."""
    for at in range(0, len(pages), _abi.LEASE_PAGES_MAX):
        yield pages[at : at + _abi.LEASE_PAGES_MAX]
