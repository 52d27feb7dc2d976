"""Which requests were served in time, and the highest rate at which enough of them are.

A request holds its limits if its first token came within `ttft` seconds of its arrival, the mean of
its gaps is at most `tpot`, and no gap is longer than `gap`; what is not named is not asked for.
"""

import dataclasses
import math

TERMS = ("ttft", "tpot", "gap")
HOLDING_MIN = 0.9  # of the requests


@dataclasses.dataclass(frozen=True)
class Slo:
    ttft: float = math.inf  # seconds, all three
    tpot: float = math.inf
    gap: float = math.inf

    def __str__(self):
        said = [f"{t}={getattr(self, t):g}" for t in TERMS if getattr(self, t) < math.inf]
        return ",".join(said)


def parse_slo(text):
    """ "ttft=1,tpot=0.025". ValueError says what is wrong with it."""
    found = {}
    for word in text.split(","):
        name, _, value = word.partition("=")
        if name not in TERMS:
            raise ValueError(f"{word}: terms are {', '.join(TERMS)}, each with =SECONDS")
        if not float(value or 0) > 0:
            raise ValueError(f"{word}: seconds have to be above 0")
        found[name] = float(value)
    return Slo(**found)


@dataclasses.dataclass
class Served:
    """What became of a request. @tokens: seconds behind its arrival at which each token came."""

    number: int
    arrival_s: float
    prompt: int
    output: int
    tokens: list

    @property
    def ended(self):
        return len(self.tokens) == self.output

    @property
    def ttft(self):
        return self.tokens[0] if self.tokens else math.inf

    @property
    def gaps(self):
        return [b - a for a, b in zip(self.tokens, self.tokens[1:])]

    @property
    def tpot(self):
        """The mean gap; 0 if there is none."""
        count = len(self.tokens) - 1
        return (self.tokens[-1] - self.tokens[0]) / count if count > 0 else 0.0


def holds(served, slo):
    if served.ttft > slo.ttft or served.tpot > slo.tpot:
        return False
    return slo.gap == math.inf or max(served.gaps, default=0.0) <= slo.gap


def counted(found, begin_s, end_s, slo):
    """Those that are judged: arrived behind @begin_s, when the service has filled up, and with a
    token, or so long before @end_s that it is too late for one. Requests that go on at @end_s are
    judged by what they got until then."""
    return [
        served
        for served in found
        if served.arrival_s >= begin_s
        and (served.tokens or end_s - served.arrival_s > min(slo.ttft, end_s))
    ]


def attainment(judged, slo):
    """The part of them that holds; nan of none."""
    if not judged:
        return math.nan
    return sum(holds(served, slo) for served in judged) / len(judged)


@dataclasses.dataclass
class Goodput:
    """@rate: where the line from the highest rate that held to the next one crosses HOLDING_MIN.
    @bound: "", or where one of the two is missing "at most" (@missed; then @rate is 0), "at
    least"."""

    rate: float
    held: float
    missed: float
    bound: str = ""


def bisect(probe, low, high, probes):
    """@probe(rate): the attainment there. @low, @high: rates to begin with, which are moved if they
    are on the same side. @probes: how often it may ask. Return: Goodput."""
    if not 0 < low < high:
        raise ValueError(f"rates are {low} and {high}; the first has to be above 0 and the smaller")
    found, rate = {}, math.sqrt(low * high)
    for _ in range(probes):
        found[rate] = probe(rate)
        good = crossing(found)
        if good.bound == "at most":
            rate = low if good.missed > low else good.missed / 2
        elif good.bound == "at least":
            rate = high if good.held < high else good.held * 2
        else:
            rate = (good.held + good.missed) / 2
    return crossing(found)


def crossing(found):
    """Goodput of {rate: attainment}. A rate that held counts, even if a lower one did not."""
    held = [rate for rate, part in found.items() if part >= HOLDING_MIN]
    if not held:
        return Goodput(0.0, 0.0, min(found), "at most")
    best = max(held)
    above = [rate for rate in found if rate > best]
    if not above:
        return Goodput(best, best, math.inf, "at least")
    worst = min(above)
    lost = 0.0 if math.isnan(found[worst]) else found[worst]
    part = (found[best] - HOLDING_MIN) / (found[best] - lost)
    return Goodput(best + part * (worst - best), best, worst)
