"""Continuous batching: which rows of which requests a step computes, and which pages they have.

A step has a budget of tokens. Requests that run come first, in the order in which they were
admitted: one row for each that decodes, a chunk for one whose prompt is not complete. What is left
of the budget admits requests that wait. Pages are taken as tokens need them. If there are none the
request that was admitted last loses its pages and waits in front; later it is computed again.

Nothing here knows a clock, a GPU or a service: bench/goodput runs real engines by it, and
bench/simulate counts. Both give it pages: alloc(count) returns ids or None, free(ids) takes them
back. One thread.
"""

import collections
import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    budget: int = 512  # tokens of a step
    running: int = 256  # requests at once
    page_size: int = 16


class FreePages:
    """Pages of one engine alone: a list of those that are free."""

    def __init__(self, count):
        self.count, self.left = count, list(range(count - 1, -1, -1))

    def alloc(self, count):
        if count > len(self.left):
            return None
        cut = len(self.left) - count
        found = self.left[cut:]
        del self.left[cut:]
        return found

    def free(self, pages):
        self.left += pages


class Sequence:
    """A request on its way. A step makes a token if it computes the last one that is known."""

    __slots__ = ("request", "computed", "generated", "pages", "preempted")

    def __init__(self, request, computed=0, generated=0, pages=()):
        self.request, self.pages = request, list(pages)
        self.computed, self.generated = computed, generated  # tokens
        self.preempted = 0  # how often

    @property
    def known(self):
        return self.request.prompt + self.generated

    @property
    def left(self):
        """Rows until the next token: 1 of one that decodes."""
        return self.request.prompt + self.generated - self.computed


@dataclasses.dataclass
class Step:
    """Parts are (sequence, rows): those of several rows first. @rows of all together."""

    parts: list
    rows: int

    @property
    def chunk_rows(self):
        return sum(rows for _, rows in self.parts if rows > 1)


class Scheduler:
    """@pages: alloc() and free(). @matched(request): tokens of its prompt that are computed
    already, and nothing else of them to do. @first_token_only: an engine that prefills for
    another."""

    def __init__(self, limits, pages, matched=None, first_token_only=False):
        self.limits, self.pages, self.matched = limits, pages, matched
        self.first_token_only = first_token_only
        self.waiting, self.running = collections.deque(), []
        self.preemptions = 0

    def add(self, request):
        self.waiting.append(Sequence(request))

    def add_prefilled(self, sequence):
        """One that another engine has prefilled, with its pages."""
        self.waiting.append(sequence)

    def idle(self):
        return not self.waiting and not self.running

    # ---- a step ----

    def schedule(self):
        """The next Step, or None if there is nothing that can be computed."""
        while True:
            preempted = self.preemptions
            parts = self._pick()
            if parts:
                parts.sort(key=lambda part: part[1] == 1)  # stable
                return Step(parts, sum(rows for _, rows in parts))
            if preempted == self.preemptions:
                return None

    def _pick(self):
        parts, budget = [], self.limits.budget
        preempted = self.preemptions
        at = 0
        while at < len(self.running) and budget:
            sequence = self.running[at]
            rows = min(sequence.left, budget)
            held = len(sequence.pages) * self.limits.page_size
            if sequence.computed + rows > held and not self._make_room(sequence, rows):
                break  # it was the last one, and waits now
            parts.append((sequence, rows))
            budget -= rows
            at += 1
        if preempted == self.preemptions:
            self._admit(parts, budget)
        if not parts and self.waiting:
            self._take_from_waiting()
        return parts

    def _admit(self, parts, budget):
        while self.waiting and budget and len(self.running) < self.limits.running:
            sequence = self.waiting[0]
            computed = sequence.computed
            if not computed and self.matched:
                # At least one row: a token has to come from it.
                found = self.matched(sequence.request)
                sequence.computed = min(found, sequence.known - 1)
            rows = min(sequence.left, budget)
            if not self._has_room(sequence, rows):
                sequence.computed = computed
                break
            self.running.append(self.waiting.popleft())
            parts.append((sequence, rows))
            budget -= rows

    def _has_room(self, sequence, rows):
        wanted = -(-(sequence.computed + rows) // self.limits.page_size) - len(sequence.pages)
        if wanted > 0:
            found = self.pages.alloc(wanted)
            if found is None:
                return False
            sequence.pages += found
        return True

    def _take_from_waiting(self):
        """Nothing runs, and the first one finds no pages: others that wait behind it may have some,
        from the engine that prefilled them. The last of these loses its own."""
        for sequence in reversed(list(self.waiting)[1:]):
            if sequence.pages:
                self._preempt(sequence)
                return

    def _preempt(self, sequence):
        self._release(sequence)
        sequence.computed = 0
        sequence.preempted += 1
        self.preemptions += 1

    def _make_room(self, sequence, rows):
        """Pages for a sequence that runs, if need be those of the ones behind it. Return: False if
        its own had to go."""
        while not self._has_room(sequence, rows):
            victim = self.running.pop()
            self._preempt(victim)
            self.waiting.appendleft(victim)
            if victim is sequence:
                return False
        return True

    def _release(self, sequence):
        if sequence.pages:
            self.pages.free(sequence.pages)
        sequence.pages = []

    # ---- what came of it ----

    def finish(self, step):
        """The step is computed. Return: sequences that got a token; ended ones are `ended()`, and
        have no pages any more, except for those that go on elsewhere (first_token_only)."""
        made, over = [], set()
        for sequence, rows in step.parts:
            sequence.computed += rows
            if sequence.computed == sequence.known:
                sequence.generated += 1
                made.append(sequence)
                if self.ended(sequence):
                    self._release(sequence)
                    over.add(sequence)
                elif self.first_token_only:
                    over.add(sequence)
        if over:
            self.running = [sequence for sequence in self.running if sequence not in over]
        return made

    @staticmethod
    def ended(sequence):
        return sequence.generated >= sequence.request.output

    def drop_all(self):
        """Everything goes, and its pages with it."""
        for sequence in (*self.running, *self.waiting):
            self._release(sequence)
        self.running = []
        self.waiting.clear()
