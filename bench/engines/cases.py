"""What is measured: roles of engines, cases of several engines, and the order of windows.

A case is a word of roles, one letter an engine: D, PDDD, MMMM, DI. Behind it may stand "/no-mps".
Its engines have one model and one page size. A way is who computes attention: attnd, flashinfer,
or none (the same layers without attention).
"""

import dataclasses

from models import DEFAULT_MODEL

PAGE_SIZES = (1, 16, 64)
PAGE_SIZE = 16  # unless another is asked for
LAYERS = 16

# Of a role: (query rows, tokens in the cache, those rows included) of each request, chunks first.
DECODES = [(1, 4096)] * 32
ROLES = {
    "A": [(1, 1000 + 37 * i) for i in range(8)],
    "B": [(1, 500 + 53 * i) for i in range(64)],
    "S": [(5, 2000 + 17 * i) for i in range(32)],
    "Q": [(2000, 2000)],
    "D": DECODES,
    "P": [(2048, 8192)],
    "M": [(512, 8192)] + DECODES,
    "I": DECODES,  # connected like D, but takes no step
}
IDLE = "I"
BATCHES = "ABSQDPM"  # what a grid has of each model
# gpu_drain has these of a grid, with equal lengths.
GRID_BATCHES_OF_TILES = {
    ("llama-8b", "A"): "engine_a_32_8",
    ("llama-70b/8", "A"): "engine_a_8_1",
}
WAYS = ("attnd", "separate", "flashinfer", "none")
USUAL_WAYS = tuple(way for way in WAYS if way != "separate")
ATTND_WAYS = ("attnd", "separate")  # whose graphs need the service
ENGINES_MAX = 4
NO_MPS = "/no-mps"

# What stays on SMs while nothing is queued would slow the peer down, too.
RESIDENCIES_THAT_STAY = ("shared", "exclusive")


def rows_of(role):
    return sum(rows for rows, _ in ROLES[role])


def pages_of(role, page_size=PAGE_SIZE):
    return sum(-(-tokens // page_size) for _, tokens in ROLES[role])


# Room for any role in pages of any size.
CACHE_TOKENS = max(pages_of(role, size) * size for role in ROLES for size in PAGE_SIZES)
CACHE_TOKENS = -(-CACHE_TOKENS // max(PAGE_SIZES)) * max(PAGE_SIZES)


@dataclasses.dataclass(frozen=True)
class Case:
    """Engines that run at once. A @model that was not asked for by name is not in names."""

    roles: str
    mps: bool = True
    model: str = ""
    page_size: int = PAGE_SIZE

    @property
    def layers_of(self):
        """The name of its model in the table."""
        return self.model or DEFAULT_MODEL

    @property
    def name(self):
        model = f"{self.model} " if self.model else ""
        pages = "" if self.page_size == PAGE_SIZE else f" in pages of {self.page_size}"
        return model + self.roles + ("" if self.mps else NO_MPS) + pages

    @property
    def figure(self):
        """Its name in a record."""
        model = f"{self.model}." if self.model else ""
        pages = "" if self.page_size == PAGE_SIZE else f"_page{self.page_size}"
        return model + ("" if self.mps else "no_mps_") + self.roles + pages

    @property
    def working(self):
        """Numbers of the engines that take steps."""
        return [i for i, role in enumerate(self.roles) if role != IDLE]

    @property
    def working_roles(self):
        """Distinct roles that take steps, in order."""
        return list(dict.fromkeys(role for role in self.roles if role != IDLE))

    @property
    def mixed(self):
        """Steps of different roles cannot be added: each is divided by its rate alone first."""
        return len(self.working_roles) > 1


def parse_case(text, model="", page_size=PAGE_SIZE):
    """A Case; ValueError says what is wrong with the text."""
    roles, mps = (text.removesuffix(NO_MPS), not text.endswith(NO_MPS))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise ValueError(f"{text}: {unknown[0]} is no role; roles are {', '.join(ROLES)}")
    case = Case(roles, mps, model, page_size)
    if not case.working:
        raise ValueError(f"{text}: no engine of it takes steps")
    if len(roles) > ENGINES_MAX:
        raise ValueError(f"{text}: at most {ENGINES_MAX} engines")
    return case


def sets(cases):
    """Cases in groups that share one set of processes: [(mps, [case])], those under MPS first,
    and those of one model and page size together."""
    keys = dict.fromkeys((case.model, case.page_size) for case in cases)
    groups = [
        (mps, [case for case in cases if (case.mps, case.model, case.page_size) == (mps, *key)])
        for mps in (True, False)
        for key in keys
    ]
    return [(mps, group) for mps, group in groups if group]


def grid_cases(models, batches=BATCHES, page_size=PAGE_SIZE):
    """One engine for each model and batch, under MPS and without it."""
    return [
        Case(role, mps, model, page_size)
        for mps in (True, False)
        for model in models
        for role in batches
    ]


def stays(residency):
    """Does a worker keep SMs while idle? @residency: the daemon's own word, then its options."""
    words = residency.split()
    reserved = any(word.split("=")[0] == "--reserve" for word in words)
    return words[0] in RESIDENCIES_THAT_STAY or reserved


@dataclasses.dataclass(frozen=True)
class Window:
    """One stretch of time in which the engines of a case take steps all the same way."""

    way: str
    where: str  # "before" the service starts, "beside" it, "after" it has ended, or "alone"
    engines: tuple  # numbers of those that take steps


def windows_before(case, ways):
    """The peer without the service, the ceiling, and what each role does alone if roles differ."""
    everybody = tuple(case.working)
    found = []
    if case.mixed and "flashinfer" in ways:
        first = [case.roles.index(role) for role in case.working_roles]
        found += [Window("flashinfer", "alone", (i,)) for i in first] * 2
    for way in ("flashinfer", "none"):
        if way in ways:
            found += [Window(way, "before", everybody)] * 2
    return found


def windows_beside(case, ways, rounds, stays_resident):
    """Alternating rounds. The peer is in them only where an idle service leaves all SMs to it."""
    everybody = tuple(case.working)
    found = []
    for _ in range(rounds):
        found += [Window(way, "beside", everybody) for way in ATTND_WAYS if way in ways]
        if "flashinfer" in ways and not stays_resident:
            found.append(Window("flashinfer", "beside", everybody))
    return found


def windows_in_turn(case, ways, rounds):
    """A grid's: all ways in each round, beside a service of which nothing stays on SMs. What
    attention adds to a layer is asked under MPS only."""
    order = [way for way in WAYS if way in ways]
    order = [way for way in order if way != "none" or case.mps]
    return [Window(way, "beside", tuple(case.working)) for _ in range(rounds) for way in order]


def windows_after(case, ways, rounds, stays_resident):
    """The other half of the peer's rounds, if it had none beside the service; else as many windows
    as before it, to tell what the service does to the peer from what time does."""
    count = (max(1, rounds - 2) if stays_resident else 2) if "flashinfer" in ways else 0
    return [Window("flashinfer", "after", tuple(case.working))] * count
