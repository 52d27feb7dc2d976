"""The options of `run`, the requests that they say, and the shapes of steps that a table has."""

import argparse
import pathlib

from arrivals import made_up, read_trace
from models import DEFAULT_MODEL, MODELS
from options import add_files, count, find_programs, parsed, positive
from setups import parse_setup
from slo import parse_slo

SETUPS = "flashinfer fused two"
MADE_UP = 4096  # requests, if there is no trace
DEFAULTS = {  # of a backend
    "cuda": dict(layers=32, pages=14000, page_size=16, running=256, seconds=12.0, warm=3.0,
                 rates=(4.0, 24.0), prompt_max=8192, output_max=1024, mean=(1024, 200)),
    "cpu": dict(layers=2, pages=512, page_size=8, running=32, seconds=1.5, warm=0.2,
                rates=(4.0, 64.0), prompt_max=256, output_max=32, mean=(48, 8)),
}  # fmt: skip
TABLE_DECODES, TABLE_KEYS = (8, 32, 128), (256, 1536)


def wrapped(parse):
    """@parse as an option's type: what its ValueError says is what the user reads."""

    def read(word):
        try:
            return parse(word)
        except ValueError as wrong:
            raise argparse.ArgumentTypeError(str(wrong)) from None

    return read


def pair(word):
    low, _, high = word.partition(":")
    found = positive(low), positive(high or low)
    if found[0] >= found[1]:
        raise argparse.ArgumentTypeError(f"{word}: LOW:HIGH, the first one smaller")
    return found


def lengths(word):
    prompt, _, output = word.partition("/")
    return count(prompt), count(output or "1")


def rates(word):
    return [positive(part) for part in word.split(",")]


def add_what(add):
    add("setups", nargs="*", metavar="SETUP", type=wrapped(parse_setup), help=f"default: {SETUPS}")
    add("--backend", choices=("cuda", "cpu"), default="cuda",
        help="cpu: a small model of numpy and the CPU worker, to try the bench; flashinfer is "
        "numpy then (default: cuda)")  # fmt: skip
    add("--model", choices=list(MODELS), default=DEFAULT_MODEL, help=f"default: {DEFAULT_MODEL}")
    add("--layers", type=count, metavar="N", help="default: 32")
    add("--slo", type=wrapped(parse_slo), default=parse_slo("ttft=1,tpot=0.025"), metavar="LIST",
        help="seconds of ttft, of tpot (a request's mean gap), of gap (its longest); default: "
        "ttft=1,tpot=0.025")  # fmt: skip
    add("--running", type=count, metavar="N", help="requests at once (default: 256)")
    add("--page-size", type=count, metavar="TOKENS", help="default: 16")
    add("--pages", type=count, metavar="N", help="of the pool (default: 14000)")
    add("--peers", metavar="DIR", help="a folder to import FlashInfer from (on sys.path first)")
    add("--residency", default="auto", metavar="WORDS", help="the daemon's (default: auto)")


def add_load(add):
    add("--trace", type=pathlib.Path, metavar="FILE",
        help="requests of a trace, a CSV of Azure's form or a JSONL of Mooncake's (default: made "
        "up)")  # fmt: skip
    add("--skip", type=int, default=0, metavar="N", help="begin behind N requests of the trace")
    add("--mean", type=lengths, metavar="P/O",
        help="tokens of prompts and outputs that are made up (default: 1024/200)")  # fmt: skip
    add("--prompt-max", type=count, metavar="TOKENS", help="longer ones are cut (default: 8192)")
    add("--output-max", type=count, metavar="TOKENS", help="longer ones are cut (default: 1024)")
    add("--arrivals", choices=("poisson", "trace"), default="poisson",
        help="trace: its own gaps, scaled (default: poisson)")  # fmt: skip


def add_how(add):
    add("--rates", type=pair, metavar="LOW:HIGH",
        help="requests/s to look between; moved where both are on one side "
        "(default: 4:24)")  # fmt: skip
    add("--probes", type=count, default=5, metavar="N", help="rates that are tried (default: 5)")
    add("--fixed", type=rates, metavar="LIST", help="these rates instead")
    add("--seconds", type=positive, metavar="S", help="of a probe (default: 12)")
    add("--warm", type=float, metavar="S",
        help="requests that arrive in the first S seconds are served and not judged "
        "(default: 3)")  # fmt: skip
    add("--patience", type=positive, default=15.0, metavar="S",
        help="an engine that answers so much too late hangs (default: 15)")  # fmt: skip
    add("--limit", type=positive, default=280.0, metavar="S",
        help="the whole run takes no longer (default: 280)")  # fmt: skip


def add_output(add):
    add_files(add, "write goodput-<device>.json (records) and goodput-<device>.svg there")
    add("--details", type=pathlib.Path, metavar="FILE",
        help="every request's tokens and every step as JSON")  # fmt: skip
    add("--table", type=pathlib.Path, metavar="FILE",
        help="time steps of a grid of shapes, too, and write them for bench/simulate")  # fmt: skip


def options_of(arguments, description):
    parser, options = parsed(arguments, description, add_what, add_load, add_how, add_output)
    for name, value in DEFAULTS[options.backend].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.setups = options.setups or [parse_setup(word) for word in SETUPS.split()]
    if len(set(options.setups)) < len(options.setups):
        parser.error("a setup is named twice")
    if options.warm >= options.seconds:
        parser.error(f"--warm is {options.warm:g}, and a probe has {options.seconds:g} s")
    longest = options.prompt_max + options.output_max
    if longest > options.pages * options.page_size:
        parser.error(f"a request may have {longest} tokens: more than all pages")
    if options.arrivals == "trace" and not options.trace:
        parser.error("--arrivals trace wants a --trace")
    take_requests(options, parser)
    options.points, options.pairs = points, pairs
    find_programs(options)
    return options


def take_requests(options, parser):
    if not options.trace:
        options.requests = made_up(MADE_UP, *options.mean, options.seed)
        options.workload = f"made up, {options.mean[0]}/{options.mean[1]} tokens"
        return
    try:
        options.requests = read_trace(
            options.trace, options.prompt_max, options.output_max, options.skip
        )
    except (OSError, ValueError) as wrong:
        parser.error(str(wrong))
    prompts, outputs = (
        sum(getattr(r, name) for r in options.requests) / len(options.requests)
        for name in ("prompt", "output")
    )
    options.workload = f"{options.trace.name}, {prompts:.0f}/{outputs:.0f} tokens"


def points(budget, mixed=True):
    """Shapes of steps, (chunk rows, their keys, decodes, their keys): a whole grid, or without
    those of both kinds."""
    counts = [n for n in TABLE_DECODES if n <= budget // 2] or [1]
    most = budget - counts[-1]
    chunks = [(0, 0)]
    for rows in sorted({max(2, most // 8), max(2, most // 2), most}):
        chunks += [(rows, keys) for keys in (budget, 4 * budget)]
    decodes = [(0, 0), *((n, keys) for n in counts for keys in TABLE_KEYS)]
    grid = [(*chunk, *decode) for chunk in chunks for decode in decodes][1:]
    return [p for p in grid if mixed or not p[0] or not p[2]]


def pairs(budget):
    """Shapes of steps beside each other, of one that prefills and one that decodes."""
    alone = points(budget, mixed=False)
    chunks, decodes = [p for p in alone if p[0]], [p for p in alone if p[2]]
    return [(c, d) for c in (chunks[0], chunks[-2]) for d in (decodes[0], decodes[-1])]
