"""A session: the connection to the service, its memory, and what is submitted.

The library lets one thread submit and one wait. Here any thread may do either: a lock orders the
submissions, and `_waiting` has who waits.
"""

from __future__ import annotations

import ctypes as c
import bisect
import itertools
import math
import os
import threading
import typing
import weakref

from . import _abi, _convert, _dlpack
from ._library import cuda, lib, plan_advance
from ._waiting import Waiting, _call_in
from .errors import checked, error, last_error
from .memory import BYTES, Elsewhere, Memory, current_cuda_device, dtype_name

if typing.TYPE_CHECKING:
    from ._types import Device, DType
    from .memory import Tensor

_BUSY, _FULL, _DISCONNECTED, _FORKED = -5, -6, -13, -20
_forks = 0  # how often this process is a child of fork() of one that had this module


def _forked():
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class _Native:
    """The session of the library. It ends with its last user: a Session, a Memory, a call. In a
    cycle that is collected as one, it may end before the others: `alive` tells them."""

    __slots__ = ("_as_parameter_", "forks", "__weakref__")

    def __init__(self, args):
        self.forks = _forks
        pointer = c.c_void_p()
        checked(lib.attnd_open(c.byref(args), c.byref(pointer)))
        self._as_parameter_ = pointer

    @property
    def alive(self):
        return self._as_parameter_ is not None

    def left(self):
        """As Session.left()."""
        return self.forks != _forks

    def check(self):
        """As Session.check()."""
        if self.forks != _forks:
            raise error(_abi.Fault(code=_FORKED))

    def __del__(self, close=lib.attnd_close):
        pointer = getattr(self, "_as_parameter_", None)
        self._as_parameter_ = None
        if pointer is not None:
            close(pointer)


class Session(Waiting):
    """A connection to the service at @socket ($ATTND_SOCKET if None), which must run as user
    @daemon_uid (this one, or root, if None). @arena_bytes: for page tables on their way, 4 bytes a
    page id (0: 8 MiB); a plan that does not fit says how many it wants (NoSpace of the arena,
    value). @tables_bytes: of `tables`. @execute: who executes the runs that a stream launches,
    "engine" or "service", or "auto", as the service thinks best."""

    def __init__(
        self, socket: str | os.PathLike[str] | None = None, name: str | None = None,
        ring_entries: int = 0, arena_bytes: int = 0, daemon_uid: int | None = None,
        tables_bytes: int = 0, execute: str = "auto",
    ) -> None:  # fmt: skip
        execute = _convert.choice("execute", execute, _abi.EXECUTORS)
        if socket is not None:
            socket = _convert.path("socket", socket)
        args = _abi.OpenArgs(
            socket_path=socket,
            name=None if name is None else _convert.text("name", name),
            ring_entries=_convert.integer("ring_entries", ring_entries, 0, _convert.U32),
            arena_bytes=_convert.integer("arena_bytes", arena_bytes, 0, _convert.U64),
            tables_bytes=_convert.integer("tables_bytes", tables_bytes, 0, _convert.U64),
            execute=_abi.EXECUTORS.index(execute),
        )
        if daemon_uid is not None:
            daemon_uid = _convert.integer("daemon_uid", daemon_uid, 0, _convert.U32)
            args.daemon_uid = c.pointer(c.c_uint32(daemon_uid))
        self._native, self._forks = _Native(args), _forks
        self._submitting = threading.Lock()
        self._numbers = itertools.count(1)  # next() gives each to one thread alone
        self._places = []  # (address, end, weak reference of Memory), sorted
        self._doomed = []  # (plan, its pool): not destroyed yet, because they were in flight
        super().__init__()

    def native(self):
        """The library's session, to pass to its functions; it lives at least as long as the
        call."""
        if self._forks != _forks:
            self.check()
        native = self._native
        if native is None or native._as_parameter_ is None:
            raise ValueError("the session is closed")
        return native

    def check(self):
        """The first thing that a call does: in a child it says Forked, whatever it was given."""
        if self._forks != _forks:
            raise error(_abi.Fault(code=_FORKED))

    def close(self) -> None:
        """End the session. Memory that somebody still looks at stays until then, and so does the
        connection; operations in flight end as disconnected."""
        native, self._native = self._native, None
        if native is None:
            return
        os.eventfd_write(self._wakeup, 1)
        loops, self._loops = self._loops, {}
        for loop in loops:
            # The loop holds the session until then: its descriptor must not be another's.
            _call_in(loop, self._watch, loop, native, False)
        self._fail(error(_abi.Fault(code=_DISCONNECTED)))

    @property
    def closed(self) -> bool:
        return self._native is None or not self._native.alive

    def left(self):
        """Whether this is a child of fork(), where nothing of it can be used."""
        return self._forks != _forks

    def __enter__(self) -> Session:
        self.check()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when there is something to collect: for select and poll."""
        return checked(lib.attnd_fd(self.native()))

    @property
    def info(self) -> dict[str, typing.Any]:
        """What the session is connected to: backend, isa, version and the like."""
        info = _abi.Info()
        checked(lib.attnd_info(self.native(), c.byref(info)))
        found = {field[0]: getattr(info, field[0]) for field in info._fields_[1:]}
        found["executor"] = _abi.EXECUTORS[info.executor]  # "auto": nothing has been prepared yet
        found["gpu_uuid"] = bytes(info.gpu_uuid)
        return {
            k: v.decode() if isinstance(v, bytes) and k != "gpu_uuid" else v
            for k, v in found.items()
        }

    @property
    def tables(self) -> memoryview:
        """Memory of int32 that the service reads page tables from where they lie, of the
        tables_bytes that the session was opened with. Arrays over it
        (numpy.frombuffer(session.tables, numpy.int32)) that plan() is given are not copied."""
        native, size = self.native(), c.c_uint64()
        address = lib.attnd_tables_memory(native, c.byref(size))
        words = (c.c_int32 * (size.value // 4 if address else 0)).from_address(address or 0)
        words.native = native  # which lives as long as somebody looks at it
        return memoryview(words).cast("B").cast("i")

    # ---- memory ----

    def memory(self, nbytes: int, device: Device = "cpu") -> Memory:
        """New memory of the service, mapped here: zeroed on the "cpu", undefined on "cuda"."""
        native, handle, address = self.native(), c.c_uint32(), c.c_void_p()
        nbytes = _convert.integer("nbytes", nbytes, 1, _convert.U64 >> 2)
        _convert.choice("device", device, ("cpu", "cuda"))
        if device == "cpu":
            checked(lib.attnd_memory_create(native, nbytes, c.byref(handle), c.byref(address)))
            return self.adopt(Memory(native, handle.value, address.value, nbytes, (_dlpack.CPU, 0)))
        if cuda() is None:
            raise ValueError("device is cuda, and libattnd-cuda.so.0 or the driver was not found")
        number = current_cuda_device()
        checked(lib.attnd_memory_create_device(native, nbytes, c.byref(handle)))
        return self.adopt(Memory(native, handle.value, None, nbytes, (_dlpack.CUDA, number)))

    def empty(
        self, shape: int | tuple[int, ...], dtype: DType = "float16", device: Device = "cpu"
    ) -> Tensor:  # fmt: skip
        """A tensor in memory of its own, which runs read and write without a copy."""
        self.native()
        shape = _convert.shape_of("shape", shape)
        nbytes = math.prod(shape) * BYTES[dtype_name(dtype)]
        return self.memory(max(nbytes, 1), device).tensor(shape, dtype)

    def adopt(self, memory):
        """Make tensors of @memory known by their address."""
        self._places = [place for place in self._places if place[2]() is not None]
        bisect.insort(
            self._places,
            (memory.address, memory.address + memory.nbytes, weakref.ref(memory)),
            key=lambda place: place[0],
        )
        return memory

    def find(self, address, nbytes):
        """The Memory of this session that these bytes lie in, or None."""
        places = self._places
        index = bisect.bisect_right(places, address, key=lambda place: place[0])
        for _, end, memory in reversed(places[:index]):
            found = memory()
            if found is None:  # gone: what is known under its address may be another's
                continue
            return found if address + nbytes <= end else None
        return None

    def place(self, described):
        """Where a tensor lies that describe() described: (memory handle, offset in bytes, what
        keeps it). Of the GPU any tensor can be named (attnd_cuda_export()); of the host those in
        memory of this session. Elsewhere: it must be copied."""
        address, shape, strides, dtype, kind, keep = described
        nbytes = (sum((n - 1) * s for n, s in zip(shape, strides)) + 1) * BYTES[dtype]
        memory = self.find(address, nbytes)
        if memory is not None:
            return memory.handle, address - memory.address, (keep, memory)
        if kind == _dlpack.CUDA and cuda() is not None:
            found = _abi.Place()
            checked(cuda().attnd_cuda_export(self.native(), address, nbytes, c.byref(found)))
            return found.memory, found.offset_bytes, keep
        raise Elsewhere("the tensor does not lie in memory of the session: see Session.empty()")

    # ---- operations ----

    def destroy_plan(self, plan, pool):
        """Give a plan back, or remember it while operations of it are in flight."""
        self._doomed.append((plan, pool))
        self.destroy_doomed()

    def destroy_doomed(self):
        """Those that destroy_plan() remembers, if their operations are over."""
        doomed, self._doomed = self._doomed, []
        for plan, of in doomed:
            if lib.attnd_plan_destroy(self.native(), plan) == _BUSY:
                self._doomed.append((plan, of))
            else:
                of.plans -= 1

    def submit(self, function, plan, args, op_ref, operation=None, op=None):
        """Submit by @function, with pointers to its arguments and to @op; waits while the ring is
        full. An @operation is told its end by its number; without one, failures go to whatever
        listens at op.user_data."""
        native = self._native
        if native is None or native._as_parameter_ is None or self._forks != _forks:
            native = self.native()  # says which of the two it is
        with self._submitting:
            if operation is not None:
                op.user_data = operation.number = number = next(self._numbers)
                self._pending[number] = operation
            code = function(native._as_parameter_, plan, args, op_ref)
            while code == _FULL:
                self._lead(None, 0.001)
                code = function(native._as_parameter_, plan, args, op_ref)
            if code < 0:
                if operation is not None:
                    self.forget(operation.number)
                raise last_error("advance" if function is plan_advance else None)
        return operation

    def listen(self, sink):
        """A number for operations that say nothing when they succeed; `sink(failure)` otherwise."""
        number = next(self._numbers)
        self._pending[number] = sink
        return number

    def forget(self, number):
        self._pending.pop(number, None)
