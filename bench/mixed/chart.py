#!/usr/bin/env python3
"""chart.py CASES SVG - what bench/pod or bench/cascade wrote with --cases, as one picture: for each case a line of
marks, each way's time over the case's floor."""
import html
import sys

ROW, LEFT, WIDTH, TOP, BOTTOM = 16, 190, 560, 66, 30
COLORS = {
    "then": "#9aa5b1",
    "lanes": "#c58b2a",
    "off": "#6e7781",
    "sm-split": "#69a1f5",
    "auto": "#1f6feb",
    "levels": "#69a1f5",
    "peer": "#d1242f",
}
NAMES = {"then": "one after the other", "lanes": "two lanes", "levels": "two levels", "peer": "best peer"}


def read(path):
    cases = {}
    with open(path) as lines:
        for line in lines:
            case, way, us = line.split()
            cases.setdefault(case, {})[way] = float(us)
    return cases


def floor_of(ways):
    return ways["floor"] if "floor" in ways else max(ways["prefill"], ways["decode"])


def text(x, y, words, anchor="start", size=10):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{html.escape(words)}</text>\n'


def draw(cases, title):
    rows = [(case, ways, floor_of(ways)) for case, ways in cases.items()]
    ways = [way for way in COLORS if any(row[1].get(way, 0) > 0 for row in rows)]
    most = max(row[1].get(way, 0) / row[2] for row in rows for way in ways)
    height, scale = TOP + ROW * len(rows) + BOTTOM, WIDTH / (most * 1.03 - 0.9)
    x_of = lambda ratio: LEFT + (ratio - 0.9) * scale
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 20}" height="{height}" font-family="sans-serif">\n'
        f'<rect width="100%" height="100%" fill="#fff"/>\n',
        text(10, 18, title, size=13),
    ]
    x = 10
    for way in ways:
        out.append(f'<circle cx="{x + 4}" cy="34" r="4" fill="{COLORS[way]}"/>\n' + text(x + 12, 38, NAMES.get(way, way)))
        x += 30 + 6 * len(NAMES.get(way, way))
    step = 0.25 if most < 4 else 1 if most < 12 else 5
    ratio = 1.0
    while ratio <= most:
        out.append(f'<path d="M{x_of(ratio):.1f} {TOP - 6}V{height - BOTTOM}" stroke="#e4e7eb"/>\n')
        out.append(text(x_of(ratio), height - BOTTOM + 14, f"{ratio:g}", "middle"))
        ratio += step
    for i, (case, times, floor) in enumerate(rows):
        y = TOP + ROW * i + ROW / 2
        out.append(text(LEFT - 10, y + 3, f"{case}  ({floor:.0f} us)", "end"))
        for way in ways:
            if times.get(way, 0) > 0:
                label = f"{case}, {NAMES.get(way, way)}: {times[way]:.1f} us, {times[way] / floor:.2f} of the floor"
                out.append(
                    f'<circle cx="{x_of(times[way] / floor):.1f}" cy="{y:.1f}" r="4" fill="{COLORS[way]}" '
                    f'fill-opacity="0.8"><title>{html.escape(label)}</title></circle>\n'
                )
    return "".join(out) + "</svg>\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    cases = read(sys.argv[1])
    if not cases:
        sys.exit(f"chart.py: {sys.argv[1]} has no cases")
    with open(sys.argv[2], "w") as out:
        out.write(draw(cases, "Time over the floor of each case"))


if __name__ == "__main__":
    main()
