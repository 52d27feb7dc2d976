"""Runs that are prepared for a stream of a GPU: which tensors each is of, and how long it stays.

A launch names a prepared run by its number. The run is known by the places of its tensors and by
the numbers of the allocations there, because an engine that frees a tensor may find another one at
its address.
"""

import collections
import ctypes as c

from . import _abi
from ._dlpack import CPU
from ._library import allocation_of, lib
from .errors import checked
from .memory import Tensor

_PREPARED_MAX = 512  # runs that one BatchAttention keeps prepared, beside those of graphs
# Sessions of which a graph captured a run: nobody knows for how long it may be replayed, and it
# writes to a mailbox that ends with its session. They end with the process.
_of_graphs = set()


class Prepared:
    """Those of one plan at a time."""

    def __init__(self, session, lane):
        self.session, self.lane = session, lane
        self._recent, self._held = collections.OrderedDict(), {}  # held: a graph has them

    def number(self, plan, layer, tensors, described, captured):
        """The number of the run of @tensors, prepared the first time; @described: the name of each,
        and what describe() said of it. A graph replays the run's number: what is @captured stays
        prepared until the plan has to go; of the others the last _PREPARED_MAX do."""
        places = tuple(_place_of(address, kind) for _, address, _, _, _, kind, _ in described)
        key = layer, places
        found = self._held.get(key) or self._recent.get(key)
        if found is None:
            found = self._prepare(plan, layer, tensors, described, places)
        if captured and key not in self._held:
            _of_graphs.add(self.session.native())
            self._held[key] = found
            self._recent.pop(key, None)
        elif key not in self._held:
            self._recent[key] = found
            self._recent.move_to_end(key)
        return found[0]

    def _prepare(self, plan, layer, tensors, described, places):
        self._drop_oldest(_PREPARED_MAX - 1)
        self._drop_stale(places)
        args, number = _abi.PrepareArgs(layer=layer, lane=self.lane), c.c_uint32()
        kept = [x.memory for x in tensors if type(x) is Tensor]
        for name, *x in described:
            memory, offset, _ = self.session.place(x)
            setattr(args, name, _abi.Place(memory, offset))
        checked(lib.attnd_prepare(self.session.native(), plan, c.byref(args), c.byref(number)))
        return number.value, kept

    def _drop_stale(self, places):
        """Runs of memory that was freed, as one sees when something else lies there."""
        known = dict(places)
        for runs in (self._recent, self._held):
            stale = [
                key for key in runs if any(at in known and known[at] != n for at, n in key[1])
            ]
            for key in stale:
                self._drop(runs.pop(key)[0])

    def _drop_oldest(self, most):
        while len(self._recent) > most:
            self._drop(self._recent.popitem(last=False)[1][0])

    def drop_all(self):
        """Their plan goes."""
        self._drop_oldest(0)
        while self._held:
            self._drop(self._held.popitem()[1][0])

    def _drop(self, number):
        checked(lib.attnd_unprepare(self.session.native(), number))

    def end(self):
        """The batch goes, whatever it has prepared."""
        for number, _ in (*self._recent.values(), *self._held.values()):
            lib.attnd_unprepare(self.session.native(), number)
        self._recent, self._held = collections.OrderedDict(), {}


def _place_of(address, kind):
    """What a tensor is known by while it may be freed and others come to lie there."""
    return address, None if kind == CPU else allocation_of(address)
