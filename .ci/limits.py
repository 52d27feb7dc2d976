#!/usr/bin/env python3
"""Holds the numbers in the table of SECURITY.md's section Limits against the code.

    .ci/limits.py [BUILD]

LIMITS says of each number of a row, in its order, where the code has it: FILE and an expression
that is constant behind that file, or FILE and /PATTERN/, which finds an expression in its text; a
list where several must have the number. None is a number that is no constant; the comment says what
it is. The compiler compares: each number becomes a _Static_assert behind the file that it is of. A
row without an entry is refused, and so is a number too many or too few.
"""
import re
import subprocess
import sys

SERVICE, ABI, SLOTS = "service/service.h", "schemas/abi.h", "schemas/abi_slots.h"
ACCEPT, SCRAPE = "service/daemon/accept.c", "service/daemon/scrape.c"
OPTIONS, LEASE_CALLS = "service/daemon/options.c", "service/rpc/lease_calls.c"
MACHINE, MONITOR = "service/daemon/machine.c", "service/base/monitor.h"
PLAN, CHECK = "service/rpc/plan_calls.c", "service/objects/pool_check.c"
PREPARED, GIVE = "service/prepared/prepared.h", "service/peers/give.c"
DOORBELL, HANDSHAKE = "schemas/abi_doorbell.h", "service/rpc/handshake.c"

LIMITS = {
    "sessions": [(SERVICE, "ATTND_SESSIONS_MAX"), (SERVICE, "ATTND_SESSIONS_PROCESS_MAX")],
    "connections that are no session": [
        (SERVICE, "ATTND_VISITORS_MAX"), (ACCEPT, "PROCESS_VISITORS_MAX"),
        (ACCEPT, "USER_VISITORS_MAX"), (ACCEPT, "STRANGERS_MAX")],
    "time to finish the handshake": [(ACCEPT, "HELLO_TIMEOUT_NS")],
    "services that are claimed from; that claim here": [
        (SERVICE, "ATTND_PEERS_MAX"), (SERVICE, "ATTND_PEERS_MAX")],
    "silence of a link; a ticket that is lent, or its next layer": [
        ("service/peers/link.h", "ATTND_LINK_SILENCE_NS"), (GIVE, "GRANT_NS")],
    "transfers of a link, tickets lent to one": [
        [("service/peers/transfer.c", "TRANSFERS_MAX"), (GIVE, "GRANTS_MAX")],
        ("service/sched/claim.c", "CLAIMS_MAX")],
    "pages that arrive early": [
        ("service/objects/pool.h", "ATTND_ARRIVALS_MAX"),
        ("service/objects/arrival.h", "ATTND_PLAN_AWAITS_MAX")],
    "events that are kept while somebody watches": [
        (MONITOR, "ATTND_MONITOR_EVENTS"),
        (MONITOR, "ATTND_MONITOR_EVENTS * sizeof(struct attnd_monitor_event)")],
    "users that are admitted": [(SERVICE, "ATTND_ALLOW_UIDS_MAX")],
    "handles of each kind": [(SERVICE, "ATTND_HANDLES_MAX")],
    "registered and made memories": [(ABI, "ATTND_MEMORIES_MAX")],
    "pools": [(SERVICE, "ATTND_POOLS_MAX")],
    "tickets": [(SERVICE, "ATTND_TICKETS_MAX"),
                (LEASE_CALLS, "EXPIRE_MS_MAX * UINT64_C(1000000)")],
    # Of 1,024 bytes, as the budgets divide them.
    "host memory: made, registered, arenas and rings": [
        (MACHINE, r"/\.host_bytes = left_bytes( / 4 \* 3)/")],
    "host memory of a session": [
        (MACHINE, r"/\.session_bytes = left_bytes( / 2)/")],
    "memory of the GPU, made": [],
    "heap: plans, planes of pools": [(OPTIONS, r"/\.heap_bytes = (.*),/")],
    "the daemon's own memory": [
        (MACHINE, r"/\.daemon_bytes = left_bytes( / 8)/")],
    "images of plans": [],
    "batches that wait": [],
    "blocks of prefix trees": [(OPTIONS, r"/\.prefix_blocks = (.*),/"),
                               ("service/prefix/tree.h", "ATTND_TREE_BLOCK_BYTES")],
    "host memory below prefix trees": [],
    "namespaces of a pool's tree": [(SLOTS, "ATTND_PREFIX_SPACES_MAX")],
    "scratch of prepared runs": [],
    "prepared runs": [("service/supervise/queue.h", "ATTND_QUEUE_PREPARED"),
                      (PREPARED, "ATTND_PREPARED_SESSION_MAX")],
    "items of a prepared run": [(DOORBELL, "ATTND_DOORBELL_ITEMS_MAX")],
    "sessions that launch prepared runs": [(DOORBELL, "ATTND_MAILBOXES_MAX")],
    "ring entries, arena": [
        (HANDSHAKE, "RING_ENTRIES_DEFAULT"), (ABI, "ATTND_RING_ENTRIES_MAX"),
        (HANDSHAKE, "ARENA_BYTES_DEFAULT"), ("ipc/shm.h", "ATTND_ARENA_BYTES_MAX")],
    "pages of a pool, of a call": [
        [(CHECK, "PAGES_MAX"), ("service/peers/message.c", "POOL_PAGES_MAX")],
        [(LEASE_CALLS, "PAGES_MAX"), ("client/attnd_pages.h", "ATTND_LEASE_PAGES_MAX"),
         (SLOTS, "ATTND_TICKET_PAGES_MAX")]],
    "layers, KV heads, page size, stride of a pool": [
        (ABI, "ATTND_LAYERS_MAX"), (ABI, "ATTND_HEADS_MAX"), (CHECK, "PAGE_SIZE_MAX"),
        (CHECK, "STRIDE_MAX")],
    "query heads, heads of a group, head dimension": [
        (ABI, "ATTND_HEADS_MAX"), (ABI, "ATTND_GROUP_MAX"), (ABI, "ATTND_HEAD_DIM_MAX")],
    "a plan: requests, rows, pages, levels": [
        (PLAN, "REQUESTS_MAX"), (PLAN, "ROWS_MAX"), (PLAN, "PAGES_MAX"),
        (ABI, "ATTND_LEVELS_MAX")],
    "cost of an item (keys times packed rows, about)": [
        ("persistent/plan/plan.h", "ATTND_ITEM_COST_MAX")],
    "runs with the worker": [("service/supervise/queue.h", "ATTND_QUEUE_RUNS")],
    "lanes": [(DOORBELL, "ATTND_LANES_MAX")],
    # Shared memory of an SM, and what such requests take of it.
    "a plan on the device": [None, None, None],
    "operations taken at once": [],
    "matches that wait for a claim": [("service/sched/parked.c", "PARKED_MAX")],
    "a prefix operation": [(SLOTS, "ATTND_PREFIX_BLOCKS_MAX"), (SLOTS, "ATTND_PREFIX_PAGES_MAX")],
    "pages of a prefix block": [(SLOTS, "ATTND_PREFIX_BLOCK_PAGES_MAX")],
    "a datagram": [("ipc/fdpass.h", "ATTND_DATAGRAM_BYTES_MAX"), ("ipc/fdpass.h", "ATTND_FDS_MAX")],
    "descriptors that wait to be closed": [("ipc/discard.h", "ATTND_DISCARD_WAITING_MAX")],
    "readers of `--metrics`": [(SCRAPE, "SCRAPERS_MAX"), (SCRAPE, "PATIENCE_NS")],
    "a piece of the loop's thread": [("service/base/work.h", "ATTND_WORK_BUDGET_NS")],
    "a recording of `attnctl trace`": [
        ("service/ctl/trace.c", "SECONDS_MAX * UINT64_C(1000000000)")],
    "a kernel's file in `--modules`": [("persistent/modules.h", "ATTND_MODULE_BYTES_MAX")],
    "weight": [None, ("service/rpc/operator_calls.c", "WEIGHT_MAX")],
    "leases of a page": [(SERVICE, "ATTND_PAGE_LEASES_MAX")],
    "attachments for reading of a pool": [
        ("service/objects/pool.c", r"/pool->readers >= (.*)\)/")],
    "descriptors": [],
}

NUMBER = re.compile(r"(?<![\w.^/-])(\d+)(?:\.(\d+)|\^(\d+)|/(\d+))?"
                    r"(?: (KiB|MiB|GiB|us|ms|s|minutes)\b)?")
UNITS = {None: 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "us": 10**3, "ms": 10**6,
         "s": 10**9, "minutes": 60 * 10**9}
WHOLE = 1024  # what a part such as 3/4 is taken of


def rows(text):
    """Return: (first cell, the others) of the table's rows."""
    section = text[text.index("\n## Limits"):]
    section = section[:section.index("\n## ", 1)]
    lines = [line for line in section.split("\n") if line.startswith("| ")][2:]
    return [tuple(cell.strip() for cell in line.strip("|").split("|", 1)) for line in lines]


def claim(number, expression):
    """Return: what is true of the expression if the page has the number."""
    whole, digits, power, part, unit = number.groups()
    if power:
        return "(%s) == UINT64_C(1) << %s" % (expression, power) if whole == "2" else "0"
    if part:
        return "%d%s == %d" % (WHOLE, expression, WHOLE * int(whole) // int(part))
    if digits:  # rounded
        scale = 10 ** len(digits)
        rounded = int(whole + digits)
        return "((%s) * %du + %du / 2) / %du == %d" % (
            expression, scale, UNITS[unit], UNITS[unit], rounded)
    return "(%s) == UINT64_C(%d)" % (expression, int(whole) * UNITS[unit])


def claims_of(row, numbers):
    """Yields (file, what is true behind it) of a row."""
    for number, places in zip(numbers, LIMITS[row]):
        if places is None:
            continue
        for file, expression in places if isinstance(places, list) else [places]:
            if expression.startswith("/"):
                with open(file, encoding="utf-8") as source:
                    found = re.search(expression[1:-1], source.read())
                if not found:
                    sys.exit("limits: %s has no %s" % (file, expression))
                expression = found[1]
            yield file, claim(number, expression)


def compile_claims(file, claims, build):
    """Return: whether all of them are true."""
    lines = ['#include "%s"' % file, "#include <stdint.h>"]
    lines += ['_Static_assert(%s, "SECURITY.md: %s");' % (what, row) for row, what in claims]
    done = subprocess.run(
        ["gcc", "-std=c11", "-D_GNU_SOURCE", "-I.", "-I%s/gen" % build, "-Iclient", "-w",
         "-fsyntax-only", "-x", "c", "-"],
        input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
    print(done.stderr, end="", file=sys.stderr)
    return done.returncode == 0


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else "build"
    with open("SECURITY.md", encoding="utf-8") as page:
        table = rows(page.read())
    good = True
    by_file = {}
    for row, cells in table:
        numbers = list(NUMBER.finditer(cells))
        if row not in LIMITS or len(numbers) != len(LIMITS[row]):
            print("SECURITY.md: %s: %d numbers, and .ci/limits.py has %s" % (
                row, len(numbers), len(LIMITS[row]) if row in LIMITS else "no such row"))
            good = False
            continue
        for file, what in claims_of(row, numbers):
            by_file.setdefault(file, []).append((row, what))
    for row in sorted(set(LIMITS) - {row for row, _ in table}):
        print("SECURITY.md: there is no row of %s" % row)
        good = False
    for file, claims in by_file.items():
        good = compile_claims(file, claims, build) and good
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
