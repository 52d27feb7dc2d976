"""From windows to figures: rates, percentiles, ratios of one run; the table; the records.

A Result is one case with one residency. What engines of different roles do is added as rates over
what each role does alone with FlashInfer; the sum of equal roles is in steps/s.
"""

import dataclasses
import datetime
import json
import math
import os
import pathlib
import re
import shlex
import statistics
import subprocess

from cases import WAYS

RECORD_KEYS = (
    "name", "value", "unit", "better", "device", "cpu", "date", "commit", "dirty", "command",
    "notes",
)  # fmt: skip


def rate(ends_ns, window_s):
    """Steps/s from the ends of the steps in a window: whole steps over the time they took."""
    if len(ends_ns) < 2 or ends_ns[-1] == ends_ns[0]:
        return len(ends_ns) / window_s
    return (len(ends_ns) - 1) * 1e9 / (ends_ns[-1] - ends_ns[0])


def percentile(values, part):
    """The smallest value that at least this part of them do not exceed; nan of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)]


@dataclasses.dataclass
class Measured:
    """One window: what each engine that took steps did in it."""

    way: str
    where: str
    rates: dict  # number of the engine -> steps/s
    took_ms: dict  # number of the engine -> milliseconds of each step


@dataclasses.dataclass
class Result:
    case: object
    residency: str  # as asked for; `actual` is the daemon's own word
    windows: list = dataclasses.field(default_factory=list)
    verified: dict = dataclasses.field(default_factory=dict)
    kernels: dict = dataclasses.field(default_factory=dict)  # "role, way" -> of one step
    actual: str = ""
    peer_names: dict = dataclasses.field(default_factory=dict)  # role -> FlashInfer's way
    appends: list = dataclasses.field(default_factory=list)  # roles whose "attnd" also rotates

    def rows_verified(self):
        return sum(found["rows"] for found in self.verified.values())

    def of(self, way, *where):
        """Windows of a way; alone ones only if asked for."""
        where = where or ("before", "beside", "after")
        return [w for w in self.windows if w.way == way and w.where in where]

    def peer(self):
        """The peer's windows that ours are compared with."""
        return self.of("flashinfer", "beside") or self.of("flashinfer")

    def windows_of(self, way):
        return self.peer() if way == "flashinfer" else self.of(way)

    def alone(self, role):
        """Steps/s of a role alone with the peer; 1 where equal roles are added as they are."""
        if not self.case.mixed:
            return 1.0
        number = self.case.roles.index(role)
        rates = [w.rates[number] for w in self.of("flashinfer", "alone") if number in w.rates]
        return statistics.median(rates) if rates else math.nan

    def score(self, window):
        """Sum over engines of steps/s, each over its role's alone if roles differ."""
        return sum(r / self.alone(self.case.roles[i]) for i, r in window.rates.items())

    def median_score(self, way, *where):
        windows = self.of(way, *where) if where else self.windows_of(way)
        return statistics.median(map(self.score, windows)) if windows else math.nan

    def ratios(self):
        """attnd over FlashInfer, one of each round, or each over the median of the peer's."""
        ours, peers = self.of("attnd"), self.peer()
        if not ours or not peers:
            return []
        if peers[0].where == "beside":
            return [self.score(a) / self.score(f) for a, f in zip(ours, peers)]
        middle = statistics.median(map(self.score, peers))
        return [self.score(a) / middle for a in ours]

    def engine_rate(self, way, number):
        rates = [w.rates[number] for w in self.windows_of(way) if number in w.rates]
        return statistics.median(rates) if rates else math.nan

    def took(self, way, numbers):
        return [ms for w in self.windows_of(way) for i in numbers for ms in w.took_ms.get(i, [])]

    def role_took(self, way, role):
        return self.took(way, [i for i in self.case.working if self.case.roles[i] == role])

    def ways(self):
        """Those that were measured, the peer's first."""
        known = sorted(WAYS, key=lambda way: way != "flashinfer")
        return [way for way in known if self.windows_of(way)]

    def fused_ratios(self):
        """attnd over the same with rotation and cache update in front of it, one of each round;
        none where attnd has them in front, too."""
        if not self.appends:
            return []
        pairs = zip(self.of("attnd"), self.of("separate"))
        return [self.score(a) / self.score(b) for a, b in pairs]


# ---- the table ----


def spread(values):
    """ "0.98 (0.97 to 1.01)", the median and the range."""
    if not values:
        return ""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def by_role(result, way, part):
    """A percentile for each role: "4.41" or "P 44.0, D 9.8"."""
    roles = result.case.working_roles
    found = [f"{percentile(result.role_took(way, role), part):.2f}" for role in roles]
    return ", ".join(f"{r} {ms}" for r, ms in zip(roles, found)) if len(roles) > 1 else found[0]


def row(result, way):
    rates = [f"{result.engine_rate(way, i):.1f}" for i in result.case.working]
    ratios = spread(result.ratios()) if way == "attnd" else ""
    if way == "none" and result.peer():
        ratios = f"{result.median_score('none') / result.median_score('flashinfer'):.3f}"
    by = f"attnd, {result.residency}" if way == "attnd" else way
    if way == "attnd" and result.actual not in ("", result.residency.split()[0]):
        by += f" ({result.actual})"
    return [
        result.case.name, by, " ".join(rates), f"{result.median_score(way):.2f}",
        by_role(result, way, 0.5), by_role(result, way, 0.99), ratios,
    ]  # fmt: skip


HEAD = ["engines", "attention by", "steps/s of each", "sum", "p50 ms", "p99 ms", "over FlashInfer"]


def table(results):
    """Every case and way as Markdown. The sum of a mixed case is of rates over alone."""
    lines = [HEAD] + [row(result, way) for result in results for way in result.ways()]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |\n"
        for line in lines
    )


# ---- records ----


def figures(result):
    """[(name, value, unit, better, notes)] of one result."""
    ratios = result.ratios()
    if not ratios:
        return []
    case, found = result.case, []
    ours, peers = ([f"{r.engine_rate(w, i):.1f}" for i in case.working] for r, w in
                   ((result, "attnd"), (result, "flashinfer")))  # fmt: skip
    notes = (
        f"residency {result.actual or result.residency}; {spread(ratios)} in {len(ratios)} rounds; "
    )
    notes += f"steps/s {' '.join(ours)}, FlashInfer {' '.join(peers)}"
    before, beside, after = (
        result.median_score("flashinfer", at) for at in ("before", "beside", "after")
    )
    if not math.isnan(beside + before + after):
        notes += "; FlashInfer beside the idle service over "
        notes += f"before it {beside / before:.3f}, over after it {beside / after:.3f}"
    if result.of("none"):
        notes += f"; without attention {result.median_score('none'):.2f}"
    for way, name in ("attnd", "ms a step"), ("flashinfer", "FlashInfer"):
        notes += f"; {name} p50 {by_role(result, way, 0.5)}, p99 {by_role(result, way, 0.99)}"
    names = result.peer_names
    if names:
        said = (f"{role} {name}" if len(names) > 1 else name for role, name in names.items())
        notes += f"; FlashInfer by {', '.join(said)}"
    notes += f"; {result.rows_verified()} rows verified"
    name = f"engines.{case.figure}_over_flashinfer"
    found.append((name, statistics.median(ratios), "ratio", "higher", notes))
    if case.mixed:
        found += [p99_figure(result, role) for role in case.working_roles]
    return found


def fused_figures(result):
    """What it brings that a run also rotates, and updates the cache."""
    ratios = result.fused_ratios()
    if not ratios:
        return []
    rates = " and ".join(f"{result.median_score(way):.1f}" for way in ("attnd", "separate"))
    notes = f"{result.case.name}: {spread(ratios)} in {len(ratios)} rounds; {rates} steps/s"
    part = "" if result.case.figure == "D" else f"{result.case.figure}_"
    name = f"engines.{part}fused_append_over_separate"
    return [(name, statistics.median(ratios), "ratio", "higher", notes)]


def p99_figure(result, role):
    ours, peers = (percentile(result.role_took(w, role), 0.99) for w in ("attnd", "flashinfer"))
    name = f"engines.{result.case.figure}_p99_{role}_over_flashinfer"
    return name, ours / peers, "ratio", "lower", f"{ours:.2f} ms, FlashInfer {peers:.2f}"


def device_word(name):
    """ "NVIDIA H200" is h200 in records."""
    words = name.split()
    return words[1].lower() if len(words) > 1 and words[0] == "NVIDIA" else "cuda"


def cpu_name():
    with open("/proc/cpuinfo") as file:
        found = re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE)
    return f"{found[1] if found else 'unknown'}, {os.cpu_count()} processors"


def stamp_commit(folder):
    """(commit, dirty) of what is measured: $ATTND_COMMIT, the bundle's, or the checkout's."""
    packed = os.environ.get("ATTND_COMMIT", "")
    beside = pathlib.Path(folder, "commit")
    if not packed and beside.exists():
        packed = beside.read_text().strip()
    if packed:
        if not re.fullmatch(r"[0-9a-f]{40,64}\+?", packed):
            raise ValueError(f"'{packed}' is not a commit, or a commit and '+'")
        return packed.rstrip("+"), packed.endswith("+")

    def git(*words):
        asked = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
        if asked.returncode:
            raise ValueError("not in a git checkout with a commit")
        return asked.stdout.strip()

    changed = git("status", "--porcelain", "--", ":/", ":(exclude,top)bench/results", ":!*.md")
    return git("rev-parse", "HEAD"), changed != ""


def command_line(program, arguments):
    """A command as records keep it. Of an absolute path, which says something of one machine alone,
    the last part stays."""
    short = (re.sub(r"^(--[^=]*=)?/(.*/)?(?=[^/])", r"\1", x) for x in arguments)
    return shlex.join([program, *short])


def records(results, extra, device, commit, dirty, command):
    """@extra: [(name, value, unit, better, notes)] of several results together."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    common = [device, cpu_name(), now, commit, dirty, command]
    return [
        dict(zip(RECORD_KEYS, [name, round(value, 6), unit, better, *common, notes]))
        for name, value, unit, better, notes in [
            *(figure for result in results for figure in figures(result)),
            *(figure for result in results for figure in fused_figures(result)),
            *extra,
        ]
    ]


def write_whole(path, text):
    """A file that is replaced whole or not at all."""
    beside = pathlib.Path(f"{path}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def write_records(path, found):
    write_whole(path, json.dumps({"records": found}, indent=2, ensure_ascii=False) + "\n")
