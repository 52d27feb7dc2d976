"""Questions to a cluster: its goodput at a rate a GPU, and how far it is from what was measured."""

import dataclasses
import pathlib
import sys

from cluster import Cluster, Shape
from costs import Costs, Slowdown

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "goodput"))
import report  # noqa: E402
import slo as slos  # noqa: E402
from arrivals import at_rate  # noqa: E402


@dataclasses.dataclass(frozen=True)
class Load:
    """@requests: of a trace, or made up; a probe serves @seconds of them, of which the first @warm
    are not judged."""

    requests: list
    seconds: float
    warm: float
    slo: object
    seed: int = 1
    poisson: bool = True


def simulate(shape, costs, slowdown, rates, load, rate):
    """Return: a Probe at @rate requests/s of all GPUs, and the cluster as it was then."""
    requests = at_rate(load.requests, rate, load.seconds, load.seed, load.poisson)
    cluster = Cluster(shape, costs, slowdown, rates)
    tokens = cluster.run(requests, load.seconds)
    answers = {
        role: {"tokens": {}, "steps": [], "busy_s": cluster.busy(role, load.seconds) * load.seconds,
               "preemptions": 0}
        for role in dict.fromkeys(engine.role for engine in cluster.engines)
    }  # fmt: skip
    first = answers[next(iter(answers))]
    first["tokens"] = {str(number): times for number, times in tokens.items()}
    first["preemptions"] = cluster.preemptions()
    probe = report.probe_of(rate, load.seconds, load.warm, requests, answers, load.slo)
    return probe, cluster


def goodput(shape, costs, slowdown, rates, load, between, probes):
    """Requests/s a GPU. @between: rates a GPU to begin with. Return: (Goodput, [(Probe,
    Cluster)])."""
    found = []

    def probe(rate):
        found.append(simulate(shape, costs, slowdown, rates, load, rate * shape.gpus))
        return found[-1][0].attainment

    return slos.bisect(probe, *between, probes), found


# ---- by a table ----


def costs_of(table, chunked, together):
    """({kind: {role: costs}}, a Slowdown) by the words of two setups in a table; @together may be
    None."""
    both = Costs(table["setups"][chunked]["steps"])
    found, slower = {"chunked": {"both": both}}, None
    if together:
        setup = table["setups"][together]
        two = Costs(setup["steps"])
        for kind in "together", "apart":
            found[kind] = {"prefill": two, "decode": two}
        slower = Slowdown(setup, two)
    return found, slower


def shape_like(setup, about, overhead_s=0.0):
    """The Shape of a setup of bench/goodput, one GPU."""
    kind = "together" if setup.name == "two" else "chunked"
    budget = max(setup.budget, 1) if kind == "chunked" else max(512, about["running"])
    return Shape(
        kind, budget=budget, prefill_budget=setup.budget, running=about["running"],
        pages=about["pages"], page_size=about["page_size"], overhead_s=overhead_s,
    )  # fmt: skip


# ---- against what was measured ----


def errors(measured, simulated):
    """{"p50", "p99": {"ttft", "tpot": relative error}} of two lists of Served."""
    found = {}
    for name, part in ("p50", 0.5), ("p99", 0.99):
        found[name] = {}
        for what in "ttft", "tpot":
            ours, theirs = (
                report.percentile([getattr(s, what) for s in of if s.tokens], part)
                for of in (simulated, measured)
            )
            found[name][what] = abs(ours - theirs) / theirs
    return found
