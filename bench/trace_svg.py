#!/usr/bin/env python3
"""A picture of timelines: files of `attnctl trace`, one above the other, over the same time scale.

Each track is a row, each item a bar: compute-bound, memory-bound or append by its colour, and a
second session's are hatched. Of files with many tracks an even choice of rows is drawn. Needs
nothing but Python.

    attnctl trace --seconds 1 -o fused.json
    bench/trace_svg.py --begin-us 120 --for-us 900 serial.json fused.json > timeline.svg

Exit status: 0 drawn; 1 a file is no timeline, or nothing of it lies in that time.
"""

import argparse
import html
import json
import pathlib
import sys

WIDTH, LEFT, ROW, GAP, HEAD = 960, 110, 7, 2, 26
COLORS = {"compute-bound": "#c2553c", "memory-bound": "#3b6ea5", "append": "#7a9a4f"}


def read(path):
    """(begin_us, end_us, track, kind, session) of each item, and the tracks' names."""
    events = json.loads(path.read_text())["traceEvents"]
    groups, lanes = {}, {}
    for event in events:
        if event["ph"] == "M":
            name = event["args"]["name"]
            if event["name"] == "process_name":
                groups[event["pid"]] = name
            else:
                lanes[event["pid"], event["tid"]] = name
    names = {place: f"{groups[place[0]]}, {name}" for place, name in lanes.items()}
    items = [
        (e["ts"], e["ts"] + e["dur"], (e["pid"], e["tid"]), e["cat"], e["args"]["session"])
        for e in events
        if e["ph"] == "X"
    ]
    return items, names


def cut(items, begin_us, for_us):
    """Items of a span that begins @begin_us behind the first, with times from there on."""
    zero = min(item[0] for item in items) + begin_us
    inside = [item for item in items if item[0] < zero + for_us and item[1] > zero]
    return [
        (max(b - zero, 0), min(e - zero, for_us), track, kind, session)
        for b, e, track, kind, session in inside
    ]


def choose(tracks, most):
    """At most @most of them, evenly."""
    if len(tracks) <= most:
        return tracks
    return [tracks[i * len(tracks) // most] for i in range(most)]


def bar(item, y, scale, second):
    begin, end, _, kind, session = item
    x, width = LEFT + begin * scale, max((end - begin) * scale, 0.3)
    title = f"{kind}, session {session}: {end - begin:.1f} us"
    color = COLORS.get(kind, "#999999")
    marks = f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="{color}">'
    marks += f"<title>{html.escape(title)}</title></rect>"
    if second:
        marks += f'<rect x="{x:.2f}" y="{y}" width="{width:.2f}" height="{ROW}" fill="url(#second)"/>'
    return marks


def panel(name, items, names, top, scale, rows):
    """Return: its marks, and where it ends."""
    tracks = choose(sorted({item[2] for item in items}), rows)
    sessions = sorted({item[4] for item in items})
    out = [f'<text x="0" y="{top + 14}" font-weight="bold">{html.escape(name)}</text>']
    y = top + HEAD
    for track in tracks:
        out.append(f'<text x="0" y="{y + ROW}" class="track">{html.escape(names[track])}</text>')
        mine = sorted((item for item in items if item[2] == track), key=lambda item: item[0])
        out += [bar(item, y, scale, item[4] != sessions[0]) for item in mine]
        y += ROW + GAP
    return out, y


def axis(y, for_us, scale):
    step = 10 ** (len(str(int(for_us))) - 1)
    out = []
    for tick in range(0, int(for_us) + 1, step):
        x = LEFT + tick * scale
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}" stroke="#555"/>')
        out.append(f'<text x="{x:.1f}" y="{y + 14}" text-anchor="middle">{tick} us</text>')
    return out


def legend(y):
    out, x = [], LEFT
    for kind, color in COLORS.items():
        out.append(f'<rect x="{x}" y="{y}" width="10" height="{ROW}" fill="{color}"/>')
        out.append(f'<text x="{x + 14}" y="{y + ROW}">{kind}</text>')
        x += 120
    return out


def draw(panels, for_us, rows):
    scale = (WIDTH - LEFT - 20) / for_us
    marks, y = [], 4
    for name, items, names in panels:
        more, y = panel(name, items, names, y, scale, rows)
        marks += more
        y += 8
    marks += axis(y, for_us, scale) + legend(y + 26)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 44}" '
            'font-family="sans-serif" font-size="10" fill="#222">',
            '<pattern id="second" width="4" height="4" patternUnits="userSpaceOnUse">'
            '<path d="M0 4 L4 0" stroke="#fff" stroke-width="0.8"/></pattern>',
            "<style>.track { font-size: 7px; }</style>",
            *marks,
            "</svg>",
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--begin-us", type=float, default=0, help="behind each file's first item")
    parser.add_argument("--for-us", type=float, default=1000, help="how much is drawn")
    parser.add_argument("--rows", type=int, default=32, help="of each file, at most")
    options = parser.parse_args()
    panels = []
    for path in options.files:
        try:
            items, names = read(path)
        except (OSError, ValueError, KeyError) as error:
            sys.exit(f"trace_svg: {path}: no timeline of attnctl trace: {error!r}")
        items = cut(items, options.begin_us, options.for_us) if items else []
        if not items:
            sys.exit(f"trace_svg: {path}: nothing lies in that time")
        panels.append((path.stem, items, names))
    print(draw(panels, options.for_us, options.rows))


if __name__ == "__main__":
    main()
