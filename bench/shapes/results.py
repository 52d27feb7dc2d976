"""From times to figures: ratios over the fastest peer and over the floor, and the worst ten."""

import collections
import dataclasses
import pathlib
import statistics
import sys

import shapes

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
import heat  # noqa: E402

WORST_SHOWN = 10


@dataclasses.dataclass
class Measured:
    """One case: attnd's time, the fastest peer's, and what no kernel gets below."""

    case: shapes.Case
    us: float
    floor_us: float
    peer: str = ""
    peer_us: float = 0.0

    @property
    def name(self):
        return self.case.name

    @property
    def shape(self):
        return self.case.shape.name

    @property
    def batch(self):
        return self.case.batch.name

    @property
    def over_peer(self):
        """None without a peer."""
        return self.us / self.peer_us if self.peer else None

    @property
    def over_floor(self):
        return self.us / self.floor_us

    def cell(self):
        """In the picture: over the peer, or in brackets over the floor."""
        beside = f"; {self.peer} {self.peer_us:.1f} us" if self.peer else "; no peer"
        return heat.Cell(
            self.shape, self.batch, self.over_peer,
            f"{self.over_peer:.2f}" if self.peer else f"({self.over_floor:.1f})",
            f"{self.name}: {self.us:.1f} us{beside}; floor {self.floor_us:.1f} us",
        )  # fmt: skip

    def line(self):
        text = f"{self.name}: {self.us:.1f} us"
        if self.peer:
            text += f", {self.peer} {self.peer_us:.1f}: {self.over_peer:.3f}"
        return text + f"; floor {self.floor_us:.1f}: {self.over_floor:.2f}"


def beside_peers(results):
    return [measured for measured in results if measured.peer]


def page_ratios(results):
    """{case: time in pages of 1 over pages of 16} of the prefills that have both."""
    times = {measured.case: measured.us for measured in results}
    found = {}
    for case, us in times.items():
        other = dataclasses.replace(case, shape=dataclasses.replace(case.shape, page=16))
        if case.shape.page == 1 and case.batch.name in shapes.PREFILLS and other in times:
            found[case.name] = us / times[other]
    return found


def worst_of(measured, key):
    worst = max(measured, key=key)
    return key(worst), worst.line()


def peers_of(results):
    """How often each package was the fastest: one that was not there is missing here."""
    found = collections.Counter(measured.peer.split()[0] for measured in results)
    return ", ".join(f"{name} {count}" for name, count in found.most_common())


def figures(results):
    """[(name, value, unit, better, notes)] of what was measured."""
    found, others = [], beside_peers(results)
    by_ratio = lambda measured: measured.over_peer  # noqa: E731
    if others:
        value, notes = worst_of(others, by_ratio)
        found.append(("shapes.worst_over_peer", value, f"{len(others)} cases; {notes}"))
        middle = statistics.median(map(by_ratio, others))
        notes = f"{len(others)} cases; the fastest peers: {peers_of(others)}"
        found.append(("shapes.median_over_peer", middle, notes))
    few = [measured for measured in others if measured.batch in shapes.ROWS_2_TO_16]
    if few:
        value, notes = worst_of(few, by_ratio)
        name = "shapes.rows_2_to_16_worst_over_peer"
        found.append((name, value, f"{len(few)} cases; {notes}"))
    pages = page_ratios(results)
    if pages:
        worst = max(pages, key=pages.get)
        found.append(("shapes.page1_over_page16", pages[worst], f"{len(pages)} prefills; {worst}"))
    if results:
        middle = statistics.median(measured.over_floor for measured in results)
        found.append(("shapes.median_over_floor", middle, f"{len(results)} cases"))
    return [(name, value, "ratio", "lower", notes) for name, value, notes in found]


def worst_ten(results):
    """Lines."""
    ordered = sorted(beside_peers(results), key=lambda measured: -measured.over_peer)
    return [measured.line() for measured in ordered[:WORST_SHOWN]]
