"""Operations whose results are leased pages, which go back if nobody asks for them."""

from __future__ import annotations

import ctypes as c
import typing

import numpy

from . import _abi
from ._library import lib
from ._waiting import Operation
from .errors import last_error

Found = typing.TypeVar("Found")


class LeasingOperation(Operation, typing.Generic[Found]):
    """wait() and await give what was found. It keeps the pool's Handle: a pool that is released
    meanwhile goes when the leases have, and another does not get its number before."""

    __slots__ = ("found", "leased")

    def lease(self, native, address, count):
        """The pages that a completion lists, which lasts until the library is asked for more."""
        pages = numpy.empty(count, numpy.int32)
        if count:
            c.memmove(pages.ctypes.data, address, pages.nbytes)
        self.leased = native, self.keep, pages
        return pages

    def result(self) -> Found:
        super().result()
        self.leased = None  # they are the caller's from here on
        return self.found

    def wait(self, timeout: float | None = None) -> Found:
        super().wait(timeout)
        return self.found

    def __await__(self):
        yield from super().__await__()
        return self.found

    def __del__(self):
        """Nobody has asked for the result, nor can any more: whoever waited was cancelled. The
        leases go back."""
        native, pool, pages = getattr(self, "leased", None) or (None, None, ())
        if len(pages) and native.alive:
            lib.attnd_pages_free(native, pool.handle, len(pages), pages.ctypes.data)


class BringOperation(LeasingOperation[numpy.ndarray]):
    """A claim of pages: wait() and await give their ids."""

    __slots__ = ()

    def take(self, native, completion):
        answer = _abi.ClaimResult()
        code = lib.attnd_claim_result(native, c.byref(completion), c.byref(answer))
        if code < 0:
            return last_error()
        self.found = self.lease(native, answer.pages, answer.pages_count)
        return None
