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
import typing

import numpy

from . import _abi, _dlpack
from ._library import lib
from .errors import checked, last_error
from .memory import Memory, current_cuda_device, describe, dtype_name

if typing.TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from ._types import Array, Device, DType, Ints, Layer
    from .session import Session

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
        dims = head_dim, head_dim if head_dim_vo is None else head_dim_vo
        desc = _desc(layers, pages, page_size, num_kv_heads, dims, dtype, leased)
        desc.memory_kind = _abi.HOST if device == "cpu" else _abi.DEVICE
        self._open(session, _create(session, desc))

    @classmethod
    def attach(cls, session: Session, token: bytes) -> PagePool:
        """The pool of another session, by the token that it gave."""
        handle = c.c_uint32()
        checked(lib.attnd_pool_attach(session.native(), c.byref(token_of(token)), c.byref(handle)))
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
        planes, kept, places, shapes = ([], []), [], {}, ({}, {})
        for number, layer in enumerate(layers):
            for which, x in enumerate(_split(layer)):
                described = describe(x)
                address, shape, strides, held, kind, _ = described
                memory, offset, keep = session.place(described)
                order = (0, 1, 2) if kv_layout == "NHD" else (0, 2, 1)
                if strides[3] != 1:
                    raise ValueError("head_dim must be the innermost dimension, without gaps")
                shapes[which][(*(shape[i] for i in order), shape[3], held)] = number
                planes[which].append(_abi.Plane(memory, offset, *(strides[i] for i in order)))
                kept.append(keep)
                if which == 0:
                    places[address] = number
        (*of_k, dim_qk, held), (*of_v, dim_vo, _) = map(_the_only, shapes)
        if of_k != of_v:
            raise ValueError(f"K has {of_k} pages, tokens and heads, and V has {of_v}")
        pages, page_size, heads = of_k
        if dtype is not None and held == "uint8":
            held = dtype_name(dtype)
        desc = _desc(len(planes[0]), pages, page_size, heads, (dim_qk, dim_vo), held, leased)
        desc.k, desc.v = ((_abi.Plane * len(of))(*of) for of in planes)
        self = cls._of(session, _create(session, desc))
        self._tensors, self._layer_at = kept, places
        self._given = [KVCache(self, i, *_split(x)) for i, x in enumerate(layers)]
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
            for layer, (k, _) in enumerate(self._planes):
                self._layer_at[self.memory.address + k[0]] = layer

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
        if self.plans:
            raise ValueError(f"{self.plans} plans of this session use the pool: close them first")
        self.keeper = self.memory = self._tensors = self._given = self.session = None

    # ---- what lies in it ----

    def kv_cache(self, layer: int) -> KVCache:
        """K and V of a layer, [page, token, head, head_dim] and [.., head_dim_vo]."""
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
        if isinstance(kv_cache, int):
            return kv_cache
        layer = getattr(kv_cache, "layer", None)
        if layer is not None:
            return layer
        layer = self._layer_at.get(
            describe(kv_cache[0] if isinstance(kv_cache, tuple) else kv_cache)[0]
        )
        if layer is None:
            raise ValueError("kv_cache is no layer of the pool")
        return layer

    # ---- leases ----

    def alloc_pages(self, count: int) -> numpy.ndarray:
        """Lease free pages; a numpy array of their ids."""
        pages = numpy.empty(count, numpy.int32)
        for at in range(0, count, _abi.LEASE_PAGES_MAX):
            part = pages[at : at + _abi.LEASE_PAGES_MAX]
            code = lib.attnd_pages_alloc(self._native(), self.handle, len(part), part.ctypes.data)
            if code < 0:
                failure = last_error()
                if at:
                    self.free_pages(pages[:at])
                raise failure
        return pages

    def share_pages(self, pages: Ints) -> None:
        """One more lease of each page, for this session: for another request with this prefix."""
        self._leases(lib.attnd_pages_share, pages)

    def free_pages(self, pages: Ints) -> None:
        """Give one lease of each page back, when nothing in flight reads or writes them."""
        self._leases(lib.attnd_pages_free, pages)

    def _leases(self, function, pages):
        pages = _pages(pages)
        for at in range(0, len(pages), _abi.LEASE_PAGES_MAX):
            part = pages[at : at + _abi.LEASE_PAGES_MAX]
            checked(function(self._native(), self.handle, len(part), part.ctypes.data))

    def offer_pages(self, pages: Ints, expire_s: float = 60) -> bytes:
        """Move one lease of each page to a ticket of 16 bytes, which another session can claim."""
        pages, ticket = _pages(pages), _abi.Token()
        checked(
            lib.attnd_pages_offer(
                self._native(), self.handle, len(pages), pages.ctypes.data, int(expire_s * 1000),
                c.byref(ticket),
            )
        )  # fmt: skip
        return bytes(ticket.bytes)

    def claim_pages(self, ticket: bytes) -> numpy.ndarray:
        """The pages of a ticket of this pool, in the order in which they were offered."""
        pages, pool = numpy.empty(_abi.LEASE_PAGES_MAX, numpy.int32), c.c_uint32()
        count = checked(
            lib.attnd_pages_claim(
                self._native(),
                c.byref(token_of(ticket)),
                c.byref(pool),
                pages.ctypes.data,
                len(pages),
            )
        )
        if pool.value != self.handle:  # taken all the same: back with them
            checked(lib.attnd_pages_free(self._native(), pool, count, pages.ctypes.data))
            raise ValueError("the ticket is of another pool, and its pages were given back")
        return pages[:count].copy()

    def share(self, writable: bool = False) -> bytes:
        """A token of 16 bytes, with which other sessions attach the pool."""
        token = _abi.Token()
        checked(lib.attnd_pool_share(self._native(), self.handle, int(writable), c.byref(token)))
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
        raise TypeError(f"pools hold {' or '.join(_abi.DTYPES)}, not {dtype}")
    return _abi.PoolDesc(
        layers=layers, pages=pages, page_size=page_size, heads_kv=num_kv_heads,
        dim_qk=head_dims[0], dim_vo=head_dims[1], dtype=_abi.DTYPES[dtype],
        page_owner=_abi.PAGES_OF_SERVICE if leased else _abi.PAGES_OF_ENGINE,
    )  # fmt: skip


def _create(session, desc):
    handle = c.c_uint32()
    checked(lib.attnd_pool_create(session.native(), c.byref(desc), c.byref(handle)))
    return handle.value


def token_of(token):
    """The struct of a token or a ticket."""
    if len(token) != 16:
        raise ValueError(f"a token has 16 bytes, not {len(token)}")
    return _abi.Token((c.c_uint8 * 16)(*token))


def _split(layer):
    return layer if isinstance(layer, tuple) else (layer[:, 0], layer[:, 1])


def _pages(pages):
    return numpy.ascontiguousarray(pages, dtype=numpy.int32)
