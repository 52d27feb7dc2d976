"""The options of `run`, and what bench/shapes has of them too: files, the service, where a bundle
or a checkout has its programs, the commit that is recorded."""

import argparse
import pathlib
import sys

import figures
from cases import BATCHES, PAGE_SIZE, PAGE_SIZES, USUAL_WAYS, WAYS, grid_cases, parse_case, stays
from models import DEFAULT_MODEL, GRID_MODELS, MODELS

HERE = pathlib.Path(__file__).resolve().parent
CASES = "D P M DD DDDD PP MMMM PDDD D/no-mps"
ROUNDS, WINDOW_S = 5, 0.3
GRID_ROUNDS, GRID_WINDOW_S = 3, 0.08


# ---- what words may be ----


def case(word):
    try:
        parse_case(word)
    except ValueError as wrong:
        raise argparse.ArgumentTypeError(str(wrong)) from None
    return word


def some_of(known, what):
    """A list of @known words with commas between them."""

    def parse(word):
        found = word.split(",")
        strange = [name for name in found if name not in known]
        if strange:
            raise argparse.ArgumentTypeError(f"{strange[0]}: {what} are {', '.join(known)}")
        return found

    return parse


def positive(word):
    if not float(word) > 0:
        raise argparse.ArgumentTypeError(f"{word} is not above 0")
    return float(word)


def count(word):
    if int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not at least 1")
    return int(word)


# ---- options ----


def add_service(add):
    add("--peers", metavar="DIR", help="a folder to import FlashInfer from (on sys.path first)")
    add("--execute", metavar="WORD",
        help="the daemon's --execute: who executes runs (default: as it decides)")  # fmt: skip


def add_files(add, record):
    """@record: the help of --record."""
    add("--bundle", type=pathlib.Path, metavar="DIR",
        help="where attnd and its libraries are: a bundle, or a build folder (default: the bundle "
        "or checkout that this program is in)")  # fmt: skip
    add("--record", type=pathlib.Path, metavar="DIR", help=record)
    add("--svg", type=pathlib.Path, metavar="FILE", help="the picture alone")
    add("--allow-dirty", action="store_true", help="record figures of uncommitted changes")
    add("--seed", type=int, default=1, help="of data, pages and verified rows (default: 1)")


def add_what(add):
    add("cases", nargs="*", metavar="CASE", type=case, help=f"default: {CASES}")
    add("--residency", action="append", metavar="WORDS",
        help="the daemon's --residency and, behind a space, further options of the daemon: shared, "
        "'shared --sms 24', elastic. Repeat it to measure several in turn, on the same "
        "engines (default: auto)")  # fmt: skip
    add("--no-mps-residency", action="append", metavar="WORDS",
        help="the same for cases without MPS (default: auto)")  # fmt: skip
    add("--ways", type=some_of(WAYS, "ways"), default=list(USUAL_WAYS), metavar="LIST",
        help="of attnd, separate (attnd, with rotation and cache update in front of it), "
        "flashinfer, none (the same layers without attention: the ceiling); default: all but "
        "separate")  # fmt: skip
    add("--grid", action="store_true",
        help=f"models by batches; --model and CASEs of one role make it smaller (default: "
        f"{', '.join(GRID_MODELS)}; {' '.join(BATCHES)})")  # fmt: skip
    add("--model", type=some_of(MODELS, "models"), metavar="LIST",
        help=f"of {', '.join(MODELS)}; the cases of each (default: {DEFAULT_MODEL}, whose name is "
        "not in the figures' then)")  # fmt: skip
    add("--page-size", type=int, choices=PAGE_SIZES, default=PAGE_SIZE, metavar="TOKENS",
        help=f"{', '.join(map(str, PAGE_SIZES))} (default: {PAGE_SIZE})")  # fmt: skip


def add_how(add):
    add("--rounds", type=count, metavar="N", help=f"default: {ROUNDS}; of a grid {GRID_ROUNDS}")
    add("--window", type=positive, metavar="SECONDS",
        help=f"how long one way is measured at a time (default: {WINDOW_S}; of a grid "
        f"{GRID_WINDOW_S}); longer where an engine takes fewer than 5 steps in it")  # fmt: skip
    add("--patience", type=positive, default=10.0, metavar="SECONDS",
        help="an engine that answers so much too late hangs, which ends the run "
        "(default: 10)")  # fmt: skip
    add("--limit", type=positive, default=280.0, metavar="SECONDS",
        help="the whole run, except for ending it, takes no longer (default: 280)")  # fmt: skip


def add_output(add):
    add_files(
        add,
        "write engines-<device>.json (records) and engines-<device>.svg there; of a grid "
        "engines-grid-<device>",
    )
    add("--details", type=pathlib.Path, metavar="FILE",
        help="every window and every step's time as JSON")  # fmt: skip
    add("--timeline", action="store_true",
        help="then also print the kernels of a layer and the gaps between them, for each role and "
        "way; profiling disturbs what is measured later, so nothing is recorded")  # fmt: skip
    add("--engine", type=pathlib.Path, default=HERE / "engine.py",
        help=argparse.SUPPRESS)  # a test's  # fmt: skip
    add("--verbose", action="store_true", help="a line for every window")


def parsed(arguments, description, *parts):
    """@parts: functions that add options. Return: the parser, and what it found."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for add_some in parts:
        add_some(parser.add_argument)
    return parser, parser.parse_args(arguments)


def options_of(arguments, description):
    parser, options = parsed(arguments, description, add_service, add_what, add_how, add_output)
    take_cases(options, parser)
    options.residency = options.residency or ["auto"]
    options.no_mps_residency = options.no_mps_residency or ["auto"]
    if options.grid and any(map(stays, options.residency + options.no_mps_residency)):
        parser.error("--grid measures the peer beside the service: nothing may stay on SMs")
    if options.record and len(options.residency) + len(options.no_mps_residency) > 2:
        parser.error("--record takes figures of one residency")
    if options.record and options.timeline:
        parser.error("--record takes no figures beside --timeline")
    find_programs(options)
    return options


def take_cases(options, parser):
    """Sets cases, rounds and window, by whether it is a grid."""
    rounds, window = (GRID_ROUNDS, GRID_WINDOW_S) if options.grid else (ROUNDS, WINDOW_S)
    options.rounds, options.window = options.rounds or rounds, options.window or window
    if options.grid:
        options.model = options.model or list(GRID_MODELS)
        roles = options.cases or BATCHES
        if not set(roles) <= set(BATCHES):
            parser.error(f"a grid's cases are of {', '.join(BATCHES)}, not {' '.join(roles)}")
        options.cases = grid_cases(options.model, roles, options.page_size)
    else:
        options.cases = [
            parse_case(word, model, options.page_size)
            for model in options.model or [""]
            for word in options.cases or CASES.split()
        ]


def find_programs(options):
    """Sets programs, libraries, with_mps: of a bundle, or of a checkout and its build folder."""
    root = (options.bundle or HERE.parents[1]).resolve()
    packed = (root / "with-mps").exists()
    options.programs = root if packed or options.bundle else root / "build"
    options.libraries = root / "lib" if packed else options.programs
    options.with_mps = root / "with-mps" if packed else HERE.parents[1] / "tests/gpu/with-mps"


def stamp_of(options, program):
    """The commit of what is recorded, and whether it has changes; made sure of before anything is
    measured. Without --record it does not matter."""
    if not options.record:
        return "", True
    try:
        commit, dirty = figures.stamp_commit(options.bundle or HERE.parents[1])
    except ValueError as wrong:
        sys.exit(f"{program}: records: {wrong}")
    if dirty and not options.allow_dirty:
        sys.exit(f"{program}: uncommitted changes; --allow-dirty measures all the same")
    options.record.mkdir(parents=True, exist_ok=True)
    return commit, dirty
