#!/usr/bin/env python3
"""Finds names that a text has kept and the tree has not: files, links, tests and functions.

A link of a page must lead somewhere. A path that begins with a folder of the top level, in a page
or a comment, must end at a file. A file's name between backticks in a page, with folders or without
them, must be some file's, and so must a name that a comment marks off as a part
(`---- control.c ----`). A function of attnd that
a page or a comment calls by its name and parentheses must occur in code. So must a claim that
SECURITY.md prints slanted, and `test_name` must be a program. The journal is exempt: it says what
was.
"""
import os
import re
import subprocess
import sys

CODE = (".c", ".h", ".cu", ".cuh", ".py", ".in", ".sh", ".mk", ".inc", ".pml")
TOP = "service|persistent|ipc|client|schemas|tests|bench"
ENDING = r"\.(?:cuh|cu|c|h|md|py|mk|proto|scd|pml|inc|sh)\b"
LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)")
PATH = re.compile(r"(?<![\w/.-])((?:%s)/[\w./-]*[\w-]%s)" % (TOP, ENDING))
QUOTED = re.compile(r"`([\w./-]*[\w-]%s)`" % ENDING)
PART = re.compile(r"---- ([\w-]+%s) ----" % ENDING)
PROGRAM = re.compile(r"`(test_[a-z0-9_]+)`")
CLAIM = re.compile(r"\*([a-z0-9]+(?:_[a-z0-9]+)+)\*")
CALL = re.compile(r"\b(attnd_[a-z0-9_]+)\(\)")
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.S)
BUILT = {"engine.c", "version.h", "variants.inc", "sources.h"}  # by the build, or by a reader


def files():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({path for path in listed if path and os.path.isfile(path)})


def read(path):
    with open(path, encoding="utf-8", errors="replace") as source:
        return source.read()


def said(path, text):
    """Return: what a file says in words: a page all of it, code its comments."""
    if path.endswith((".md", ".scd")):
        return text
    if path.endswith((".c", ".h", ".cu", ".cuh")):
        return "\n".join(COMMENT.findall(text))
    return ""


def missing(path, words, names, identifiers):
    page = path.endswith(".md")
    beside = os.path.dirname(path)
    if page:
        yield from (to for to in LINK.findall(words)
                    if not os.path.exists(os.path.join(beside, to)))
        yield from (name for name in QUOTED.findall(words)
                    if not os.path.exists(os.path.join(beside, name)) and
                    not any(file.endswith("/" + name) for file in names))
        yield from (name for name in PROGRAM.findall(words)
                    if not any("/%s." % name in file for file in names))
    if path == "SECURITY.md":
        yield from (name for name in CLAIM.findall(words) if name not in identifiers)
    yield from (to for to in PATH.findall(words)
                if not any(os.path.exists(os.path.join(place, to)) for place in ("", beside)))
    yield from (name for name in PART.findall(words)
                if not any(file.endswith("/" + name) for file in names))
    yield from (name + "()" for name in CALL.findall(words) if name not in identifiers)


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    paths = files()
    texts = {path: read(path) for path in paths
             if path.endswith(CODE + (".md", ".scd")) and not path.startswith("tests/fuzz/corpus")}
    names = ["/" + path for path in [*paths, *BUILT]]
    identifiers = set()
    for path, text in texts.items():
        if path.endswith(CODE):
            identifiers |= set(re.findall(r"\b[a-z]\w+\b", COMMENT.sub(" ", text)))
    status = 0
    for path, text in texts.items():
        if "/journal/" in path:
            continue
        for name in sorted(set(missing(path, said(path, text), names, identifiers))):
            print("%s: there is no %s" % (path, name))
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
