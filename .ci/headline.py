#!/usr/bin/env python3
"""Holds the headline figures of README.md against the records, because copies age.

    .ci/headline.py [--update]

Between the markers are a head of two lines and rows `| what | figure | value | peer |`, with the
figure's name between backticks. A row's value is that of CARD. --update writes values anew.
"""
import glob
import json
import re
import sys

CARD = "h100"
ROW = re.compile(r"^\| (?P<what>.*) \| `(?P<name>[^`]+)` \| (?P<value>\S+) \| (?P<peer>.*) \|$")


def values():
    found = {}
    for path in glob.glob("bench/results/*-%s.json" % CARD):
        with open(path, encoding="utf-8") as file:
            found |= {record["name"]: record["value"] for record in json.load(file)["records"]}
    return found


def renewed(line, known):
    """Return: the row with the value that is recorded."""
    row = ROW.match(line)
    if not row:
        sys.exit("README.md: no row of a figure: %s" % line)
    if row["name"] not in known:
        sys.exit("README.md: there is no figure %s of %s" % (row["name"], CARD))
    value = known[row["name"]]
    text = "%.0f" % value if value >= 1000 else "%.3g" % value
    return "| %s | `%s` | %s | %s |" % (row["what"], row["name"], text, row["peer"])


def main():
    known = values()
    with open("README.md", encoding="utf-8") as file:
        lines = file.read().split("\n")
    begin, end = (lines.index("<!-- headline:%s -->" % word) for word in ("begin", "end"))
    first = begin + 3  # behind the marker and the head
    new = lines[:first] + [renewed(line, known) for line in lines[first:end]] + lines[end:]
    if sys.argv[1:] == ["--update"]:
        with open("README.md", "w", encoding="utf-8") as file:
            file.write("\n".join(new))
        return 0
    for old, now in zip(lines, new):
        if old != now:
            print("README.md has\n  %s\nand the record says\n  %s" % (old, now))
    return int(lines != new)


if __name__ == "__main__":
    sys.exit(main())
