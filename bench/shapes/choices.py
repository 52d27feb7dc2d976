"""The options of `run`: which cases, how, and what is written."""

import argparse
import pathlib
import sys

import shapes

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "engines"))
from options import (  # noqa: E402
    add_files, add_service, count, find_programs, parsed, positive, some_of,
)  # fmt: skip

PAGES = [str(page) for page in shapes.PAGES]


def heads(word):
    for pair in word.split(","):
        q, _, kv = pair.partition("/")
        if not (q.isdigit() and kv.isdigit() and int(kv) > 0 and int(q) % int(kv) == 0):
            raise argparse.ArgumentTypeError(f"{pair} is no Q/KV, Q a multiple of KV")
    return word.split(",")


def add_what(add):
    add("--heads", type=heads, metavar="LIST", help=f"e.g. {','.join(shapes.HEADS)}")
    add(
        "--dims",
        type=some_of(shapes.DIMS, "dimensions"),
        metavar="LIST",
        help=f"of {','.join(shapes.DIMS)}",
    )
    add("--pages", type=some_of(PAGES, "pages"), metavar="LIST",
        help=f"of {','.join(PAGES)}")  # fmt: skip
    add("--types", type=some_of(shapes.TYPES, "types"), metavar="LIST",
        help=f"of {','.join(shapes.TYPES)} (e4m3)")  # fmt: skip
    add("--batches", type=some_of(shapes.BATCHES, "batches"), metavar="LIST",
        help=f"of {','.join(shapes.BATCHES)}")  # fmt: skip


def add_how(add):
    add("--fa4", action="store_true",
        help="FlashAttention-4, too, where it is; each kind of shape is compiled first, "
        "some 10 s")  # fmt: skip
    add("--residency", metavar="WORDS", default="auto", help="the daemon's (default: auto)")
    add("--no-mps", action="store_true", help="time slicing in place of MPS")
    add("--rounds", type=count, default=9, metavar="N", help="calls of each (default: 9)")
    add("--limit", type=positive, default=90.0, metavar="SECONDS",
        help="no case begins later; what is left out is said (default: 90)")  # fmt: skip
    add("--dry", action="store_true",
        help="small batches on the CPU worker, without PyTorch and peers: the path, not "
        "its time")  # fmt: skip


def add_output(add):
    add_files(add, "write shapes-<device>.json (records) and shapes-<device>.svg there")
    add("--details", type=pathlib.Path, metavar="FILE",
        help="a line of JSON for each case, at once")  # fmt: skip
    add("--worker", type=pathlib.Path, default=HERE / "worker.py", help=argparse.SUPPRESS)
    add("--verbose", action="store_true", help="say which peers each case was without, and why")


def options_of(arguments, description):
    parser, options = parsed(arguments, description, add_what, add_service, add_how, add_output)
    if options.dry and options.record:
        parser.error("a dry run's times mean nothing: --dry records nothing")
    options.cases = cases_of(options)
    find_programs(options)
    return options


def cases_of(options):
    if options.dry:
        return shapes.dry_grid()
    named = options.heads, options.dims, options.pages, options.types, options.batches
    if not any(named):
        return shapes.default_grid()
    defaults = ["32/8"], ["128"], ["16"], ["fp16"], list(shapes.CORE)
    heads, dims, pages, types, batches = (a or b for a, b in zip(named, defaults))
    return shapes.product(heads, dims, [int(page) for page in pages], types, batches)
