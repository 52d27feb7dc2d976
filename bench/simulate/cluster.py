"""Engines on GPUs of hosts, event by event: the scheduler of bench/goodput, and a counted clock.

An engine takes step after step by its scheduler. A step lasts as long as the costs say; where two
engines share a GPU, it goes on more slowly while the other one is busy. The router gives a request
to an engine, an engine that prefills hands it over by a link. Equal input gives equal output.
"""

import dataclasses
import heapq
import itertools
import pathlib
import sys

from costs import Slowdown
from links import LinkRates, Links
from prefix import PrefixCache, Tree, tokens_of

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "goodput"))
from scheduler import FreePages, Limits, Scheduler, Sequence  # noqa: E402
from serving import shape_of  # noqa: E402

ROUTES = ("load", "prefix", "tree")
PLACEMENTS = ("spread", "hosts")
DECODING_TOKENS = 64  # what a request that decodes counts for the router, in tokens of a prompt
REMOTE_TOKENS = 4 * DECODING_TOKENS  # what another host counts for, when a request is handed over


class Clock:
    """Events in the order of their times; of one time in the order in which they were said."""

    def __init__(self):
        self.now, self.waiting, self.order = 0.0, [], itertools.count()

    def at(self, when, call, *args):
        heapq.heappush(self.waiting, (when, next(self.order), call, args))

    def run(self, until):
        while self.waiting and self.waiting[0][0] < until:
            self.now, _, call, args = heapq.heappop(self.waiting)
            call(*args)
        self.now = until


class Gpu:
    """One or two engines. Each has work left, in seconds alone, and is slower while the other one
    is busy."""

    def __init__(self, clock, place, slowdown):
        self.clock, self.place, self.slowdown, self.engines = clock, place, slowdown, []

    def busy(self):
        return [engine for engine in self.engines if engine.step]

    def start(self, engine, step, shape, seconds):
        self.advance()
        engine.step, engine.shape = step, shape
        engine.work_left, engine.since = seconds, self.clock.now
        self.plan_ends()

    def advance(self):
        """What those that are busy did since somebody began or ended."""
        now = self.clock.now
        for engine, factor in self.factors():
            engine.work_left -= (now - engine.since) / factor
            engine.since = now

    def factors(self):
        """[(an engine that is busy, how many times as long its step takes)]."""
        busy = self.busy()
        if len(busy) < 2:
            return [(engine, 1.0) for engine in busy]
        shapes = [engine.shape for engine in busy]
        rows, decodes = (max(shape[at] for shape in shapes) for at in (0, 2))
        return [(engine, self.slowdown.of(engine.role, rows, decodes)) for engine in busy]

    def plan_ends(self):
        for engine, factor in self.factors():
            engine.turn += 1
            end = self.clock.now + max(engine.work_left, 0.0) * factor
            self.clock.at(end, self.end, engine, engine.turn)

    def end(self, engine, turn):
        if turn != engine.turn or not engine.step:
            return  # its end was planned anew
        self.advance()
        step, engine.step = engine.step, None
        self.plan_ends()
        engine.finish(step)


class Engine:
    """@role: both, prefill or decode. @pages: that of a GPU, shared by its engines."""

    def __init__(self, number, role, gpu, costs, limits, pages, overhead_s=0.0):
        self.number, self.role, self.gpu, self.costs = number, role, gpu, costs
        self.overhead_s, self.shape = overhead_s, (0, 0, 0, 0)
        self.scheduler = Scheduler(limits, pages, self.matched, role == "prefill")
        self.step, self.turn, self.work_left, self.since = None, 0, 0.0, 0.0
        self.cluster = self.cache = None
        self.known, self.load = {}, 0  # tokens of prompts that wait here, and what decodes
        self.busy_s, self.given = 0.0, 0
        gpu.engines.append(self)

    def matched(self, request):
        """Nothing, for one that lost its pages when it had its first token already."""
        return self.known.get(request.number, 0)

    def add(self, request, found_tokens):
        self.known[request.number] = found_tokens
        self.load += request.prompt - found_tokens + DECODING_TOKENS
        self.scheduler.add(request)
        self.go()

    def add_prefilled(self, sequence):
        self.load += DECODING_TOKENS
        self.scheduler.add_prefilled(sequence)
        self.go()

    def go(self):
        if self.step:
            return
        preempted = self.scheduler.preemptions
        step = self.scheduler.schedule()
        if step:
            self.began = self.gpu.clock.now
            shape = shape_of(step.parts)
            self.gpu.start(self, step, shape, self.costs.step(*shape) + self.overhead_s)
        if self.scheduler.preemptions > preempted:
            self.wake_others()

    def wake_others(self):
        """Pages came back, for which another engine of the GPU may have waited."""
        for engine in self.gpu.engines:
            if engine is not self:
                engine.go()

    def finish(self, step):
        now = self.gpu.clock.now
        self.busy_s += now - self.began
        for sequence in self.scheduler.finish(step):
            self.cluster.token(self, sequence, now)
        self.go()
        self.wake_others()


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a cluster is made of. @kind: chunked (an engine a GPU), together (one that prefills and
    one that decodes on each GPU), apart (GPUs that prefill, others that decode). Of apart
    @prefill: how many GPUs prefill; @placement: "spread" over all hosts, where a request stays on
    its host if that has not much more to decode than others, or "hosts" of their own."""

    kind: str
    gpus: int = 1
    hosts: int = 1
    prefill: int = 0
    placement: str = "spread"
    budget: int = 512
    prefill_budget: int = 2048
    running: int = 256
    pages: int = 14000
    page_size: int = 16
    token_bytes: int = 131072  # of K and V of all layers
    route: str = "load"
    cache_blocks: int = 0  # of prefixes, for each engine that prefills
    overhead_s: float = 0.0  # of a step, beside its costs


class Cluster:
    """@costs: {role: costs}. @slowdown: of engines that share a GPU."""

    def __init__(self, shape, costs, slowdown=None, rates=None):
        if shape.kind == "apart" and not 0 < shape.prefill < shape.gpus:
            raise ValueError(
                f"prefill is {shape.prefill}; of {shape.gpus} GPUs some prefill and some decode"
            )
        if shape.route not in ROUTES:
            raise ValueError(f"route is {shape.route}; it has to be of {', '.join(ROUTES)}")
        if shape.placement not in PLACEMENTS:
            raise ValueError(
                f"placement is {shape.placement}; it has to be of {', '.join(PLACEMENTS)}"
            )
        if not 0 < shape.hosts <= shape.gpus:
            raise ValueError(f"hosts is {shape.hosts}; {shape.gpus} GPUs have 1 to as many")
        self.shape, self.clock, self.links = shape, Clock(), Links(rates or LinkRates())
        self.tokens, self.engines = {}, []
        self.copied_tokens = self.saved_tokens = 0
        self.tree = Tree() if shape.route == "tree" else None
        for number in range(shape.gpus):
            self.make_gpu(number, costs, slowdown or Slowdown())
        self.entry = [e for e in self.engines if e.role != "decode"]
        self.decoders = [e for e in self.engines if e.role == "decode"]
        for engine in self.entry:
            engine.cache = PrefixCache(shape.cache_blocks) if shape.cache_blocks else None

    def make_gpu(self, number, costs, slowdown):
        shape = self.shape
        gpu = Gpu(self.clock, (number * shape.hosts // shape.gpus, number), slowdown)
        pages = FreePages(shape.pages)
        if shape.kind == "chunked":
            roles = ["both"]
        elif shape.kind == "together":
            roles = ["prefill", "decode"]
        else:
            roles = ["prefill" if self.prefills(number) else "decode"]
        for role in roles:
            budget = shape.prefill_budget if role == "prefill" else shape.budget
            limits = Limits(budget, shape.running, shape.page_size)
            engine = Engine(
                len(self.engines), role, gpu, costs[role], limits, pages, shape.overhead_s
            )  # fmt: skip
            engine.cluster = self
            self.engines.append(engine)

    def prefills(self, number):
        shape = self.shape
        if shape.placement == "hosts":
            return number < shape.prefill
        before, behind = (n * shape.prefill // shape.gpus for n in (number, number + 1))
        return before < behind

    # ---- requests ----

    def run(self, requests, seconds):
        """Serve @requests for @seconds. Return: {number: [when each token came]}."""
        for request in requests:
            self.clock.at(request.arrival_s, self.arrive, request)
        self.clock.run(seconds)
        return self.tokens

    def arrive(self, request):
        engine = min(self.entry, key=lambda e: (self.cost_of(e, request), e.given, e.number))
        engine.given += 1
        blocks = engine.cache.matched(request.blocks) if engine.cache else 0
        ready = self.clock.now
        if self.tree:
            more, holder = self.tree.longest(request.blocks, engine)
            if more > blocks:
                tokens = tokens_of(more, request.prompt) - tokens_of(blocks, request.prompt)
                ready = self.links.send(
                    ready, holder.gpu.place, engine.gpu.place, tokens * self.shape.token_bytes
                )
                self.copied_tokens += tokens
                blocks = more
        found = min(tokens_of(blocks, request.prompt), request.prompt - 1)
        self.saved_tokens += found
        if engine.cache:
            gone = engine.cache.use(request.blocks)
            if self.tree:
                self.tree.add(engine, request.blocks, gone)
        if ready > self.clock.now:
            self.clock.at(ready, engine.add, request, found)
        else:
            engine.add(request, found)

    def cost_of(self, engine, request):
        """Tokens that would have to be computed before this request's first one comes."""
        if self.shape.route == "prefix" and engine.cache:
            blocks = engine.cache.matched(request.blocks)
            return engine.load + request.prompt - tokens_of(blocks, request.prompt)
        return engine.load + request.prompt

    def token(self, engine, sequence, now):
        request = sequence.request
        times = self.tokens.setdefault(request.number, [])
        times.append(now)
        if len(times) == 1:
            engine.load -= request.prompt - engine.known.pop(request.number)
        over = engine.scheduler.ended(sequence)
        if over or engine.role == "prefill":
            engine.load -= DECODING_TOKENS
        if engine.role == "prefill" and not over:
            self.hand_over(engine, sequence)

    def hand_over(self, engine, sequence):
        here = [e for e in engine.gpu.engines if e.role == "decode"]
        if here:  # a ticket: the pages stay where they are
            pages, sequence.pages = sequence.pages, []
            self.deliver(here[0], sequence, pages)
            return
        host = engine.gpu.place[0]
        target = min(
            self.decoders,
            key=lambda e: (e.load + REMOTE_TOKENS * (e.gpu.place[0] != host), e.number),
        )
        target.load += DECODING_TOKENS  # from now on, so that the next one goes elsewhere
        ready = self.links.send(
            self.clock.now, engine.gpu.place, target.gpu.place,
            sequence.computed * self.shape.token_bytes,
        )  # fmt: skip
        self.clock.at(ready, self.arrived, engine, target, sequence)

    def arrived(self, engine, target, sequence):
        """K and V are there, and are not needed where they were."""
        engine.scheduler.pages.free(sequence.pages)
        sequence.pages = []
        target.load -= DECODING_TOKENS
        self.deliver(target, sequence, [])
        engine.go()

    def deliver(self, target, sequence, pages):
        target.add_prefilled(
            Sequence(sequence.request, sequence.computed, sequence.generated, pages)
        )

    def preemptions(self):
        return sum(engine.scheduler.preemptions for engine in self.engines)

    def busy(self, role, seconds):
        of = [engine.busy_s for engine in self.engines if engine.role == role]
        return sum(of) / len(of) / seconds if of else 0.0
