"""The options of `run`: which cases, how, and what is written."""

import argparse
import pathlib
import sys

import shapes

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "engines"))
from options import count, find_programs, positive, some_of  # noqa: E402

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
    add("--peers", metavar="DIR", help="a folder to import FlashInfer from (on sys.path first)")
    add("--fa4", action="store_true",
        help="FlashAttention-4, too, where it is; each kind of shape is compiled first, "
        "some 10 s")  # fmt: skip
    add("--residency", metavar="WORDS", default="auto", help="the daemon's (default: auto)")
    add("--execute", metavar="WORD",
        help="the daemon's --execute: who executes runs (default: as it decides)")  # fmt: skip
    add("--no-mps", action="store_true", help="time slicing in place of MPS")
    add("--rounds", type=count, default=9, metavar="N", help="calls of each (default: 9)")
    add("--limit", type=positive, default=90.0, metavar="SECONDS",
        help="no case begins later; what is left out is said (default: 90)")  # fmt: skip
    add("--dry", action="store_true",
        help="small batches on the CPU worker, without PyTorch and peers: the path, not "
        "its time")  # fmt: skip


def add_output(add):
    add("--bundle", type=pathlib.Path, metavar="DIR",
        help="where attnd and its libraries are: a bundle, or a build folder (default: the bundle "
        "or checkout that this program is in)")  # fmt: skip
    add("--record", type=pathlib.Path, metavar="DIR",
        help="write shapes-<device>.json (records) and shapes-<device>.svg there")  # fmt: skip
    add("--svg", type=pathlib.Path, metavar="FILE", help="the picture alone")
    add(
        "--details", type=pathlib.Path, metavar="FILE", help="a line of JSON for each case, at once"
    )
    add("--allow-dirty", action="store_true", help="record figures of uncommitted changes")
    add("--worker", type=pathlib.Path, default=HERE / "worker.py", help=argparse.SUPPRESS)
    add("--seed", type=int, default=1, help="of data, pages and verified rows (default: 1)")
    add("--verbose", action="store_true", help="say which peers each case was without, and why")


def options_of(arguments, description):
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for add_some in add_what, add_how, add_output:
        add_some(parser.add_argument)
    options = parser.parse_args(arguments)
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
