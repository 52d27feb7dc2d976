"""A table of ratios as one picture: cells in a line and a column, green below 1 and red above."""

import dataclasses
import html
import math

CELL_WIDTH, CELL_HEIGHT, LEFT, TOP, BOTTOM = 44, 17, 210, 78, 24
NOTE_WIDTH, NOTE_HEIGHT = 300, 14
GOOD, EVEN, BAD, NOTHING = (26, 127, 55), (246, 248, 250), (207, 34, 46), "#e4e7eb"
DARKEST = 2.0  # and beyond
WHITE_TEXT = 1.55


@dataclasses.dataclass
class Cell:
    line: str
    column: str
    ratio: float | None  # a time over another's; None: grey
    shown: str
    title: str


def color_of(ratio):
    """On a scale of ratios: half and twice are equally dark."""
    if ratio is None:
        return NOTHING
    part = max(-1.0, min(1.0, math.log(ratio) / math.log(DARKEST)))
    end = BAD if part > 0 else GOOD
    mixed = (round(a + (b - a) * abs(part)) for a, b in zip(EVEN, end))
    return "#" + "".join(f"{x:02x}" for x in mixed)


def text(x, y, words, size=10, anchor="middle", extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>'
        f"{html.escape(words)}</text>\n"
    )


def draw_cell(x, y, cell):
    dark = cell.ratio is not None and abs(math.log(cell.ratio)) > math.log(WHITE_TEXT)
    return (
        f'<rect x="{x}" y="{y}" width="{CELL_WIDTH - 1}" height="{CELL_HEIGHT - 1}" '
        f'fill="{color_of(cell.ratio)}"><title>{html.escape(cell.title)}</title></rect>\n'
        + text(x + CELL_WIDTH / 2, y + 12, cell.shown, extra=' fill="#fff"' if dark else "")
    )


def draw(cells, title, below, columns):
    """An SVG; "" of nothing. @below: a line under the title. @columns: {name: what it is}, in
    order; those without a cell are left out."""
    if not cells:
        return ""
    lines = list(dict.fromkeys(cell.line for cell in cells))
    used = [name for name in columns if any(cell.column == name for cell in cells)]
    width = max(LEFT + CELL_WIDTH * len(used) + 20, 2 * NOTE_WIDTH)
    notes = [f"{name}: {columns[name]}" for name in used]
    abreast = width // NOTE_WIDTH
    end = TOP + CELL_HEIGHT * len(lines) + BOTTOM
    height = end + NOTE_HEIGHT * -(-len(notes) // abreast)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n',
        text(10, 20, title, 13, "start"),
        text(10, 38, below, 10, "start"),
    ]
    for i, name in enumerate(used):
        out.append(text(LEFT + CELL_WIDTH * (i + 0.5), TOP - 8, name, 11))
    for i, line in enumerate(lines):
        out.append(text(LEFT - 8, TOP + CELL_HEIGHT * i + 12, line, 10, "end"))
    for cell in cells:
        x = LEFT + CELL_WIDTH * used.index(cell.column)
        out.append(draw_cell(x, TOP + CELL_HEIGHT * lines.index(cell.line), cell))
    for i, note in enumerate(notes):
        x, y = 10 + NOTE_WIDTH * (i % abreast), end + NOTE_HEIGHT * (i // abreast)
        out.append(text(x, y, note, 9, "start"))
    return "".join(out) + "</svg>\n"
