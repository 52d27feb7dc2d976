"""How long a step takes, by a table of steps that were measured.

A table is a JSON object, as `bench/goodput/run --table` writes it:
  schema     1
  device, model, layers, page_size and the like: what was measured
  setups     {word of a setup: {"steps": [...], "beside": [...]}}
  steps      [chunk rows, keys that they end at, decodes, keys of each, seconds]
  beside     of two engines on one GPU, both busy all the time:
             [chunk rows, keys, 0, 0, seconds, 0, 0, decodes, keys, seconds]

Between measured shapes a cost is interpolated: linearly in rows and keys of chunks, and in count
and keys of decodes. Beyond the last one the last slope goes on. A shape that took longer than one
with more of everything has the other one's cost.
"""

import bisect
import json
import statistics

SCHEMA = 1


class TableError(ValueError):
    """What is wrong with a table: the field, its value, and what it has to be."""


def read_table(path):
    """The object, checked."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except json.JSONDecodeError as wrong:
        raise TableError(f"{path}: {wrong}") from None
    check_table(found)
    return found


def check_table(found):
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        got = found.get("schema") if isinstance(found, dict) else type(found).__name__
        raise TableError(f"schema is {got}; it has to be {SCHEMA}")
    if not isinstance(found.get("setups"), dict) or not found["setups"]:
        raise TableError("setups is empty; it has to name at least one")
    for word, of in found["setups"].items():
        for field, width in ("steps", 5), ("beside", 10):
            for number, line in enumerate(of.get(field, ())):
                place = f"setups.{word}.{field}[{number}]"
                if len(line) != width:
                    raise TableError(f"{place} has {len(line)} numbers; it has to have {width}")
                if not all(isinstance(x, (int, float)) and x >= 0 for x in line):
                    raise TableError(f"{place} is {line}; numbers have to be at least 0")
                if not line[4] > 0 or not line[-1] > 0:
                    raise TableError(f"{place}: seconds have to be above 0")


def line_at(knots, values, x):
    """The value at @x of the line through (knots, values); the outer pieces go on."""
    if len(knots) == 1:
        return values[0]
    at = min(max(bisect.bisect_right(knots, x) - 1, 0), len(knots) - 2)
    a, b = knots[at], knots[at + 1]
    return values[at] + (values[at + 1] - values[at]) * (x - a) / (b - a)


class Grid:
    """One side of a step, chunks or decodes: counts, and for each of them some numbers of keys."""

    def __init__(self, shapes):
        self.keys = {0: [0]}
        for count, keys in sorted(shapes):
            if count:
                self.keys.setdefault(count, []).append(keys)
        self.counts = sorted(self.keys)

    def at(self, count, keys, value):
        """Interpolate @value(count, keys), which is asked where it was measured."""
        upper = bisect.bisect_left(self.counts, count)
        if upper < len(self.counts) and self.counts[upper] == count:
            return self.of_count(count, keys, value)
        first = min(max(upper - 1, 0), max(len(self.counts) - 2, 0))
        near = self.counts[first : first + 2]
        return line_at(near, [self.of_count(n, keys, value) for n in near], count)

    def of_count(self, count, keys, value):
        knots = self.keys[count]
        return line_at(knots, [value(count, x) for x in knots], keys)


def without_hiccups(seconds):
    """A step that does less in every respect takes no longer than one that does more: where it was
    measured to, something else had the processor."""
    return {
        key: min(took for other, took in seconds.items() if all(a <= b for a, b in zip(key, other)))
        for key in seconds
    }


class Costs:
    """Seconds of a step. @steps: lines of a table."""

    def __init__(self, steps):
        if not steps:
            raise TableError("steps is empty; a cost needs some")
        self.seconds = without_hiccups({tuple(line[:4]): line[4] for line in steps})
        self.least = min(self.seconds.values())
        # A step of nothing reads the weights like the smallest one.
        self.seconds[0, 0, 0, 0] = self.least
        chunks = {key[:2] for key in self.seconds}
        decodes = {key[2:] for key in self.seconds}
        self.mixed = any(key[0] and key[2] for key in self.seconds)
        if self.mixed:  # what is not there beside all chunks (no pages for it) is left out
            decodes = {d for d in decodes if all((*c, *d) in self.seconds for c in chunks)}
        self.chunks, self.decodes = Grid(chunks), Grid(decodes)

    def step(self, chunk_rows, chunk_keys, decodes, decode_keys):
        if not self.mixed and chunk_rows and decodes:
            # Measured apart: the weights are read once.
            halves = (chunk_rows, chunk_keys, 0, 0), (0, 0, decodes, decode_keys)
            return sum(self.step(*half) for half in halves) - self.least

        def of_chunk(rows, keys):
            return self.decodes.at(
                decodes, decode_keys, lambda n, x: self.seconds[rows, keys, n, x]
            )  # fmt: skip

        return max(self.least, self.chunks.at(chunk_rows, chunk_keys, of_chunk))


class Slowdown:
    """How many times as long steps of two engines take while both are busy, by the rows that one
    prefills and the requests that the other decodes: on the lines between what was measured, and as
    at its edge beyond."""

    def __init__(self, setup=None, costs=None):
        self.factors = {}  # role -> {(chunk rows, decodes): factor}
        for line in (setup or {}).get("beside", ()):
            for role, part in ("prefill", line[:5]), ("decode", line[5:]):
                factor = max(1.0, part[4] / costs.step(*part[:4]))
                self.factors.setdefault(role, {})[line[0], line[7]] = factor

    def of(self, role, chunk_rows, decodes):
        """1 if it was not measured."""
        known = self.factors.get(role)
        if not known:
            return 1.0
        rows = sorted({key[0] for key in known})
        counts = {key[1] for key in known}
        counts = sorted(n for n in counts if all((row, n) in known for row in rows))
        if not counts:
            return statistics.geometric_mean(known.values())
        row, count = within(rows, chunk_rows), within(counts, decodes)
        return line_at(
            rows, [line_at(counts, [known[r, n] for n in counts], count) for r in rows], row
        )


def within(knots, x):
    return min(max(x, knots[0]), knots[-1])


class Constant:
    """Every step takes as long: for what is known without a table."""

    def __init__(self, seconds):
        self.seconds = seconds

    def step(self, chunk_rows, chunk_keys, decodes, decode_keys):
        return self.seconds
