"""The table as one picture: for each case, sums over FlashInfer's, as bars of an SVG."""

import html
import math
import statistics

BAR, GAP, CASE_GAP, PLOT_HEIGHT, TOP, LEFT, BOTTOM = 26, 4, 30, 220, 54, 44, 62
COLORS = {"separate": "#79a8f0", "flashinfer": "#9aa5b1", "attnd": "#1f6feb", "none": "#e4e7eb"}
LIGHTER = ("#1f6feb", "#69a1f5", "#b3cffa")  # the first residency, the second, and so on
NAMES = {
    "flashinfer": "FlashInfer in the engine", "attnd": "attnd", "separate": "attnd, rotation apart",
    "none": "no attention at all",
}  # fmt: skip


def bars_of(results):
    """[(case name, [(label, color, value, low, high, absolute)])], values over FlashInfer's sum."""
    cases, several = {}, len(results) > len({result.case for result in results})
    for result in results:
        peer = result.median_score("flashinfer")
        if math.isnan(peer):
            continue
        bars = cases.setdefault(result.case.name, [])
        first = not bars
        for way in result.ways():
            if way != "attnd" and not first:
                continue
            values = [result.score(w) / peer for w in result.windows_of(way)]
            label, color = NAMES[way], COLORS[way]
            if way == "attnd":
                values = result.ratios()
                label = f"attnd, {result.residency}" if several else "attnd"
                ours = sum(bar[0].startswith("attnd") for bar in bars)
                color = LIGHTER[min(ours, len(LIGHTER) - 1)]
            middle = statistics.median(values)
            absolute = result.median_score(way)
            bars.append((label, color, middle, min(values), max(values), absolute))
    return list(cases.items())


def text(x, y, words, size=11, anchor="middle", extra=""):
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{extra}>'
        f"{html.escape(words)}</text>\n"
    )


def draw_bar(x, bar, y_of):
    label, color, value, low, high, absolute = bar
    y, base, middle = y_of(value), y_of(0), x + BAR / 2
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BAR}" height="{base - y:.1f}" fill="{color}">'
        f"<title>{html.escape(label)}: {value:.3f} ({low:.3f} to {high:.3f})</title></rect>\n"
        f'<path d="M{middle:.1f} {y_of(low):.1f}V{y_of(high):.1f}" stroke="#333"/>\n'
        + text(middle, y - 4 - (y - y_of(high)), f"{value:.2f}", 10)
        + text(middle, base + 12, f"{absolute:.3g}", 9, extra=' fill="#666"')
    )


def draw(results, title):
    """An SVG, or "" where no case has a peer to be compared with."""
    cases = bars_of(results)
    if not cases:
        return ""
    top_value = max(1.2, *(bar[4] * 1.12 for _, bars in cases for bar in bars))
    widths = [len(bars) * (BAR + GAP) + CASE_GAP for _, bars in cases]
    width, height = LEFT + max(sum(widths), 420) + 10, TOP + PLOT_HEIGHT + BOTTOM

    def y_of(value):
        return TOP + PLOT_HEIGHT * (1 - value / top_value)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n',
        text(LEFT, 18, title, 13, "start"),
    ]
    labels = dict((bar[0], bar[1]) for _, bars in cases for bar in bars)
    x = LEFT
    for label, color in labels.items():
        out.append(f'<rect x="{x}" y="27" width="10" height="10" fill="{color}"/>\n')
        out.append(text(x + 14, 36, label, 10, "start"))
        x += 26 + 6 * len(label)
    for tick in range(int(top_value * 4) + 1):
        y, dashed = y_of(tick / 4), ' stroke-dasharray="4 3" stroke="#333"' if tick == 4 else ""
        out.append(
            f'<path d="M{LEFT} {y:.1f}H{width - 10}" stroke="#ddd"{dashed}/>\n'
            if not dashed
            else f'<path d="M{LEFT} {y:.1f}H{width - 10}"{dashed}/>\n'
        )
        out.append(text(LEFT - 6, y + 4, f"{tick / 4:.2f}", 10, "end"))
    x = LEFT + CASE_GAP / 2
    for (name, bars), case_width in zip(cases, widths):
        for i, bar in enumerate(bars):
            out.append(draw_bar(x + i * (BAR + GAP), bar, y_of))
        out.append(text(x + (case_width - CASE_GAP - GAP) / 2, y_of(0) + 30, name, 12))
        x += case_width
    out.append(text(LEFT, height - 10, "Bars: sum of steps/s over FlashInfer's; lines: all rounds; "
                    "below: steps/s, or over alone where roles differ.", 9, "start"))  # fmt: skip
    return "".join(out) + "</svg>\n"
