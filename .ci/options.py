#!/usr/bin/env python3
"""Holds the row `options` of README.md's matrix against schemas/options.def: each option has its
word there."""
import re
import sys

WORDS = {
    "WINDOW": "window", "CHUNK": "chunks", "SOFT_CAP": "soft cap", "ALIBI": "ALiBi",
    "ROPE": "rotary embeddings", "ROPE_APPEND": "rotary embeddings", "SINKS": "sinks",
    "MASK": "masks", "HEAD_SCALES": "scales", "SCALES": "scales",
    "ALIBI_SLOPES": "slopes of the caller"}


def main():
    with open("schemas/options.def", encoding="utf-8") as source:
        names = re.findall(r"^(?:OPTION|TABLE)\((\w+),", source.read(), re.M)
    with open("README.md", encoding="utf-8") as page:
        row = re.search(r"^\| options \| ([^|]*) \|", page.read(), re.M)
    if not row or not names:
        print("README.md has no row of options, or schemas/options.def none")
        return 1
    listed = re.split(r"[,;] ", row[1])
    wrong = ["%s: no word for it in .ci/options.py" % name for name in names if name not in WORDS]
    wrong += ["README.md: options: there is no %s" % WORDS[name]
              for name in names if name in WORDS and WORDS[name] not in listed]
    wrong += ["schemas/options.def: there is no %s" % name for name in WORDS if name not in names]
    print("\n".join(wrong), end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
