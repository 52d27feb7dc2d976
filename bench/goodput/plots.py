"""Attainment over the rate, and the distributions of TTFT and TPOT near the goodput, as an SVG."""

import itertools
import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from chart import text  # noqa: E402
from slo import HOLDING_MIN  # noqa: E402

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 200, 46, 46, 64
PEER = "#9aa5b1"  # as in bench/engines
COLORS = ("#1f6feb", "#d9480f", "#2b8a3e", "#862e9c", "#e8590c")


class Panel:
    """Axes from 0 to @x_max and to 1."""

    def __init__(self, number, title, x_max, unit):
        self.x0, self.x_max = LEFT + number * (WIDTH + GAP), x_max or 1.0
        self.out = [
            text(self.x0, TOP - 10, title, 12, "start"),
            f'<path d="M{self.x0} {TOP}V{TOP + HEIGHT}H{self.x0 + WIDTH}" fill="none" '
            'stroke="#333"/>\n',
        ]
        for part in (0, 0.25, 0.5, 0.75, 1):
            x, y = self.place(part * self.x_max, part)
            self.out.append(text(x, TOP + HEIGHT + 14, f"{part * self.x_max:.3g}", 9))
            self.out.append(text(self.x0 - 4, y + 3, f"{part:.2f}", 9, "end"))
        self.out.append(text(self.x0 + WIDTH / 2, TOP + HEIGHT + 28, unit, 10))

    def place(self, x, y):
        return self.x0 + WIDTH * min(x / self.x_max, 1.0), TOP + HEIGHT * (1 - y)

    def line(self, points, color, dots=False):
        places = [self.place(*point) for point in points]
        way = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        self.out.append(f'<path d="M{way}" fill="none" stroke="{color}" stroke-width="1.5"/>\n')
        if dots:
            self.out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>\n'
                         for x, y in places]  # fmt: skip

    def limit(self, x):
        (at, top), (_, bottom) = self.place(x, 1), self.place(x, 0)
        self.out.append(
            f'<path d="M{at:.1f} {top}V{bottom}" stroke="#999" stroke-dasharray="4 3"/>\n'
        )

    def level(self, y):
        (left, at), (right, _) = self.place(0, y), self.place(self.x_max, y)
        self.out.append(
            f'<path d="M{left} {at:.1f}H{right}" stroke="#999" stroke-dasharray="4 3"/>\n'
        )


def distribution(values):
    """[(value, part of them that is not above it)]."""
    ordered = sorted(values)
    return [(x, (i + 1) / len(ordered)) for i, x in enumerate(ordered)]


def colors_of(results):
    left = itertools.cycle(COLORS)
    return [PEER if r.setup.name == "flashinfer" else next(left) for r in results]


def measured(name, judged):
    """Their TTFT, or the TPOT of those that have one."""
    return [getattr(s, name) for s in judged if (s.tokens if name == "ttft" else s.gaps)]


def draw(results, slo, title):
    """Results that have probes, by `report`."""
    colors = colors_of(results)
    rates = Panel(0, "requests that hold both, by rate",
                  max(p.rate for r in results for p in r.probes), "requests/s")  # fmt: skip
    rates.level(HOLDING_MIN)
    panels = [rates]
    for number, (name, limit) in enumerate((("ttft", slo.ttft), ("tpot", slo.tpot)), 1):
        of = [measured(name, r.near().judged) for r in results]
        highest = max((x for values in of for x in values), default=1.0)
        upto = min(highest, 3 * limit)
        panel = Panel(number, f"{name.upper()} near the goodput", upto * 1e3, "ms")
        for values, color in zip(of, colors):
            if values:
                panel.line([(x * 1e3, y) for x, y in distribution(values)], color)
        if limit <= upto:
            panel.limit(limit * 1e3)
        panels.append(panel)
    legend = []
    for number, (result, color) in enumerate(zip(results, colors)):
        points = sorted((p.rate, p.attainment) for p in result.probes)
        rates.line(points, color, dots=True)
        y = TOP + HEIGHT + 50 + 14 * number
        legend.append(f'<rect x="{LEFT}" y="{y - 9}" width="10" height="10" fill="{color}"/>\n')
        good = result.goodput
        words = f"{result.setup.word}: {good.bound} {good.rate:.2f} requests/s".replace("  ", " ")
        legend.append(text(LEFT + 16, y, words, 10, "start"))
    width = LEFT + 3 * WIDTH + 2 * GAP + 20
    height = TOP + HEIGHT + 56 + 14 * len(results)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n'
        + text(LEFT, 18, title, 13, "start")
        + "".join(line for panel in panels for line in panel.out)
        + "".join(legend)
        + "</svg>\n"
    )
