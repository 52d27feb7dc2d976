"""Models by batches: one engine for each, all ways in turn, and what is worst and what is usual.

An engine process holds one model at a time and all its batches; one service serves all of them.
So a case costs its windows, and little beside. Whatever fails costs its model's cases only: the
rest goes on with processes of its own. Each case is printed when it is measured.
"""

import re
import statistics
import subprocess
import time

import heat
from cases import GRID_BATCHES_OF_TILES, LAYERS, PAGE_SIZE, windows_in_turn
from figures import spread

TILES_S = 60
BATCH_WORDS = {
    "A": "8 decodes at 1000 to 1259",
    "B": "64 decodes at 500 to 3839",
    "S": "32 requests of 5 rows at 2000 to 2527",
    "Q": "a prompt of 2000",
    "D": "32 decodes at 4096",
    "P": "a chunk of 2048 at 8192",
    "M": "a chunk of 512 at 8192 and 32 decodes",
}


def by_model(cases):
    """Cases in groups that one engine can hold: [[case]]."""
    groups = {}
    for case in cases:
        groups.setdefault((case.model, case.page_size), []).append(case)
    return list(groups.values())


def layer_us(result, way):
    """What attention adds to a layer in a graph: a step, less a step without attention."""
    ours, without = (result.engine_rate(w, 0) for w in (way, "none"))
    return (1e6 / ours - 1e6 / without) / LAYERS


def line(result):
    """A measured case in words."""
    text = f"{result.case.name}: attnd {result.engine_rate('attnd', 0):.1f} steps/s"
    if result.ratios():
        text += f", FlashInfer {result.engine_rate('flashinfer', 0):.1f}: {spread(result.ratios())}"
        text += "".join(f" ({name})" for name in result.peer_names.values())
    if result.fused_ratios():
        text += f"; over separate steps {spread(result.fused_ratios())}"
    if result.of("none"):
        text += f"; a layer {layer_us(result, 'attnd'):.1f} us"
        if result.ratios():
            text += f", FlashInfer {layer_us(result, 'flashinfer'):.1f}"
    return text


class Grid:
    """All cases under MPS, or all without it, with one daemon."""

    def __init__(self, bench, prepare, done):
        """@bench: a Bench with one engine. @prepare(cases): the ways that are there, and
        FlashInfer's names. @done(result) is told of each that is whole."""
        self.bench, self.prepare, self.done = bench, prepare, done

    def measure(self, groups, residency):
        """@groups: [[case]]; those that are measured are taken from it. Raises Hang."""
        self.bench.start_daemon(residency)
        while groups:
            self.measure_model(groups[0], residency)
            groups.pop(0)
        self.bench.stop_daemon()

    def measure_model(self, cases, residency):
        bench, since = self.bench, time.monotonic()
        bench.ways, bench.chosen = self.prepare(cases)
        results = [bench.result(case, residency) for case in cases]
        roles = {0: [case.roles for case in cases]}
        actual = bench.connect(roles, results) if "attnd" in bench.ways else ""
        rows = sum(result.rows_verified() for result in results)
        print(f"engines: {cases[0].layers_of}: ready in {time.monotonic() - since:.1f} s, {rows} "
              "rows of attnd right", flush=True)  # fmt: skip
        for result in results:
            result.actual, bench.window_s = actual, bench.options.window
            bench.engines.all[0].role = result.case.roles
            bench.run_windows(
                result, windows_in_turn(result.case, bench.ways, bench.options.rounds)
            )
            print(f"engines: {line(result)}", flush=True)
        if "attnd" in bench.ways:
            bench.disconnect(roles, results)
        print(f"engines: {cases[0].layers_of}: {time.monotonic() - since:.1f} s in all", flush=True)
        for result in results:
            self.done(result)


# ---- the whole of it ----


def medians(results, mps):
    """{name: attnd over FlashInfer} of the cases with or without MPS."""
    return {
        result.case.figure: statistics.median(result.ratios())
        for result in results
        if result.case.mps == mps and result.ratios()
    }


def table(results):
    """Ratios, and in brackets microseconds of a layer of both: a line a model, a column a batch."""
    text = ""
    for mps in (True, False):
        chosen = [result for result in results if result.case.mps == mps]
        batches = list(dict.fromkeys(result.case.roles for result in chosen))
        models = list(dict.fromkeys(result.case.model for result in chosen))
        if not chosen:
            continue
        head = ["under MPS" if mps else "without MPS", *batches]
        rows = [head, ["---"] * len(head)]
        for model in models:
            cells = {r.case.roles: cell(r) for r in chosen if r.case.model == model}
            rows.append([model, *(cells.get(batch, "") for batch in batches)])
        text += "".join("| " + " | ".join(row) + " |\n" for row in rows) + "\n"
    return text


def cell(result):
    if not result.ratios():
        return "no peer"
    shown = f"{statistics.median(result.ratios()):.3f}"
    if result.of("none"):
        pair = (layer_us(result, way) for way in ("attnd", "flashinfer"))
        shown += " (" + ", ".join(f"{us:.1f}" for us in pair) + ")"
    return shown


def picture(results, device):
    """A heat map of FlashInfer's steps/s over attnd's."""
    cells = []
    for result in results:
        if result.ratios():
            ratio = statistics.median(result.ratios())
            where = f"{result.case.model}{'' if result.case.mps else ', without MPS'}"
            shown = f"{ratio:.2f}"
            cells.append(heat.Cell(where, result.case.roles, 1 / ratio, shown, line(result)))
    title = f"Whole layers on one {device}: attnd's steps/s over FlashInfer's"
    below = "an engine alone; green: more than with FlashInfer in the engine's own process"
    return heat.draw(cells, title, below, BATCH_WORDS)


def summary(results, wanted):
    """[(name, value, unit, better, notes)]: the worst and the usual case, if all @wanted cases were
    measured beside the peer."""
    found, size = [], wanted[0].page_size
    pages = "" if size == PAGE_SIZE else f"page{size}_"
    for mps, prefix in (True, pages), (False, f"{pages}no_mps_"):
        values = medians(results, mps)
        if not values or set(values) != {case.figure for case in wanted if case.mps == mps}:
            continue
        worst = min(values, key=values.get)
        notes = f"{len(values)} cases; the worst is {worst}"
        common = ("ratio", "higher", notes)
        found.append((f"engines.{prefix}worst_over_flashinfer", values[worst], *common))
        middle = statistics.median(values.values())
        found.append((f"engines.{prefix}median_over_flashinfer", middle, *common))
    return found


def layers(results):
    """Of each case what attention adds to a layer."""
    return [
        (f"engines.{result.case.figure}_layer_us", layer_us(result, "attnd"), "us", "lower",
         f"a step less one without attention, over {LAYERS}"
         + (f"; FlashInfer {layer_us(result, 'flashinfer'):.1f}" if result.ratios() else ""))
        for result in results
        if result.of("none") and result.of("attnd")
    ]  # fmt: skip


# ---- tiles alone ----


def tiles_us(program, shapes):
    """{shape: device microseconds} by gpu_drain, of those that it knows."""
    asked = subprocess.run(
        [program, "--only", ",".join(shapes) + ","], capture_output=True, text=True,
        timeout=TILES_S,
    )  # fmt: skip
    found = re.findall(r"^(\S+) .* device +([0-9.]+) us", asked.stdout, re.MULTILINE)
    return {name: float(us) for name, us in found}


def over_tiles(results, program):
    """gpu.layer_over_tiles_us: a layer in a graph, less its tiles alone; the worst of some."""
    chosen = {
        GRID_BATCHES_OF_TILES[result.case.model, result.case.roles]: layer_us(result, "attnd")
        for result in results
        if result.case.mps and (result.case.model, result.case.roles) in GRID_BATCHES_OF_TILES
        and result.of("none") and result.of("attnd")
    }  # fmt: skip
    if not chosen or not program.exists():
        return []
    tiles = tiles_us(program, chosen)
    over = {shape: us - tiles[shape] for shape, us in chosen.items() if shape in tiles}
    if not over:
        return []
    notes = "; ".join(
        f"{shape}: {chosen[shape]:.1f} us, tiles alone {tiles[shape]:.1f}" for shape in over
    )
    return [("gpu.layer_over_tiles_us", max(over.values()), "us", "lower", notes)]
