#!/usr/bin/env python3
"""Man pages of the calls of libattnd, one each, of the comments in its headers.

    call_pages.py OUT VERSION DATE HEADER...

A comment that begins with `/** name() - what it is` before a prototype becomes OUT/name.3,
and so do calls that it names together. `@argument:` lines become a list, the sentences behind
`Return:` a section of their own. Prints the names.
"""

import os
import re
import sys

COMMENT = re.compile(r"/\*\*(.*?)\*/\n((?:[^\n;{}#]+(?:\n[^\n;{}#]+)*;\n)+)", re.S)
PART = re.compile(r"Part[\s*]+of[\s*]+attnd\.h")  # programs include that
NAME = re.compile(r"\b(attnd_[a-z0-9_]+)\(")


def roff(text):
    """Text as roff shows it: names of calls and constants in bold."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    text = re.sub(r"\b(attnd_[a-z0-9_]+)\(\)", r"\\fB\1\\fR()", text)
    text = re.sub(r"(\\-)?\b(ATTND_[A-Z0-9_]+)\b", r"\1\\fB\2\\fR", text)
    text = re.sub(r"@(\w+)", r"\\fI\1\\fR", text)
    return "\n".join("\\&" + line if line[:1] in (".", "'") else line for line in text.split("\n"))


def parts_of(comment):
    """(summary, arguments, description, return) of a comment."""
    lines = [re.sub(r"^\s*\* ?", "", line).rstrip() for line in comment.strip().split("\n")]
    head = re.match(r"(?:attnd_|_)[^-]*?\(\)\s*-\s*(.*)", lines[0])
    if not head:
        return None
    summary, arguments, text, rest = head.group(1), [], [], lines[1:]
    while rest and summary and not summary.endswith(".") and rest[0][:1] not in ("", "@") and (
        not rest[0][:1].isupper()
    ):  # fmt: skip
        summary += " " + rest.pop(0)
    summary, _, more = summary.partition(". ")
    text += [more] if more else []
    for line in rest:
        argument = re.match(r"@([\w, @]+):\s+(.*)", line)
        if argument:
            arguments.append([argument.group(1).replace("@", ""), argument.group(2)])
        elif arguments and not text and line and (line[:1] == " " or not line[:1].isupper()):
            arguments[-1][1] += "\n" + line.strip()
        else:
            text.append(line)
    body, _, returns = "\n".join(text).strip().partition("Return:")
    return summary.rstrip("."), arguments, body.strip(), returns.strip()


def page(name, names, parts, prototypes, header, version, date):
    summary, arguments, body, returns = parts
    others = [f"\\fB{other}\\fR(3)" for other in names if other != name]
    lines = [
        f'.TH {name} 3 "{date}" "attnd {version}" "Library Functions Manual"', ".SH NAME",
        f"{name} \\- {roff(summary)}", ".SH SYNOPSIS", ".nf", f".B #include <{header}>", ".PP",
        *(line.replace("\\", "\\e").replace("-", "\\-") for line in prototypes.strip().split("\n")),
        ".fi",
    ]  # fmt: skip
    if arguments or body:
        lines.append(".SH DESCRIPTION")
    for argument, text in arguments:
        lines += [".TP", f".I {argument}", roff(text)]
    if body:
        lines += [".PP", roff(body)]
    if returns:
        lines += [".SH RETURN VALUE", roff(returns[:1].upper() + returns[1:])]
    lines += [".SH SEE ALSO", ", ".join([*others, "\\fBattnd\\fR(3)", "\\fBattnd\\fR(7)"])]
    return "\n".join(lines) + "\n"


def main(out, version, date, *headers):
    os.makedirs(out, exist_ok=True)
    for path in headers:
        with open(path) as file:
            text = file.read()
        for comment, prototypes in COMMENT.findall(text):
            parts, names = parts_of(comment), NAME.findall(prototypes)
            if parts is None or not names or "inline" in prototypes:
                continue
            for name in names:
                with open(f"{out}/{name}.3", "w") as file:
                    header = "attnd.h" if PART.search(text) else os.path.basename(path)
                    file.write(page(name, names, parts, prototypes, header, version, date))
                print(name)


if __name__ == "__main__":
    main(*sys.argv[1:])
