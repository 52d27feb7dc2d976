"""Requests: how long they are, when they arrive, which blocks of a prefix they begin with.

Lengths come from a trace in one of two formats, in its order:
  CSV    TIMESTAMP,ContextTokens,GeneratedTokens (a date and a time)
  JSONL  {"timestamp": ms, "input_length", "output_length", "hash_ids": [one for each 512 tokens]}
Arrival times are a Poisson process, or those of the trace, scaled to the rate that is asked for.
"""

import csv
import dataclasses
import datetime
import json
import random

BLOCK_TOKENS = 512  # of a hash id


@dataclasses.dataclass(frozen=True)
class Request:
    number: int
    arrival_s: float
    prompt: int  # tokens
    output: int  # tokens, the first one included
    blocks: tuple = ()  # equal ids of two requests: the same tokens from the beginning on


def read_csv(lines):
    for row in csv.DictReader(lines):
        text = row["TIMESTAMP"].strip()
        at = datetime.datetime.fromisoformat(text[:26]).timestamp()  # microseconds at most
        yield at, int(row["ContextTokens"]), int(row["GeneratedTokens"]), ()


def read_jsonl(lines):
    for line in lines:
        if line.strip():
            row = json.loads(line)
            blocks = tuple(row.get("hash_ids", ()))
            yield row["timestamp"] / 1e3, row["input_length"], row["output_length"], blocks


def read_trace(path, prompt_max, output_max, skip=0):
    """[Request] of a file, from its request number @skip on. Longer ones are cut to the limits; a
    request has at least one token of each kind. ValueError says what is wrong with the file."""
    found = []
    with open(path, encoding="utf-8") as file:
        read = read_jsonl if str(path).endswith(".jsonl") else read_csv
        try:
            for at, prompt, output, blocks in read(file):
                prompt, output = max(1, min(prompt, prompt_max)), max(1, min(output, output_max))
                blocks = blocks[: -(-prompt // BLOCK_TOKENS)]
                found.append(Request(len(found), at, prompt, output, blocks))
        except (KeyError, ValueError, TypeError) as wrong:
            raise ValueError(f"{path}: request {len(found)}: {wrong!r}") from None
    found = found[skip:]
    if not found:
        raise ValueError(f"{path}: no request behind the first {skip}")
    begin = found[0].arrival_s
    return [
        dataclasses.replace(r, number=i, arrival_s=r.arrival_s - begin)
        for i, r in enumerate(found)
    ]


def made_up(count, prompt, output, seed):
    """Requests without a trace: lengths uniform between half and one and a half of the mean."""
    draw = random.Random(seed)

    def near(mean):
        return max(1, round(mean * draw.uniform(0.5, 1.5)))

    return [Request(i, float(i), near(prompt), near(output)) for i in range(count)]


def at_rate(requests, rate, seconds, seed, poisson=True):
    """Those that arrive within @seconds at @rate a second. Of one seed the same requests come in
    the same order at any rate, only closer together. A trace that is too short begins again."""
    if not rate > 0:
        raise ValueError(f"the rate is {rate}; it has to be above 0")
    draw, found, now, turn = random.Random(seed), [], 0.0, 0
    span = requests[-1].arrival_s or 1.0
    own = len(requests) / span  # requests a second of the trace
    while True:
        for request in requests:
            if poisson:
                now += draw.expovariate(1.0) / rate
            else:
                now = (request.arrival_s + turn * span) * own / rate
            if now >= seconds:
                return found
            found.append(dataclasses.replace(request, number=len(found), arrival_s=now))
        turn += 1
