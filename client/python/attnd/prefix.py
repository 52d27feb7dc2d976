"""A namespace of a pool's prefix tree: what one engine has computed, all engines of it find.

A prompt is cut into blocks of whole pages, and each block has a key that stands for its tokens and
all blocks before it. An engine matches the keys of a prompt, claims the blocks that are missing,
computes them in pages that it leases, and publishes them. From then on the pages are everybody's,
and nobody may write them.
"""

from __future__ import annotations

import ctypes as c
import typing

import numpy

from . import _abi, _convert
from ._leasing import LeasingOperation
from ._library import lib
from .errors import checked, last_error
from .pool import Handle, token_of

if typing.TYPE_CHECKING:
    from ._types import Ints
    from .pool import PagePool

ENDS = "end", "missing", "claimed", "published", "full", "abandoned"


class PrefixResult(typing.NamedTuple):
    """How far an operation went."""

    blocks: int  # leading blocks of the keys for which it was done; of abandon(), how many
    end: str  # why no more, one of ENDS: "end" of the keys, next block "missing" or "claimed", ...
    foreign: int  # match: of the blocks, published by another session
    taken: int  # publish: of the blocks, new; the others were published already
    pages: numpy.ndarray  # match: their ids, leased; empty otherwise


class PrefixOperation(LeasingOperation[PrefixResult]):
    """An operation on a prefix tree: wait() and await give its PrefixResult."""

    __slots__ = ()

    def take(self, native, completion):
        """The library's answer. Return: what went wrong, or None."""
        answer = _abi.PrefixResult()
        code = lib.attnd_prefix_result(native, c.byref(completion), c.byref(answer))
        if code < 0:
            return last_error()
        pages = self.lease(native, answer.pages, answer.pages_count)
        self.found = PrefixResult(
            answer.blocks, ENDS[answer.end], answer.foreign, answer.taken, pages
        )
        return None


class PrefixCache:
    """A new namespace in the tree of @pool, whose pages the service owns. A block is @block_pages
    pages. Beyond @pages_max pages the namespace evicts its own (0: all of the pool), and others
    take it below @pages_low only when nothing else is left. @block_compute_us is what the engine
    needs for the first block of a prompt: what is sooner computed than brought back from host
    memory is not found then.

    Operations return a PrefixOperation. What it raises names the block by its index."""

    def __init__(
        self, pool: PagePool, block_pages: int = 1, pages_max: int = 0, pages_low: int = 0,
        block_compute_us: int = 0,
    ) -> None:  # fmt: skip
        native, handle = pool._native(), c.c_uint32()
        numbers = {
            name: _convert.integer(name, x, 0, _convert.U32)
            for name, x in (
                ("block_pages", block_pages), ("pages_max", pages_max), ("pages_low", pages_low),
                ("block_compute_us", block_compute_us),
            )
        }  # fmt: skip
        desc = _abi.PrefixDesc(**numbers)
        checked(lib.attnd_prefix_open(native, pool.handle, c.byref(desc), c.byref(handle)))
        self._open(pool, handle.value)

    @classmethod
    def attach(cls, pool: PagePool, token: bytes) -> PrefixCache:
        """The namespace of another session, by its token, in the pool as this session has it."""
        native, self, handle = pool._native(), cls.__new__(cls), c.c_uint32()
        token = token_of("token", token)
        checked(lib.attnd_prefix_attach(native, c.byref(token), c.byref(handle)))
        self._open(pool, handle.value)
        return self

    def _open(self, pool, handle):
        native, info = pool.session.native(), _abi.PrefixInfo()
        self._keeper = Handle(native, handle, lib.attnd_prefix_release, keep=pool.keeper)
        checked(lib.attnd_prefix_info(native, handle, c.byref(info)))
        if info.pool != pool.handle:
            raise ValueError("token is of a namespace of another pool")
        self.pool, self.session, self.handle = pool, pool.session, handle
        self.block_pages, self.pages_max = info.block_pages, info.pages_max
        self.block_tokens = info.block_pages * pool.page_size
        self.writable, self._salt = bool(info.writable), info.salt

    def share(self, writable: bool = False) -> bytes:
        """A token of 16 bytes, with which other sessions attach the namespace. Those that may
        write can publish wrong pages under a right key."""
        native, token = self._native(), _abi.Token()
        writable = _convert.flag("writable", writable)
        checked(lib.attnd_prefix_share(native, self.handle, writable, c.byref(token)))
        return bytes(token.bytes)

    def release(self) -> None:
        """The handle ends, and its claims. Its blocks stay until they are evicted."""
        self.session.check()
        if self._keeper.native is not None and not self.session.closed:
            checked(lib.attnd_prefix_release(self.session.native(), self.handle))
        self._keeper.native = self._keeper.keep = None

    def _native(self):
        native = self.session.native()
        if self._keeper.native is None:
            raise ValueError("the cache is released")
        return native

    def keys(self, tokens: Ints, extra: bytes = b"") -> numpy.ndarray:
        """The keys of the whole blocks of a prompt, uint64 [blocks, 2]. @extra is whatever else its
        K and V depend on, such as an adapter or an image. All engines of a namespace must take the
        same keys for the same prompt: these are of @extra and then of the tokens as int32."""
        self.session.check()
        tokens, extra = _convert.as_array("tokens", tokens), _convert.blob("extra", extra)
        blocks = len(tokens) // self.block_tokens
        keys, parent = numpy.empty((blocks, 2), numpy.uint64), None
        for block in range(blocks):
            begin = block * self.block_tokens
            content = tokens[begin : begin + self.block_tokens].tobytes()
            content = content if block else extra + content
            key = keys[block].ctypes.data
            lib.attnd_prefix_key(self._salt, parent, content, len(content), key)
            parent = key
        return keys

    # ---- operations: on keys as keys() gives them, or a part that begins behind @parent ----

    def match(
        self, keys: numpy.ndarray, parent: numpy.ndarray | None = None, *, wait: bool = False,
        timeout_us: int = 0, lane: int = 0,
    ) -> PrefixOperation:  # fmt: skip
        """Lease the leading blocks that are published. With @wait it ends when the next block is
        not claimed any more, or with attnd.Timeout after @timeout_us microseconds (0: never)."""
        return self._submit("match", keys, parent, lane, wait=wait, timeout_us=timeout_us)

    def claim(
        self, keys: numpy.ndarray, parent: numpy.ndarray | None = None, *, lane: int = 0
    ) -> PrefixOperation:
        """Say that this session computes the leading blocks that nobody has or computes."""
        return self._submit("claim", keys, parent, lane)

    def publish(
        self, keys: numpy.ndarray, pages: Ints, parent: numpy.ndarray | None = None, *,
        lane: int = 0,
    ) -> PrefixOperation:  # fmt: skip
        """Blocks that are computed, for everybody: @pages in the order of their tokens, all full.
        It comes behind the appends to them: in their lane, or when a run behind them has ended."""
        self._native()
        keys, pages = _convert.keys("keys", keys), _convert.as_array("pages", pages)
        if len(pages) != len(keys) * self.block_pages:
            raise ValueError(
                f"pages are {len(pages)}; {len(keys)} blocks have {len(keys) * self.block_pages} "
                "pages"
            )
        return self._submit("publish", keys, parent, lane, pages=pages)

    def abandon(self, keys: numpy.ndarray, *, lane: int = 0) -> PrefixOperation:
        """Give up this handle's claims among the keys."""
        return self._submit("abandon", keys, None, lane)

    def pin(self, keys: numpy.ndarray, *, lane: int = 0) -> PrefixOperation:
        """Keep the leading blocks that are published until they are unpinned."""
        return self._submit("pin", keys, None, lane)

    def unpin(self, keys: numpy.ndarray, *, lane: int = 0) -> PrefixOperation:
        """The reverse."""
        return self._submit("unpin", keys, None, lane)

    def _submit(self, what, keys, parent, lane, wait=False, timeout_us=0, pages=None):
        self._native()
        keys = _convert.keys("keys", keys)
        args = _abi.PrefixArgs(
            prefix=self.handle, blocks=len(keys), keys=keys.ctypes.data,
            flags=_abi.MATCH_WAITS if _convert.flag("wait", wait) else 0,
        )  # fmt: skip
        if parent is not None:
            parent = _convert.keys("parent", parent)
            if len(parent) != 1:
                raise ValueError(f"parent is {len(parent)} keys; it is the one before them")
            args.parent = parent.ctypes.data
        function = getattr(lib, f"attnd_prefix_{what}")
        more = () if pages is None else (pages.ctypes.data,)
        op = _abi.Op(
            lane=_convert.integer("lane", lane, 0, _abi.LANES - 1),
            timeout_us=_convert.integer("timeout_us", timeout_us, 0, _convert.U32),
        )
        return self.session.submit(
            lambda native, _, args, op: function(native, args, *more, op), None, c.byref(args),
            c.byref(op), PrefixOperation(self.session, f"prefix {what}", self._keeper.keep), op,
        )  # fmt: skip
