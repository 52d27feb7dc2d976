#!/usr/bin/env python3
"""Counts circles of files: files that need each other in a loop, so that none is read alone.

A file needs another when it includes it, or when it names a function that the other one alone
defines. The second rule sees through a header that declares what many source files define.

It counts three times. In the count of files a header stands for itself: types that a folder shares
tie nobody to the source file that bears their name. In the count of modules x.c and x.h are one, as
a reader from outside sees them; there a folder whose files all include one header, beside a source
file of its name that calls them all, is one circle. Modules are also counted by their includes
alone. The largest circle of each count is printed, and fails above its limit. `circles.py --list`
prints every circle and what ties it.

The code is formatted by clang-format, so a function begins in column 0 and its body with a brace
there. That is enough to find definitions without a parser.
"""
import collections
import os
import re
import subprocess
import sys

LIMIT = 3
SOURCES = (".c", ".h", ".cu", ".cuh")

COMMENTS_AND_STRINGS = re.compile(
    r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.M)
# The head of a definition: from the end of whatever stands before it to a brace in column 0.
DEFINITION = re.compile(r'(?:^|(?<=[;}>\n]))([^;{}#]*?)\n\{', re.S)
NAME = re.compile(r'([A-Za-z_]\w*)\s*\(')
# A member is no function of another file, and neither is the tag of a struct.
IDENTIFIER = re.compile(r'(?<![\w.])(?<!->)(?<!struct )(?<!enum )(?<!union )([A-Za-z_]\w*)(\s*\()?')
# A type and what it declares: a variable may bear the name of somebody's function.
DECLARED = re.compile(r'\b(?!(?:return|case|else|goto|struct|enum|union|const)\b)[A-Za-z_]\w*'
                      r'(?:\s+|\s*\*+\s*)([A-Za-z_]\w*)(?!\w|\s*\()')
BODY = re.compile(r'^\{.*?^\}', re.M | re.S)
NAMESPACE = re.compile(r'^namespace\b[^\n;{}]*\n\{', re.M)
ANONYMOUS = re.compile(r'^namespace\s*\{.*?^\}', re.M | re.S)
NOT_NAMES = {"__attribute__", "__launch_bounds__", "defined", "sizeof", "alignas", "asm"}


def files():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted({path for path in listed if path.endswith(SOURCES) and os.path.exists(path)})


def definitions(text):
    """Return: names of functions with external linkage, and names that are this file's own."""
    text = re.sub(r'^[ \t]*#.*(?:\\\n.*)*$', '', text, flags=re.M)
    public, own = set(), set()
    for region, names in ((ANONYMOUS.sub('', text), public),
                          ("\n".join(ANONYMOUS.findall(text)), own)):
        for head in DEFINITION.findall(region):
            head = head[head.rfind("\n\n") + 1:]
            found = [name for name in NAME.findall(head) if name not in NOT_NAMES]
            if not found or re.search(r'\b(struct|enum|union|class)\s+\w+\s*$', head):
                continue
            (own if re.search(r'\bstatic\b', head) else names).add(found[0])
    # Nobody links against a program.
    return (set(), own | public) if "main" in public else (public, own)


def read_files():
    code = collections.defaultdict(
        lambda: {"includes": set(), "public": set(), "own": set(), "used": set()})
    paths = files()
    for path in paths:
        with open(path, encoding="utf-8") as source:
            text = source.read()
        file = code[path]
        for name in INCLUDE.findall(text):
            for candidate in (name, os.path.join(os.path.dirname(path), name),
                              os.path.join("client", name)):
                if candidate in paths:
                    file["includes"].add(candidate)
                    break
        text = COMMENTS_AND_STRINGS.sub(" ", text)
        public, own = definitions(text)
        file["public"] |= public
        file["own"] |= own
        if path.endswith((".h", ".cuh")):  # a declaration is no use
            text = "\n".join(BODY.findall(NAMESPACE.sub("", text)))
        declared = set(DECLARED.findall(text))
        file["used"] |= {name for name, call in IDENTIFIER.findall(text)
                         if call or name not in declared}
    return code


def arrows(code):
    definers = collections.defaultdict(set)
    for name, file in code.items():
        for function in file["public"]:
            definers[function].add(name)
    for names in definers.values():  # a test may stand in for what it defines anew
        if not all(name.startswith("tests/") for name in names):
            names -= {name for name in names if name.startswith("tests/")}
    alone = {function: next(iter(names)) for function, names in definers.items()
             if len(names) == 1}
    ties = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, file in code.items():
        for included in file["includes"] - {name}:
            ties[name][included].add("#include")
        for function in (file["used"] & alone.keys()) - file["own"] - file["public"]:
            ties[name][alone[function]].add(function)
    return ties


def circles(names, ties):
    """Tarjan's strongly connected components of more than one file, without recursion."""
    order, low, on_stack, stack, found = {}, {}, set(), [], []
    for root in names:
        if root in order:
            continue
        work = [(root, iter(sorted(ties[root])))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, others = work[-1]
            for other in others:
                if other not in order:
                    order[other] = low[other] = len(order)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(ties[other]))))
                    break
                if other in on_stack:
                    low[name] = min(low[name], order[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == order[name]:
                    circle = []
                    while not circle or circle[-1] != name:
                        circle.append(stack.pop())
                        on_stack.discard(circle[-1])
                    if len(circle) > 1:
                        found.append(sorted(circle))
    return sorted(found, key=len, reverse=True)


def describe(circle, ties):
    lines = ["circle of %d:" % len(circle)]
    for name in circle:
        for other in sorted(set(ties[name]) & set(circle)):
            lines.append("  %s -> %s: %s" % (name, other, " ".join(sorted(ties[name][other]))))
    return "\n".join(lines)


def modules(ties):
    """Return: the same of modules: files that differ in their ending alone are one."""
    joined = collections.defaultdict(lambda: collections.defaultdict(set))
    for name, others in ties.items():
        for other, why in others.items():
            one, two = os.path.splitext(name)[0], os.path.splitext(other)[0]
            if one != two:
                joined[one][two] |= why
    return joined


def judge(what, names, ties, limit):
    """Return: 1 if a circle of @names is larger than @limit; prints it, and how large the largest
    is."""
    found = circles(sorted(names), ties)
    largest = max((len(circle) for circle in found), default=1)
    for circle in found:
        if "--list" in sys.argv or len(circle) > limit:
            print(describe(circle, ties))
    print("house.largest_circle_%s %d" % (what, largest))
    return int(largest > limit)


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    code = read_files()
    ties = arrows(code)
    names = {os.path.splitext(name)[0] for name in code}
    included = {name: {other: why for other, why in others.items() if "#include" in why}
                for name, others in ties.items()}
    joined = modules(included)
    failed = judge("files", code, ties, LIMIT) | judge("included", names, joined, LIMIT)
    return failed | judge("modules", names, modules(ties), LIMIT)


if __name__ == "__main__":
    sys.exit(main())
