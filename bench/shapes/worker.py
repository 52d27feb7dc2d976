#!/usr/bin/env python3
"""A process that measures cases, one command each: attnd and the fastest of its peers in turn.

worker.py NUMBER   speaks JSON, one object a line: commands on standard input, answers on the
                   descriptor that standard output was. Started by `run`. With "dry" it needs numpy
                   and no GPU, and has no peers.
"""

import contextlib
import ctypes
import pathlib
import statistics
import sys
import time

import judge
import shapes
from device import LAYERS, Cuda, Host

# Deadlines, the protocol and FlashInfer's ways are those of whole layers.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
from engine import serve  # noqa: E402
from ours import Ours  # noqa: E402
from ways import PagedBatch  # noqa: E402

LONG_US, ROUNDS_OF_LONG = 1000, 5


def case_of(command):
    """The case that a command names."""
    batches = shapes.DRY_BATCHES if command["dry"] else shapes.BATCHES
    return shapes.Case(shapes.Shape(**command["shape"]), batches[command["batch"]])


class Worker:
    def __init__(self):
        self.state, self.since = "starting", time.monotonic()
        self.device = self.session = self.others = self.ours = None
        self.context = ctypes.c_void_p()

    def enter(self, state):
        self.state, self.since = state, time.monotonic()

    def describe(self):
        return f"{self.state}, since {time.monotonic() - self.since:.1f} s"

    def ask_lane(self):
        """From the thread that answers `state`."""
        if not self.ours or not hasattr(self.device, "torch"):
            return "no session"
        ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(self.context)
        return self.ours.failure() or "no error yet"

    # ---- commands ----

    def prepare(self, command):
        """@command: socket, cases, peers, fa4, seed, dry."""
        import attnd

        cases = [case_of({**named, "dry": command["dry"]}) for named in command["cases"]]
        self.seed = command["seed"]
        answer = {"device": "cpu", "left_out": {}}
        if command["dry"]:
            self.session = attnd.Session(command["socket"], "shapes")
            self.device = Host(self.session, self.seed)
        else:
            self.enter("importing torch")
            import torch

            from others import Others

            torch.cuda.set_device(0)
            torch.cuda.set_stream(torch.cuda.Stream())  # an engine's is not the legacy stream
            self.enter("making tensors")
            self.device = Cuda(torch, cases, self.seed)
            ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(self.context))
            self.enter("importing peers")
            self.others = Others(torch, self.device, command["peers"], command["fa4"])
            answer = {
                "device": torch.cuda.get_device_name(0),
                "left_out": self.others.left_out,
            }
            self.enter("connecting")
            self.session = attnd.Session(command["socket"], "shapes")
        return {**answer, "bytes_per_s": self.device.bytes_per_s()}

    def case(self, command):
        """@command: shape, batch, rounds, dry. Return: microseconds of attnd and of the fastest
        peer; or what failed, in words, and whether this process is of no more use."""
        case = case_of(command)
        self.enter(f"{case.name}: planning")
        try:
            return self.measure(case, command["rounds"])
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:400], "sick": self.sick()}
        finally:
            if self.ours:
                with contextlib.suppress(Exception):
                    self.ours.close()
            self.ours = None

    def sick(self):
        """A fault of a kernel ends a context for good."""
        try:
            self.device.wait()
        except Exception:
            return True
        return False

    def measure(self, case, rounds):
        order = shapes.page_order(shapes.pages_of(case.batch, case.shape.page), self.seed)
        batch = PagedBatch(case.batch.requests, order, case.shape.page)
        self.device.lay(case, batch)
        self.ours = Ours(self.session, case, batch, self.device)
        self.enter(f"{case.name}: verifying")
        rows = sum(self.verify(case, layer) for layer in range(LAYERS))
        self.enter(f"{case.name}: choosing a peer")
        peer, why = self.others.fastest(case, batch) if self.others else (None, {})
        self.enter(f"{case.name}: measuring")
        ours, peers = self.rounds(peer, rounds)
        failure = self.ours.failure()
        if failure:
            raise RuntimeError(f"lane 0: {failure}")
        self.verify(case, LAYERS - 1)
        found = {"us": ours, "rows": rows, "left_out": why}
        return {**found, "peer": peer.name, "peer_us": peers} if peer else found

    def verify(self, case, layer):
        self.device.poison(self.device.o)
        self.ours.call(layer)
        self.device.wait()
        failure = self.ours.failure()
        if failure:
            raise RuntimeError(f"lane 0: {failure}")
        return judge.check(case, self.device, layer, self.device.o, self.seed + layer)

    def rounds(self, peer, count):
        """Medians of attnd and of @peer, one call of each in turn, two layers in turn."""
        ours, peers = [], []
        for i in range(count):
            layer = i % LAYERS
            ours.append(self.device.sample_us(self.ours.call, layer))
            if peer:
                peers.append(self.device.sample_us(peer.call, layer))
            if i + 1 >= ROUNDS_OF_LONG and min(ours) > LONG_US:
                break
        return statistics.median(ours), statistics.median(peers) if peers else None


if __name__ == "__main__":
    serve(Worker)
