#!/usr/bin/env python3
"""What attention without options pays for all options that there are: gpu.identity_over_before.

identity.py --before FILE --commit C [--rounds N] [--record DIR]

FILE is the program gpu_drain of commit C, which had no options yet, linked for this machine; beside
it this build's runs, in turn. The figure is the worst ratio, over the shapes that both know, of the
medians of a shape's time on the GPU, now over before. The slow way for what no loop takes is no
loop of attention and is left out.

Exit status: 0 measured; 1 a program failed, or they have no shape in common; 2 usage.
"""

import argparse
import datetime
import json
import math
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = next(folder for folder in HERE.parents if (folder / "bench/engines/figures.py").exists())
sys.path.insert(0, str(ROOT / "bench/engines"))
import figures  # noqa: E402

LINE = re.compile(r"^(\w+) +\d+ items +device +([\d.]+) us")
DEVICE = re.compile(r"^(.*): reading ")
PARTS = ("decode", "prefill", "chunk")  # of shapes' names; the slow way is not asked for
ROUND_S = 120


def drain(program, only):
    """(name of the GPU, shape -> microseconds) of one execution. @only: a part of names, or whole
    names with a comma behind each."""
    done = subprocess.run(
        [str(program), "--only", only], capture_output=True, text=True, timeout=ROUND_S, check=False
    )
    text = done.stdout
    if done.returncode:
        last = (text + done.stderr).strip().splitlines()[-3:]
        raise ValueError(f"{program} ends with {done.returncode}: {' | '.join(last)}")
    times = {found[1]: float(found[2]) for found in map(LINE.match, text.splitlines()) if found}
    device = next((found[1] for found in map(DEVICE.match, text.splitlines()) if found), "")
    return device, times


def whole(names):
    return "".join(f"{name}," for name in names)


def drain_before(program):
    """Shape -> microseconds, of a program that takes a part of names, and not several names."""
    times = {}
    for part in PARTS:
        times.update(drain(program, part)[1])
    return times


def compare(before, now, rounds):
    """(name of the GPU, shape -> (microseconds before, now))."""
    if rounds < 1:
        raise ValueError(f"--rounds is {rounds}, at least 1")
    known = drain_before(before)
    device, both = drain(now, whole(known))
    names = [name for name in known if name in both]
    if not names:
        raise ValueError(f"{before} and {now} have no shape in common")
    times = {name: ([], []) for name in names}
    for number in range(rounds):
        for old in (True, False) if number % 2 == 0 else (False, True):
            took = drain_before(before) if old else drain(now, whole(names))[1]
            if missing := set(names) - set(took):
                raise ValueError(f"{before if old else now} has no time of {min(missing)} this time")
            for name in names:
                times[name][0 if old else 1].append(took[name])
        print(f"identity: round {number + 1} of {rounds}", file=sys.stderr)
    return device, {
        name: tuple(statistics.median(one) for one in pair) for name, pair in times.items()
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=pathlib.Path, required=True, metavar="FILE")
    parser.add_argument("--commit", required=True, help="of FILE")
    parser.add_argument("--now", type=pathlib.Path, metavar="FILE", help="default: this build's")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", metavar="DIR", help="write identity-<device>.json there")
    options = parser.parse_args()
    now = options.now or ROOT / "bench/gpu_drain"
    try:
        name, times = compare(options.before, now, options.rounds)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"identity: {error}", file=sys.stderr)
        return 1
    ratios = {shape: after / before for shape, (before, after) in times.items()}
    for shape, (before, after) in times.items():
        print(f"{shape:26} before {before:9.1f} us  now {after:9.1f} us  {ratios[shape]:.3f}")
    worst = max(ratios, key=ratios.get)
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    notes = (
        f"{len(ratios)} shapes, medians of {options.rounds}; geometric mean {mean:.3f}, from "
        f"{min(ratios.values()):.3f} to {ratios[worst]:.3f} ({worst}, {times[worst][0]:.1f} us "
        f"before); before: {options.commit}"
    )
    print(f"gpu.identity_over_before {ratios[worst]:.3f}  to reach: <= 1.01  {notes}")
    if options.record:
        commit, dirty = figures.stamp_commit(ROOT)
        device = figures.device_word(name)
        stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        values = ["gpu.identity_over_before", round(ratios[worst], 4), "ratio", "lower", device,
                  figures.cpu_name(), stamp, commit, dirty,
                  "bench/gpu/identity.py --before gpu_drain", notes]  # fmt: skip
        record = dict(zip(figures.RECORD_KEYS, values))
        path = pathlib.Path(options.record, f"identity-{device}.json")
        figures.write_whole(path, json.dumps({"records": [record]}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
