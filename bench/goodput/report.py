"""From what requests got to a table, figures and details. Tokens' times become Served in here."""

import dataclasses
import json
import math
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from figures import percentile, write_whole  # noqa: E402
from slo import Served, attainment, counted, crossing  # noqa: E402


@dataclasses.dataclass
class Probe:
    """One rate: what became of its requests, and of the engines' steps."""

    rate: float
    seconds: float
    judged: list  # of Served
    arrived: int
    attainment: float
    steps: dict  # role -> [[chunk rows, keys, decodes, keys, seconds]]
    busy: dict  # role -> part of the time in which a step was computed
    preemptions: int = 0


@dataclasses.dataclass
class Result:
    setup: object
    probes: list = dataclasses.field(default_factory=list)
    verified: int = 0
    table: list = dataclasses.field(default_factory=list)  # [[*point, seconds]]
    beside: list = dataclasses.field(default_factory=list)  # of two engines: [[*p, s, *d, s]]

    @property
    def goodput(self):
        return crossing({probe.rate: probe.attainment for probe in self.probes})

    def near(self):
        """The probe whose rate is the highest that held, or else the lowest."""
        held = [p for p in self.probes if p.rate == self.goodput.held]
        return held[0] if held else min(self.probes, key=lambda p: p.rate)


def served(requests, answers):
    """[Served] of @requests. @answers: {role: answer of a probe}; tokens of a request come from the
    engine that prefills, then from the one that decodes."""
    found = []
    for request in requests:
        times = [
            at
            for role in ("prefill", "both", "decode")
            for at in answers.get(role, {}).get("tokens", {}).get(str(request.number), [])
        ]
        tokens = [at - request.arrival_s for at in times]
        found.append(
            Served(request.number, request.arrival_s, request.prompt, request.output, tokens)
        )
    return found


def probe_of(rate, seconds, warm_s, requests, answers, slo):
    judged = counted(served(requests, answers), warm_s, seconds, slo)
    return Probe(
        rate, seconds, judged, len(requests), attainment(judged, slo),
        {role: answer["steps"] for role, answer in answers.items()},
        {role: answer["busy_s"] / seconds for role, answer in answers.items()},
        sum(answer["preemptions"] for answer in answers.values()),
    )  # fmt: skip


def milliseconds(values, part):
    found = percentile(values, part)
    return "-" if math.isnan(found) or math.isinf(found) else f"{found * 1e3:.1f}"


# ---- the table ----

HEAD = [
    "setup", "requests/s", "between", "at", "hold both", "TTFT p50", "p90", "p99 ms", "TPOT p50",
    "p90", "p99 ms", "gap p99 ms", "busy",
]  # fmt: skip


def row(result):
    good, probe = result.goodput, result.near()
    ttft, tpot = [s.ttft for s in probe.judged], [s.tpot for s in probe.judged if s.gaps]
    gaps = [gap for s in probe.judged for gap in s.gaps]
    busy = ", ".join(f"{role} {part:.2f}" for role, part in probe.busy.items())
    return [
        result.setup.word, f"{good.bound} {good.rate:.2f}".strip(),
        f"{good.held:.2f} to {good.missed:.2f}", f"{probe.rate:.2f}", f"{probe.attainment:.3f}",
        *(milliseconds(ttft, part) for part in (0.5, 0.9, 0.99)),
        *(milliseconds(tpot, part) for part in (0.5, 0.9, 0.99)),
        milliseconds(gaps, 0.99), busy.replace("both ", ""),
    ]  # fmt: skip


def table(results):
    lines = [HEAD] + [row(result) for result in results]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEAD))]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths)) + " |\n"
        for line in lines
    )


# ---- figures ----


def figures(results, slo, workload):
    """[(name, value, unit, better, notes)]. @workload: what was served, in words."""
    found = []
    for result in results:
        good = result.goodput
        rates = ", ".join(f"{p.rate:.2f}: {p.attainment:.3f} of {len(p.judged)}"
                          for p in sorted(result.probes, key=lambda p: p.rate))  # fmt: skip
        said = f"{good.bound} that; " if good.bound else ""
        notes = f"{said}{slo}; {workload}; {rates}; {result.verified} rows verified"
        name = f"goodput.{result.setup.figure}_requests_per_s"
        found.append((name, good.rate, "1/s", "higher", notes))
    chunked = best(results, "flashinfer")
    for name, setup in ("fused_over_flashinfer", "fused"), ("two_engines_over_chunked", "two"):
        ours = best(results, setup)
        if chunked and ours and not chunked.goodput.bound and not ours.goodput.bound:
            words = f"{ours.setup.word} over {chunked.setup.word}; {slo}"
            ratio = ours.goodput.rate / chunked.goodput.rate
            found.append((f"goodput.{name}", ratio, "ratio", "higher", words))
    return found


def best(results, name):
    of = [result for result in results if result.setup.name == name]
    return max(of, key=lambda result: result.goodput.rate, default=None)


# ---- files ----


def details(results, about):
    """All that was measured, as JSON. @about: model, limits and the like."""
    return dict(
        about,
        setups=[
            dict(
                setup=result.setup.word, goodput=vars(result.goodput), table=result.table,
                verified=result.verified,
                probes=[dict(vars(p), judged=[vars(s) for s in p.judged]) for p in result.probes],
            )
            for result in results
        ],
    )  # fmt: skip


def cost_table(results, about):
    """What bench/simulate reads: seconds of steps, by setup."""
    return dict(
        schema=1, **about,
        setups={
            result.setup.word: {"steps": result.table, "beside": result.beside}
            for result in results
            if result.table
        },
    )  # fmt: skip


def write_json(path, found):
    write_whole(path, json.dumps(finite(found)) + "\n")


def finite(x):
    """Numbers that JSON has no word for become null."""
    if isinstance(x, float) and not math.isfinite(x):
        return None
    if isinstance(x, dict):
        return {key: finite(value) for key, value in x.items()}
    return [finite(value) for value in x] if isinstance(x, (list, tuple)) else x
