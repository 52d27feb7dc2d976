"""What plan() was given last, and what it was given before: a batch may be refused when plan() has
long returned, and then the one before it is there again."""

import weakref

_BEFORE_MAX = 3  # batches that are remembered while nothing is known of those after them


class Planned:
    """A batch: what runs of it have to be, and the plan that it is set in. It is told of the sets
    of it that are refused."""

    __slots__ = (
        "of", "number", "before", "sets", "refused", "plan", "capacity", "heads", "entries",
        "tables", "tensors",
    )  # fmt: skip

    def __init__(self, attention, plan, capacity, heads, entries, tables, tensors):
        self.of, self.before = weakref.ref(attention), None
        self.plan, self.capacity, self.heads, self.entries = plan, capacity, heads, entries
        self.tables, self.tensors = tables, tensors
        self.sets, self.refused = 1, 0  # how often it was set, and how many of these were refused
        self.number = 0

    def __call__(self, failure):
        self.refused += 1
        attention = self.of()
        if attention is not None:
            attention._set_refused(self, failure)


def cut(newest):
    """Forget what is before the last _BEFORE_MAX batches. Return: those."""
    for _ in range(_BEFORE_MAX):
        if newest is None:
            return []
        newest = newest.before
    return forget_before(newest)


def forget_before(batch):
    """Return: the batches before it, of which it knows nothing any more."""
    gone = []
    while batch is not None and batch.before is not None:
        gone.append(batch.before)
        batch.before, batch = None, batch.before
    return gone
