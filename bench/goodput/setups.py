"""What is measured: who computes attention, in how many engines, and with which knobs.

A setup is a word: a name, and behind a colon knobs with commas between them:
two:budget=2048,priority=decode,share=60/40
"""

import dataclasses

WAYS = {"flashinfer": "flashinfer", "fused": "attnd", "two": "attnd"}
EXECUTORS = ("auto", "engine", "service")
PRIORITIES = ("none", "prefill", "decode")
HIGH = -1  # the priority of a stream; 0 is the ordinary one


@dataclasses.dataclass(frozen=True)
class Setup:
    """@budget: tokens of a step, of two engines that of the one that prefills. @execute: the
    daemon's word. @priority: whose stream has the high one. @share: percentages of SMs by MPS of
    the two engines, or ()."""

    name: str
    budget: int = 512
    execute: str = "auto"
    priority: str = "none"
    share: tuple = ()

    @property
    def way(self):
        return WAYS[self.name]

    @property
    def roles(self):
        """Of its engines; one is "both"."""
        return ("prefill", "decode") if self.name == "two" else ("both",)

    def priority_of(self, role):
        return HIGH if role == self.priority else 0

    @property
    def word(self):
        """As it was asked for, knobs that differ from the default alone."""
        said = []
        for field in dataclasses.fields(self)[1:]:
            value = getattr(self, field.name)
            if value != field.default:
                text = "/".join(map(str, value)) if field.name == "share" else str(value)
                said.append(f"{field.name}={text}")
        return self.name + (":" + ",".join(said) if said else "")

    @property
    def figure(self):
        """Its name in a record."""
        return self.word.translate(str.maketrans({c: "_" for c in ":=,/"}))


def parse_setup(text):
    """A Setup; ValueError says what is wrong with the text."""
    name, _, knobs = text.partition(":")
    if name not in WAYS:
        raise ValueError(f"{text}: setups are {', '.join(WAYS)}")
    found = {}
    for knob in filter(None, knobs.split(",")):
        key, _, value = knob.partition("=")
        if key not in READERS:
            raise ValueError(f"{knob}: knobs are {', '.join(READERS)}")
        if name != "two" and key in ("priority", "share"):
            raise ValueError(f"{knob}: a knob of two engines; {name} has one")
        if name == "flashinfer" and key == "execute":
            raise ValueError(f"{knob}: a knob of the service; flashinfer has none")
        found[key] = READERS[key](knob, value)
    return Setup(name, **found)


def read_budget(knob, value):
    if not value.isdigit() or int(value) < 2:
        raise ValueError(f"{knob}: a budget is at least 2 tokens")
    return int(value)


def one_of(known):
    def read(knob, value):
        if value not in known:
            raise ValueError(f"{knob}: {', '.join(known)}")
        return value

    return read


def read_share(knob, value):
    found = tuple(int(part) if part.isdigit() else 0 for part in value.split("/"))
    if len(found) != 2 or not all(1 <= part <= 100 for part in found):
        raise ValueError(f"{knob}: two percentages, of prefill and decode, 1 to 100")
    return found


READERS = {
    "budget": read_budget, "execute": one_of(EXECUTORS), "priority": one_of(PRIORITIES),
    "share": read_share,
}  # fmt: skip


def sets(setups):
    """Setups that share a set of processes: [(share, [setup])]; a percentage of MPS is a process's
    from its start on."""
    return [(share, [s for s in setups if s.share == share])
            for share in dict.fromkeys(s.share for s in setups)]  # fmt: skip
