"""Who waits for operations, and who collects completions for all of them: threads and event loops.

The library lets one thread wait. Of the threads that wait here one has the lead: it collects, and
the others sleep until it has theirs or hands over. A wait spends some milliseconds in the library
and then sleeps in poll(), where Python runs the handlers of signals: Ctrl-C ends a wait, and the
operation stays in flight. `await` does the same by the session's descriptor in the event loop.
"""

from __future__ import annotations

import ctypes as c
import os
import select
import threading
import time
import weakref

from . import _abi, _convert
from ._library import lib, wait
from .errors import Disconnected, Error, checked, error, last_error

_IN_LIBRARY = c.c_uint64(5_000_000)  # ns that a wait stays in the library before it heeds signals
_AT_ONCE = c.c_uint64(0)
_FOLLOW_S = 0.05  # a thread that waits behind another looks by itself this often
_COLLECTED = 32  # completions a call
_DISCONNECTED = -13
_POLL_MS = 3_600_000  # a sleep at most: poll() counts no further than some weeks
_WHAT = {1: "plan", 2: "advance", 3: "append", 4: "run", 12: "merge"}
_me = threading.get_ident

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
            if refusal is not None and refusal.failure is not None:
                self.error, self.keep, self.done = refusal.failure, None, True
                refusal.failure = None
            else:
                self.error, self.keep, self.done = failure, None, True
        if self.gate is not None:
            self._open()
        if self.callbacks:
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
        self.session.check()
        if not self.done:
            raise ValueError(f"{self.what} is not over: wait() for it, or await it")
        if self.error is not None:
            raise self.error

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end, @timeout seconds at most (TimeoutError: it goes on)."""
        self.session.check()
        if timeout is not None:
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


class Waiting:
    """The half of a session that waits. The other one submits: it has native(), fileno(), and makes
    `_numbers`."""

    def __init__(self):
        self._leader = {}  # {0: weak reference of a _Lead}; of dict.setdefault() only one wins
        self._stealing = threading.RLock()  # of signals' handlers, too
        self._later = set()  # event loops that look again for a lead that was left behind
        completions = (_abi.Completion * (_COLLECTED + 1))()  # the last one stays empty
        self._completions, self._ended = c.byref(completions), [(x, x.fault) for x in completions]
        self._first, self._left = 0, False
        self._pending, self._followers = {}, {}
        self._loops = {}  # event loops, and how many awaits each has
        self._watching = set()  # those of them that watch the descriptor
        self._poll = select.poll()
        self._poll.register(self.fileno(), select.POLLIN)
        self._wakeup = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._wakeup, select.POLLIN)
        weakref.finalize(self, os.close, self._wakeup)

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
        code = wait(native._as_parameter_, self._completions, _COLLECTED, timeout_ns)
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
        """After a first look that found nothing."""
        if timeout == 0 or checked(lib.attnd_arm(native)) == 1:
            return
        self._poll.poll(None if timeout is None else min(max(timeout * 1000, 0.001), _POLL_MS))
        self._collect(native, _AT_ONCE)

    def _take_lead(self, lead):
        """Whether this thread collects now, as long as it holds @lead. A lead that a signal's
        exception left behind is taken: by its own thread at once, by others when its frame is
        gone."""
        lead.thread, mine, leader = _me(), weakref.ref(lead), self._leader
        held = leader.setdefault(0, mine)
        if held is mine:
            return True
        holder = held()
        if holder is not None and holder.thread != lead.thread:
            return False
        with self._stealing:
            if 0 in leader and leader[0] is held:  # as in _give_lead()
                del leader[0]
        return leader.setdefault(0, mine) is mine

    def _give_lead(self, lead):
        """Return: whether it had the lead. A signal's handler that waits takes that from its own
        thread, and may run wherever something is called: so not between the look and the end."""
        mine, leader = weakref.ref(lead), self._leader
        if 0 in leader and leader[0] is mine:
            del leader[0]
            return True
        return False

    def _lead(self, operation, timeout):
        """Collect for everybody, unless another thread does: then sleep until it has or hands
        over."""
        native, lead = self.native(), _Lead()
        try:
            leads = self._take_lead(lead)
            if leads and (operation is None or not operation.done):
                in_library = _IN_LIBRARY
                if timeout is not None:
                    in_library = c.c_uint64(int(min(timeout * 1e9, in_library.value)))
                if not self._collect(native, in_library):
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
        if timeout is None:
            while not operation.done:
                self._lead(operation, None)
            return
        deadline, left = time.monotonic() + timeout, timeout
        while not operation.done:
            if left < 0:
                raise TimeoutError(f"{operation.what} goes on after {timeout} s")
            self._lead(operation, left)  # also with a timeout of 0: what has ended is found
            left = deadline - time.monotonic()

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
                self._collect(native, _AT_ONCE)
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
