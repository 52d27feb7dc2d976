"""A session: the connection to the service, what is in flight, and who waits for it.

The library lets one thread submit and one wait. Here any thread may do either: a lock orders the
submissions, and of the threads that wait one collects completions for all of them. A wait spends
some milliseconds in the library and then sleeps in poll() here, where Python runs the handlers of
signals: Ctrl-C ends a wait, and the operation stays in flight. `await` does the same by the
session's descriptor in the event loop.
"""

from __future__ import annotations

import ctypes as c
import bisect
import itertools
import math
import os
import select
import threading
import time
import typing
import weakref

from . import _abi, _convert, _dlpack
from ._library import cuda, lib
from .errors import Disconnected, Error, checked, error, last_error
from .memory import BYTES, Elsewhere, Memory, current_cuda_device, dtype_name

if typing.TYPE_CHECKING:
    from ._types import Device, DType
    from .memory import Tensor

_IN_LIBRARY_NS = 5_000_000  # a wait stays in the library this long before it heeds signals
_FOLLOW_S = 0.05  # a thread that waits behind another looks by itself this often
_COLLECTED = 32  # completions a call
_BUSY, _FULL, _DISCONNECTED, _FORKED = -5, -6, -13, -20
_POLL_MS = 3_600_000  # a sleep at most: poll() counts no further than some weeks
_me = threading.get_ident
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


class Refusal:
    """What the first of some operations failed with that say nothing when they succeed. `batch`: it
    was a batch, whose runs are not to be submitted."""

    __slots__ = ("failure", "batch")

    def __init__(self):
        self.failure, self.batch = None, False

    def __call__(self, failure):
        if self.failure is None:
            self.failure, self.batch = failure, False


class _Lead:
    """Who collects, for as long as its frame is there: an exception of a signal's handler may come
    before the lead is given up, but not keep this object."""

    __slots__ = ("thread", "__weakref__")

    def __init__(self):
        self.thread = _me()


class Operation:
    """Something submitted: wait() for it, or await it. It keeps its tensors until it has ended, and
    fails with what those before it in its lane were refused for (@refusal)."""

    __slots__ = (
        "session", "what", "keep", "refusal", "done", "error", "number", "callbacks", "gate",
        "begin_ns", "end_ns",
    )  # fmt: skip

    def __init__(self, session, what, keep=None, refusal=None):
        self.session, self.what, self.keep, self.refusal = session, what, keep, refusal
        self.done, self.error, self.callbacks, self.gate = False, None, [], None
        self.number = self.begin_ns = self.end_ns = 0

    def _end(self, failure):
        """May be interrupted by a signal's exception, and called again."""
        refusal = self.refusal
        if not self.done:
            before = refusal.failure if refusal is not None else None
            self.error = failure if before is None else before
            self.keep, self.done = None, True
            if before is not None:
                refusal.failure = None
        if self.gate is not None:
            self._open()
        for ended in list(self.callbacks):
            ended()

    def _open(self):
        """Wake the thread that sleeps until this has ended, or until it may collect itself."""
        gate, self.gate = self.gate, None
        if gate is not None:
            try:
                gate.release()
            except RuntimeError:
                pass  # another thread opened it at the same moment

    def result(self) -> None:
        """None, or the exception that it ended with. Only when it is done."""
        if self.error is not None:
            raise self.error

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end, @timeout seconds at most (TimeoutError: it goes on)."""
        if timeout is not None:
            self.session.check()
            timeout = _convert.seconds("timeout", timeout)
        if not self.done:
            self.session._wait(self, timeout)
        self.result()

    def cancel(self) -> None:
        """Stop it if it can be; it then ends with attnd.Cancelled."""
        checked(lib.attnd_cancel(self.session.native(), self.number))

    def __await__(self):
        if not self.done:
            yield from self.session._future(self)
        self.result()


class Session:
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
            socket = _convert.terminated("socket", os.fsencode(socket))
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
        self._leader = {}  # {0: thread that collects}; of dict.setdefault() only one wins
        self._leads, self._stealing = {}, threading.Lock()  # weak references of _Lead, by thread
        self._later = set()  # event loops that look again for a lead that was left behind
        completions = (_abi.Completion * (_COLLECTED + 1))()  # the last one stays empty
        self._completions, self._ended = c.byref(completions), [(x, x.fault) for x in completions]
        self._first, self._left = 0, False
        self._numbers = itertools.count(1)  # next() gives each to one thread alone
        self._pending, self._followers = {}, {}
        self._loops = {}  # event loops, and how many awaits each has
        self._watching = set()  # those of them that watch the descriptor
        self._places = []  # (address, end, weak reference of Memory), sorted
        self._doomed = []  # (plan, its pool): not destroyed yet, because they were in flight
        self._poll = select.poll()
        self._poll.register(self.fileno(), select.POLLIN)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wakeup, select.POLLIN)
        weakref.finalize(self, os.close, self._wakeup)

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
        nbytes = _convert.integer("nbytes", nbytes, 0, _convert.U64 >> 1)
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
        doomed, self._doomed = [*self._doomed, (plan, pool)], []
        for plan, of in doomed:
            if lib.attnd_plan_destroy(self.native(), plan) == _BUSY:
                self._doomed.append((plan, of))
            else:
                of.plans -= 1

    def submit(self, function, plan, args, op_ref, operation=None, op=None):
        """Submit by @function, with pointers to its arguments and to @op; waits while the ring is
        full. An @operation is told its end by its number; without one, failures go to whatever
        listens at op.user_data."""
        native = self.native()
        with self._submitting:
            if operation is not None:
                op.user_data = operation.number = next(self._numbers)
                self._pending[operation.number] = operation
            while (code := function(native._as_parameter_, plan, args, op_ref)) == _FULL:
                self._lead(None, 0.001)
            if code < 0:
                if operation is not None:
                    self.forget(operation.number)
                raise last_error()
        return operation

    def listen(self, sink):
        """A number for operations that say nothing when they succeed; `sink(failure)` otherwise."""
        number = next(self._numbers)
        self._pending[number] = sink
        return number

    def forget(self, number):
        self._pending.pop(number, None)

    def _complete(self, native):
        """Hand completions out. A signal's exception may come between any two lines; what it leaves
        in the array the next call finds, and an operation that has ended is not in `_pending`."""
        ended, pending = self._ended, self._pending
        done, fault = ended[self._first]
        while (number := done.user_data) != 0:
            found = pending.get(number)
            failed = fault.code < 0
            if isinstance(found, Operation):
                failure = error(fault, found.what) if failed else None
                if not failed and type(found) is not Operation:
                    failure = found.take(native, done)
                found.begin_ns, found.end_ns = done.begin_ns, done.end_ns
                found._end(failure)
                pending.pop(number, None)
            elif found is not None and failed:
                found(error(fault, _WHAT.get(done.operation)))
            self._first += 1
            done.user_data = 0
            done, fault = ended[self._first]
        self._first, self._left = 0, False

    def _collect(self, native, timeout_ns):
        """Completions of the library, into the operations. Return: whether there were any."""
        if self._left:
            self._complete(native)
        self._left = True
        code = lib.attnd_wait(native._as_parameter_, self._completions, _COLLECTED, timeout_ns)
        self._complete(native)
        if code < 0:
            failure = last_error()
            if isinstance(failure, Disconnected):
                self._fail(failure)
            else:
                raise failure
        return code != 0

    def _fail(self, failure):
        """The end of everything in flight."""
        for number, found in list(self._pending.items()):
            if isinstance(found, Operation):
                found._end(failure)
            self._pending.pop(number, None)  # who only listens is told nothing more

    def _sleep(self, native, timeout):
        in_library_ns = _IN_LIBRARY_NS
        if timeout is not None:
            in_library_ns = int(min(timeout * 1e9, in_library_ns))
        if not self._collect(native, in_library_ns):
            if timeout == 0 or checked(lib.attnd_arm(native)) == 1:
                return
            self._poll.poll(None if timeout is None else min(max(timeout * 1000, 0.001), _POLL_MS))
            self._collect(native, 0)

    def _take_lead(self, lead):
        """Whether the thread of @lead collects now. A lead that a signal's exception left behind is
        taken: by its own thread at once, by others when its frame is gone."""
        me = lead.thread
        self._leads[me] = weakref.ref(lead)
        held = self._leader.setdefault(0, me)
        if held == me:
            return True
        holder = self._leads.get(held)
        if holder is None or holder() is not None:
            return False
        with self._stealing:
            if self._leader.get(0) == held and self._leads.get(held) is holder:
                self._leader.pop(0)
        return self._leader.setdefault(0, me) == me

    def _give_lead(self, lead):
        """Return: whether it had the lead."""
        had = self._leader.get(0) == lead.thread
        if had:
            self._leader.pop(0)
        self._leads.pop(lead.thread, None)
        return had

    def _lead(self, operation, timeout):
        """Collect for everybody, unless another thread does: then sleep until it has or hands
        over."""
        native, lead = self.native(), _Lead()
        try:
            leads = self._take_lead(lead)
            if leads and (operation is None or not operation.done):
                self._sleep(native, timeout)
        finally:
            if self._give_lead(lead) and (self._followers or self._loops):
                self._hand_over()
        if not leads:
            self._follow(operation, timeout)

    def _follow(self, operation, timeout):
        slice_s = _FOLLOW_S if timeout is None else min(timeout, _FOLLOW_S)
        if operation is None:
            time.sleep(min(slice_s, 0.0005))
            return
        gate = threading.Lock()
        gate.acquire()
        operation.gate, self._followers[operation.number] = gate, operation
        try:
            if not operation.done and self._leader:  # else it was given up meanwhile
                gate.acquire(timeout=slice_s)
        finally:
            self._followers.pop(operation.number, None)

    def _hand_over(self):
        """Somebody else who waits collects from now on. Loops are called in any case: a follower
        that is awake already may leave without the lead, and a loop does not look again by
        itself."""
        self._wake_follower()
        self._call_loops()

    def _wake_follower(self):
        for found in list(self._followers.values()):
            if found.gate is not None and not found.done:
                found._open()
                break

    def _call_loops(self, but=()):
        for loop in list(self._loops):
            if loop not in but:
                _call_in(loop, self._readable, loop)

    def _wait(self, operation, timeout):
        deadline, left = None if timeout is None else time.monotonic() + timeout, timeout
        while not operation.done:
            if left is not None and left < 0:
                raise TimeoutError(f"{operation.what} goes on after {timeout} s")
            self._lead(operation, left)  # also with a timeout of 0: what has ended is found
            left = None if deadline is None else deadline - time.monotonic()

    # ---- asyncio ----

    def _future(self, operation):
        """A loop watches the session's descriptor as long as it awaits something of it. Loops may
        come one after the other, or run in several threads: whichever sees completions first hands
        them out, and wakes the others."""
        import asyncio

        native, loop = self.native(), asyncio.get_running_loop()
        self._watch(loop, native, True)
        future = loop.create_future()

        def ended():
            _call_in(loop, lambda: future.done() or future.set_result(None))

        def over(_):
            """It has ended, or its waiter is gone: cancelled, with the loop or without."""
            operation.callbacks.remove(ended)
            loops = self._loops
            if loop in loops:
                loops[loop] -= 1
                if loops[loop] == 0:  # after those who await the next thing at once
                    loop.call_soon(self._leave, loop)

        for other in [x for x in list(self._loops) if x.is_closed()]:
            self._forget_loop(other)
        self._loops[loop] = self._loops.get(loop, 0) + 1
        operation.callbacks.append(ended)
        future.add_done_callback(over)
        if self._native is None:  # another thread has closed it meanwhile
            self._watch(loop, native, False)
            self._fail(error(_abi.Fault(code=_DISCONNECTED)))
        if operation.done:
            ended()
        loop.call_soon(self._readable, loop)
        return future.__await__()

    def _readable(self, loop):
        """In an event loop that awaits something: collect, and ask to be woken. While another has
        the lead it does not watch: the descriptor stays readable until that one has collected."""
        native, lead, armed = self._native, _Lead(), False
        if native is None or not self._loops.get(loop):
            return
        try:
            if not self._take_lead(lead):
                self._turn_away(loop, native)
                return
            self._watch(loop, native, True)
            while not armed:
                self._collect(native, 0)
                armed = checked(lib.attnd_arm(native)) == 0
        except Error as failure:
            self._fail(failure)
        finally:
            if not self._give_lead(lead):
                pass
            elif armed:
                self._call_loops(but=self._watching)
            else:
                self._hand_over()

    def _turn_away(self, loop, native):
        """Another collects, and calls this loop when it gives that up; or it is looked for by and
        by."""
        self._watch(loop, native, False)
        if not self._leader:  # who gave it up has still seen this one watch
            loop.call_soon(self._readable, loop)
        elif loop not in self._later:
            self._later.add(loop)
            loop.call_later(_FOLLOW_S, self._look_again, loop)

    def _look_again(self, loop):
        self._later.discard(loop)
        self._readable(loop)

    def _watch(self, loop, native, watch):
        if watch and loop not in self._watching:
            loop.add_reader(lib.attnd_fd(native), self._readable, loop)
            self._watching.add(loop)
        elif not watch and loop in self._watching:
            self._watching.discard(loop)
            loop.remove_reader(lib.attnd_fd(native))

    def _leave(self, loop):
        """Forget a loop that awaits nothing: it may stop, and then it runs no calls."""
        native = self._native
        if native is None or self._loops.get(loop) != 0:
            return
        self._watch(loop, native, False)
        self._forget_loop(loop)
        self._wake_follower()  # this loop may have turned it away; other loops watch by themselves

    def _forget_loop(self, loop):
        self._loops.pop(loop, None)
        self._watching.discard(loop)
        self._later.discard(loop)


def _call_in(loop, function, *arguments):
    """Call in an event loop, or not at all if it has ended: nobody is there who waits."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        pass


_WHAT = {1: "plan", 2: "advance", 3: "append", 4: "run", 12: "merge"}
