#!/usr/bin/env python3
"""A serving engine: a process that holds a model, and serves what it is told to.

server.py NUMBER   speaks JSON, one object a line, as engines of bench/engines do. Started by `run`.

Commands (answers carry "ok", or "error" in words):
  prepare   weights of a model
  open      a cache of pages, by FlashInfer or by attnd; alone, or as one of two that share them
  table     how long steps of given shapes take
  beside    how long they take while another engine has its own
  probe     requests served until a moment of CLOCK_MONOTONIC
  close     the cache goes
  state     answered at once by a thread of its own, whatever the engine is waiting for
"""

import contextlib
import ctypes
import gc
import pathlib
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engines"))
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))
import engine  # noqa: E402
from arrivals import Request  # noqa: E402
from batch import StepBatch  # noqa: E402
from scheduler import Limits, Scheduler, Sequence  # noqa: E402
from serving import Link, Serving  # noqa: E402

LINK_S = 10
STEPS_OF_POINT = 5


class Server:
    def __init__(self, number):
        self.number, self.state = number, "starting"
        self.cpu, self.context = True, ctypes.c_void_p()
        self.torch = self.weights = self.flashinfer = None
        self.cache = self.layers = self.limits = None
        self.links = {"out": None, "into": None}

    def enter(self, state):
        self.state = state

    def describe(self):
        return self.state

    def ask_lane(self):
        """What the lane's error word says, from the thread that answers `state`."""
        if not hasattr(self.cache, "lane_error"):
            return "no lane"
        ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(self.context)
        try:
            self.cache.lane_error()
        except Exception as failure:
            return str(failure)
        return "no error yet"

    # ---- commands ----

    def prepare(self, command):
        """@command: backend, model, layers, seed, tokens (of a request at most), peers."""
        self.cpu, self.seed = command["backend"] == "cpu", command["seed"]
        if self.cpu:
            return {"device": "cpu", "flashinfer": "numpy"}
        self.enter("importing torch")
        import torch

        torch.set_grad_enabled(False)
        self.torch = torch
        import flashinfer_way
        import model
        from models import MODELS

        answer = {"device": torch.cuda.get_device_name(0), "flashinfer": None}
        self.enter("importing flashinfer")
        try:
            self.flashinfer = flashinfer_way.import_flashinfer(command["peers"])
            answer["flashinfer"] = self.flashinfer.__version__
        except Exception as error:  # whatever it fails with, it is not there
            answer["why"] = f"{type(error).__name__}: {error}"
        self.enter("making weights")
        self.weights = model.Weights(
            torch, MODELS[command["model"]], self.seed + self.number, command["layers"],
            command["tokens"] + 1,
        )  # fmt: skip
        ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(self.context))
        return answer

    def open(self, command):
        """@command: way, role ("both", "prefill", "decode"), limits, pages, socket, token, link,
        priority. Return: a token for the engine that decodes."""
        self.enter(f"opening {command['way']}")
        self.role, self.limits = command["role"], Limits(**command["limits"])
        self.cache = self.make_cache(command)
        self.layers = self.make_layers(command)
        answer = {"token": self.cache.share().hex() if self.role == "prefill" else None}
        if self.role == "decode":
            self.links["into"] = Link(command["link"], receives=True)
        if not self.cpu:
            self.enter("verifying a step")
            self.verify(command["seed"])
        return answer

    def make_cache(self, command):
        pages, size = command["pages"], self.limits.page_size
        token = bytes.fromhex(command["token"]) if command["token"] else None
        name = f"engine {self.number}"
        if self.cpu:
            import cpu_layers

            if command["way"] == "flashinfer":
                return cpu_layers.OwnCache(pages, size)
            return cpu_layers.ServiceCache(command["socket"], name, pages, size, token)
        import gpu_layers

        if command["way"] == "flashinfer":
            return gpu_layers.FlashInferCache(
                self.torch, self.flashinfer, self.weights, pages, size
            )  # fmt: skip
        return gpu_layers.ServiceCache(
            self.weights, command["socket"], name, pages, size, self.limits, token
        )

    def make_layers(self, command):
        if self.cpu:
            import cpu_layers

            return cpu_layers.Layers(self.seed, self.cache)
        import gpu_layers

        layers = gpu_layers.Layers(
            self.torch, self.weights, self.cache, self.limits, command["priority"]
        )
        if command["way"] != "flashinfer":
            self.cache.prepare(layers.whole)
        return layers

    def verify(self, seed):
        """One step of chunks and decodes, and one of decodes, with pages that then go back."""
        chunk = min(200, self.limits.budget // 2)
        for requests in [(chunk, 3 * chunk), (1, 700), (1, 33)], [(1, 500), (1, 77), (1, 1)]:
            held = [self.take_pages(tokens) for _, tokens in requests]
            batch = StepBatch(
                [(pages, *request) for pages, request in zip(held, requests)],
                self.limits.page_size,
            )
            self.layers.verify(batch, seed)
            for pages in held:
                self.cache.pages.free(pages)
        if hasattr(self.cache, "lane_error"):
            self.cache.lane_error()

    def take_pages(self, tokens):
        found = self.cache.pages.alloc(-(-tokens // self.limits.page_size))
        if found is None:
            raise RuntimeError(f"the pool has no pages for {tokens} tokens")
        return found

    def table(self, command):
        """@command: points, (chunk rows, their keys, decodes, their keys) each. Return: {point's
        number: seconds}; without those that there are not enough pages for."""
        found = {}
        for number, point in enumerate(command["points"]):
            self.enter(f"a step of {point}")
            took = self.time_point(*point)
            if took is not None:
                found[number] = took
        return {"seconds": found}

    def time_point(self, *point):
        """The median of some steps, the first one left out; None: there are not enough pages."""
        with self.parts_of(*point) as parts:
            if parts is None:
                return None
            return statistics.median([self.time_step(parts) for _ in range(1 + STEPS_OF_POINT)][1:])

    def time_step(self, parts):
        since = time.monotonic()
        self.layers.execute(parts)
        return time.monotonic() - since

    @contextlib.contextmanager
    def parts_of(self, chunk_rows, chunk_keys, decodes, decode_keys):
        """A step of such a shape, whose pages go back; gives None if there are not enough."""
        parts = []
        try:
            shapes = [(chunk_rows, chunk_keys)] * bool(chunk_rows) + [(1, decode_keys)] * decodes
            for rows, keys in shapes:
                pages = self.cache.pages.alloc(-(-keys // self.limits.page_size))
                if pages is None:
                    break
                request = Request(len(parts), 0.0, keys, 1)
                parts.append((Sequence(request, keys - rows, 0, pages), rows, keys))
            yield parts if len(parts) == len(shapes) else None
        finally:
            for sequence, _, _ in parts:
                self.cache.pages.free(sequence.pages)

    def beside(self, command):
        """@command: point, begin_s, seconds. Steps until then, one behind the other. Return: the
        mean of their seconds, or None."""
        with self.parts_of(*command["point"]) as parts:
            if parts is None:
                return {"seconds": None}
            self.time_step(parts)
            while time.monotonic() < command["begin_s"]:
                self.time_step(parts)
            since, steps = time.monotonic(), 0
            while (now := time.monotonic()) < command["begin_s"] + command["seconds"]:
                self.time_step(parts)
                steps += 1
            return {"seconds": (now - since) / steps}

    def probe(self, command):
        """@command: requests, begin_s (CLOCK_MONOTONIC), seconds, link. Return: when tokens came,
        the shapes of steps and their seconds."""
        self.enter("connecting engines")
        if self.role == "prefill" and not self.links["out"]:
            self.links["out"] = Link(command["link"], receives=False)
        scheduler = Scheduler(
            self.limits, self.cache.pages, first_token_only=self.role == "prefill"
        )  # fmt: skip
        serving = Serving(scheduler, self.layers, **self.links)
        self.enter(f"serving {len(command['requests'])} requests for {command['seconds']:.1f} s")
        requests = [Request(*fields) for fields in command["requests"]]
        gc.collect()
        gc.disable()
        try:
            serving.probe(requests, command["begin_s"], command["seconds"])
        finally:
            gc.enable()
        self.enter("ending the probe")
        serving.finish_link(LINK_S)
        self.check()
        return {
            "tokens": {str(number): times for number, times in serving.tokens.items()},
            "steps": serving.steps, "busy_s": serving.busy_s,
            "preemptions": scheduler.preemptions,
        }  # fmt: skip

    def check(self):
        if hasattr(self.cache, "lane_error"):
            self.cache.lane_error()

    def close(self, command):
        """Return: how many rows were verified."""
        verified = self.layers.verified
        for name, link in self.links.items():
            if link:
                link.close(removes=name == "into")
                self.links[name] = None
        if self.torch:
            self.torch.cuda.synchronize()
        cache, self.cache, self.layers = self.cache, None, None
        cache.close()
        del cache
        gc.collect()
        if self.torch:
            self.torch.cuda.empty_cache()
        return {"verified": verified}


if __name__ == "__main__":
    engine.serve(lambda: Server(int(sys.argv[1])))
