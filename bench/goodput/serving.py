"""An engine that serves: requests arrive, the scheduler makes steps, somebody computes them.

All times are seconds of CLOCK_MONOTONIC behind the begin of a probe, which engines have in common.
A token is there when its step is over. Where one engine prefills for another, a message with the
ticket of the pages goes from process to process; no byte of K or V is copied.
"""

import collections
import json
import os
import select
import socket
import time

from arrivals import Request
from scheduler import Sequence

MESSAGE_BYTES = 4096
WAIT_S = 0.02  # at most, between looks at the clock


class Link:
    """The way of tickets between two engines, one way: datagrams of JSON."""

    def __init__(self, path, receives):
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if receives:
            self.socket.bind(path)
            self.socket.setblocking(False)
        else:
            self.socket.connect(path)

    def send(self, message):
        self.socket.send(json.dumps(message).encode())

    def receive(self):
        """[message] that are there."""
        found = []
        while True:
            try:
                found.append(json.loads(self.socket.recv(MESSAGE_BYTES)))
            except BlockingIOError:
                return found

    def wait(self, seconds):
        select.select([self.socket], [], [], seconds)

    def close(self, removes=False):
        self.socket.close()
        if removes:
            os.unlink(self.path)


class Serving:
    """@layers: execute(parts), which returns when the step is computed. @out, @into: Links to the
    engine that decodes and from the one that prefills, or None."""

    def __init__(self, scheduler, layers, out=None, into=None, clock=time.monotonic):
        self.scheduler, self.layers, self.clock = scheduler, layers, clock
        self.out, self.into = out, into
        self.tokens = {}  # number of a request -> [when each token came]
        self.steps = []  # [chunk rows, their keys, decodes, their keys, seconds]
        self.busy_s = 0.0

    def probe(self, requests, begin, seconds):
        """Serve @requests, in the order of their arrival, for @seconds from @begin on. What is not
        over then is dropped."""
        coming = collections.deque(requests)
        while (now := self.clock() - begin) < seconds:
            while coming and coming[0].arrival_s <= now:
                self.scheduler.add(coming.popleft())
            if self.into:
                self.take()
            step = self.scheduler.schedule()
            if step is None:
                self.wait(coming, now, seconds)
            elif now >= 0:
                self.compute(step, begin, now)
        self.scheduler.drop_all()

    def wait(self, coming, now, seconds):
        upto = min(coming[0].arrival_s if coming else seconds, seconds)
        wait_s = min(max(upto - now, 0), WAIT_S)
        if self.into:
            self.into.wait(wait_s)
        else:
            time.sleep(wait_s)

    def compute(self, step, begin, since):
        shape = shape_of(step.parts)
        self.layers.execute([(s, rows, s.computed + rows) for s, rows in step.parts])
        now = self.clock() - begin
        self.steps.append([*shape, round(now - since, 7)])
        self.busy_s += now - since
        for sequence in self.scheduler.finish(step):
            self.tokens.setdefault(sequence.request.number, []).append(now)
            if self.out and not self.scheduler.ended(sequence):
                self.hand_over(sequence)

    # ---- tickets ----

    def hand_over(self, sequence):
        request = sequence.request
        ticket = self.scheduler.pages.offer(sequence.pages)
        sequence.pages = []
        self.out.send(
            {"number": request.number, "prompt": request.prompt, "output": request.output,
             "arrival_s": request.arrival_s, "computed": sequence.computed,
             "generated": sequence.generated, "ticket": ticket.hex()}
        )  # fmt: skip

    def take(self):
        """Requests that were prefilled elsewhere. Return: was it said that no more will come?"""
        over = False
        for message in self.into.receive():
            if "over" in message:
                over = True
                continue
            ticket, computed, generated = (
                message.pop(name) for name in ("ticket", "computed", "generated")
            )
            pages = self.scheduler.pages.claim(bytes.fromhex(ticket))
            request = Request(**message)
            self.scheduler.add_prefilled(Sequence(request, computed, generated, pages))
        return over

    def finish_link(self, seconds):
        """Behind a probe: no lease stays in a ticket. TimeoutError if the other end says nothing
        for @seconds."""
        if self.out:
            self.out.send({"over": True})
        deadline = time.monotonic() + seconds
        while self.into and not self.take():
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the engine that prefills did not say in {seconds} s that it ended"
                )
            self.into.wait(WAIT_S)
        self.scheduler.drop_all()


def shape_of(parts):
    """(rows of chunks, keys that they end at by rows, decodes, their keys) of a step that is not
    computed yet. Keys of chunks are the mean over their rows of what their request has then."""
    chunk_rows = chunk_keys = decodes = decode_keys = 0
    for sequence, rows in parts:
        tokens = sequence.computed + rows
        if rows > 1:
            chunk_rows += rows
            chunk_keys += rows * tokens
        else:
            decodes += 1
            decode_keys += tokens
    return (
        chunk_rows, round(chunk_keys / chunk_rows) if chunk_rows else 0,
        decodes, round(decode_keys / decodes) if decodes else 0,
    )  # fmt: skip
