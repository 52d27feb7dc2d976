"""The grid as one picture: a line a shape, a column a batch, attnd's time over its fastest peer's.

Where there is no peer the time over the floor stands in brackets, in grey.
"""

import html
import math

CELL_W, CELL_H, LEFT, TOP, BOTTOM = 44, 17, 210, 78, 40
GOOD, EVEN, BAD = (26, 127, 55), (246, 248, 250), (207, 34, 46)
WORST = 2.0  # and beyond, the darkest


def color_of(ratio):
    """Green below 1, red above, on a scale of ratios: 0.5 and 2 are equally dark."""
    part = max(-1.0, min(1.0, math.log(ratio) / math.log(WORST)))
    end = BAD if part > 0 else GOOD
    mixed = (round(a + (b - a) * abs(part)) for a, b in zip(EVEN, end))
    return "#" + "".join(f"{x:02x}" for x in mixed)


def text(x, y, words, size=10, anchor="middle", extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>'
        f"{html.escape(words)}</text>\n"
    )


def cell(x, y, measured):
    """@measured: a Measured of `run`."""
    over_peer = measured.over_peer
    color = color_of(over_peer) if over_peer else "#e4e7eb"
    shown = f"{over_peer:.2f}" if over_peer else f"({measured.over_floor:.1f})"
    dark = over_peer and abs(math.log(over_peer)) > 0.45
    beside = f"; {measured.peer} {measured.peer_us:.1f} us" if over_peer else "; no peer"
    title = f"{measured.name}: {measured.us:.1f} us{beside}; floor {measured.floor_us:.1f} us"
    return (
        f'<rect x="{x}" y="{y}" width="{CELL_W - 1}" height="{CELL_H - 1}" fill="{color}">'
        f"<title>{html.escape(title)}</title></rect>\n"
        + text(x + CELL_W / 2, y + 12, shown, 10, extra=' fill="#fff"' if dark else "")
    )


def draw(results, title, words):
    """An SVG of what was measured; "" of nothing. @words: {batch: what it is}."""
    if not results:
        return ""
    rows = list(dict.fromkeys(measured.shape for measured in results))
    columns = [name for name in words if any(m.batch == name for m in results)]
    width = LEFT + CELL_W * len(columns) + 20
    notes = [f"{name}: {words[name]}" for name in columns]
    per_line = max(1, width // 240)
    lines = [notes[i : i + per_line] for i in range(0, len(notes), per_line)]
    height = TOP + CELL_H * len(rows) + BOTTOM + 14 * len(lines)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n',
        text(10, 20, title, 13, "start"),
        text(10, 38, "time of a whole call over the fastest peer's; in brackets, where there is "
             "none, over the floor", 10, "start"),
    ]  # fmt: skip
    for i, name in enumerate(columns):
        out.append(text(LEFT + CELL_W * (i + 0.5), TOP - 8, name, 11))
    at = {shape: TOP + CELL_H * i for i, shape in enumerate(rows)}
    for shape, y in at.items():
        out.append(text(LEFT - 8, y + 12, shape, 10, "end"))
    for measured in results:
        x = LEFT + CELL_W * columns.index(measured.batch)
        out.append(cell(x, at[measured.shape], measured))
    y = TOP + CELL_H * len(rows) + 24
    for i, line in enumerate(lines):
        for j, note in enumerate(line):
            out.append(text(10 + j * 240, y + 14 * i, note, 9, "start"))
    return "".join(out) + "</svg>\n"
