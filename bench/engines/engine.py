#!/usr/bin/env python3
"""An engine process: takes steps the way it is told, when it is told, and says how long each took.

engine.py NUMBER   speaks JSON, one object a line: commands on standard input, answers on the
                   descriptor that standard output was. Started by `run`; needs PyTorch and a GPU.

Commands (answers carry "ok", or "error" in words):
  prepare     weights of a model, and for the roles named buffers and the graph without attention
  choose      FlashInfer's ways of the roles are timed; graphs of the fastest
  connect     a session with the service; graphs of the roles with attention by attnd
  window      steps between two moments of CLOCK_MONOTONIC
  profile     as window, with the kernels of one step
  disconnect  the session ends
  state       answered at once by a thread of its own, whatever the engine is waiting for
"""

import contextlib
import ctypes
import gc
import json
import os
import queue
import sys
import threading
import time
import traceback

from cases import ATTND_WAYS, IDLE
from processes import die_with_parent

PROFILED_STEPS = 5


def playing(role):
    """The role whose batch it has."""
    return "D" if role == IDLE else role


class Engine:
    def __init__(self, number):
        self.number = number
        self.state, self.since, self.took_s = "starting", time.monotonic(), {}
        self.torch = self.model = self.held = self.flashinfer = None
        self.steps = {}  # role -> Step
        self.graphs = {}  # (role, way) -> graph
        self.appends = set()  # (role, way) whose attention also rotates
        self.kept = []  # workspaces that graphs read
        self.attnd = None
        self.context = ctypes.c_void_p()

    def enter(self, state):
        """A state that may last; how long the last one did is kept for the answer."""
        now = time.monotonic()
        before = self.state if isinstance(self.state, str) else "steps"
        self.took_s[before] = round(self.took_s.get(before, 0) + now - self.since, 2)
        self.state, self.since = state, now

    # ---- commands ----

    def prepare(self, command):
        """@command: model, page_size, roles, ways, peers, seed."""
        self.enter("importing torch")
        import torch

        self.torch = torch
        torch.cuda.set_device(0)
        answer = {"device": torch.cuda.get_device_name(0), "torch": torch.__version__}
        if "flashinfer" in command["ways"]:
            answer.update(self.import_peer(command["peers"]))
        self.hold(command["model"], command["page_size"], command["seed"])
        for role in command["roles"]:
            self.prepare_role(role, command["ways"])
        self.enter("ready")
        return {**answer, "took_s": self.took_s}

    def import_peer(self, peers):
        import flashinfer_way

        self.enter("importing flashinfer")
        try:
            self.flashinfer = self.flashinfer or flashinfer_way.import_flashinfer(peers)
        except Exception as error:  # whatever it fails with, it is not there
            return {"flashinfer": None, "why": f"{type(error).__name__}: {error}"}
        return {"flashinfer": self.flashinfer.__version__}

    def hold(self, name, page_size, seed):
        """Weights and cache of a model, in place of another's."""
        import model
        from models import MODELS

        if self.held == (name, page_size):
            return
        self.enter("making weights")
        self.steps, self.graphs, self.kept, self.model = {}, {}, [], None
        gc.collect()
        self.torch.cuda.empty_cache()
        self.model = model.Model(self.torch, MODELS[name], page_size, seed + self.number)
        self.held = name, page_size
        ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(self.context))

    def prepare_role(self, role, ways):
        """Its buffers, and the graph of its layers without attention."""
        import model
        from ways import NoAttention

        self.enter("making buffers")
        step = self.steps[role] = model.Step(self.torch, self.model, role)
        step.verify_append()
        if "none" in ways:
            self.keep(role, "none", NoAttention())

    def keep(self, role, way, attention):
        self.enter(f"{way}: capturing")
        self.graphs[role, way] = self.steps[role].capture(attention)
        self.kept.append(attention)

    def choose(self, command):
        """@command: roles, seed. Times FlashInfer's ways, so nobody else may use the GPU meanwhile.
        Return: names of the fastest, what was verified, and roles that it takes in no way."""
        import flashinfer_way

        answer = {"verified": {}, "lacks": {}, "chosen": {}}
        for role in command["roles"]:
            step = self.steps[role]
            self.enter("flashinfer: planning and timing")
            planner = flashinfer_way.Planner(self.torch, self.flashinfer, step.batch, step.buffers)
            time_us = flashinfer_way.time_in_graph(self.torch, len(step.buffers.q))
            try:
                attention = flashinfer_way.FlashInferAttention(planner, time_us)
            except Exception as error:  # it was not built for this shape
                answer["lacks"][role] = f"flashinfer: {error}"
                continue
            self.keep(role, "flashinfer", attention)
            answer["chosen"][role] = attention.name
            answer["verified"][f"{role} flashinfer"] = self.verify(
                role, "flashinfer", command["seed"]
            )
        self.enter("ready")
        return {**answer, "took_s": self.took_s}

    def verify(self, role, way, seed):
        """One step into poisoned outputs, a sample of rows compared."""
        import reference

        self.enter(f"{way}: a step to be verified")
        step = self.steps[role]
        step.poison()
        self.graphs[role, way].replay()
        self.torch.cuda.synchronize()
        self.check_lane()
        self.enter(f"{way}: verifying")
        if (role, way) in self.appends:
            step.appended()
        return reference.verify(self.torch, step.batch, step.buffers, seed)

    def check_lane(self):
        error = self.attnd.lane_error() if self.attnd else None
        if error:
            raise RuntimeError(f"lane 0: {error}")

    def connect(self, command):
        """@command: roles, socket, seed, ways of attnd's. A role that takes no step is planned all
        the same. Return: residency, what was verified, and the roles whose "attnd" rotates by
        itself."""
        import ways

        roles = command["roles"]
        first = self.steps[playing(roles[0])]
        self.enter("attnd: connecting")
        name = f"engine {self.number} {''.join(roles)}"
        self.attnd = ways.AttndSession(first.buffers, command["socket"], name)
        answer = {"residency": self.attnd.residency(), "verified": {}}
        for role in roles:
            for way in command["ways"]:
                self.connect_way(role, way, command, answer["verified"])
        self.enter("connected")
        answer["appends"] = sorted(role for role, way in self.appends if way == "attnd")
        return answer

    def connect_way(self, role, way, command, verified):
        step = self.steps[playing(role)]
        self.enter(f"{way}: planning and capturing")
        attention = self.attnd.attention(step.batch, step.buffers, way == "attnd")
        if role == IDLE:
            return
        self.graphs[role, way] = step.capture(attention)
        if attention.appends:
            self.appends.add((role, way))
        verified[f"{role} {way}"] = self.verify(role, way, command["seed"])

    def disconnect(self, command):
        """@command: roles, seed. Rows are verified once more, behind all windows."""
        answer = {"verified": {}}
        for role in command["roles"]:
            for way in ATTND_WAYS:
                if (role, way) in self.graphs:
                    found = self.verify(role, way, command["seed"])
                    answer["verified"][f"{role} {way}, at the end"] = found
        self.enter("disconnecting")
        self.graphs = {key: graph for key, graph in self.graphs.items() if key[1] not in ATTND_WAYS}
        self.appends.clear()  # of the next service, or model, they may be others
        self.torch.cuda.synchronize()
        if self.attnd:
            self.attnd.close()
            self.attnd = None
        self.enter("ready")
        return {**answer, "took_s": self.took_s}

    def window(self, command):
        """@command: role, way, begin_ns, end_ns (what counts), stop_ns (the engine goes on until
        then, so that others are not measured alone). It may start before begin_ns. Return: ends of
        the steps that count, and of the one before; how long each took. With @command's steps_min
        an engine that is alone goes on until that many count."""
        graph = self.graphs[command["role"], command["way"]]
        stream = self.torch.cuda.current_stream()
        begin, end, stop = (command[key] for key in ("begin_ns", "end_ns", "stop_ns"))
        fewest = command.get("steps_min", 0)
        name = f"role {command['role']}, {command['way']}"
        ends, took, steps = [], [], 0
        self.enter("steps")
        now = time.monotonic_ns()
        while now < stop or len(ends) < fewest:
            steps += 1
            self.state = (name, steps, now)
            since = now
            graph.replay()
            stream.synchronize()
            now = time.monotonic_ns()
            if begin <= now < end or (fewest and now >= end and len(ends) < fewest):
                ends.append(now)
                took.append(now - since)
        self.enter("idle")
        self.check_lane()
        return {"ends_ns": ends, "took_ns": took}

    def profile(self, command):
        """@command: as window's. Return: the kernels of one step, while others take theirs."""
        import timeline

        graph = self.graphs[command["role"], command["way"]]
        stream = self.torch.cuda.current_stream()

        def step():
            graph.replay()
            stream.synchronize()

        self.enter(f"role {command['role']}, {command['way']}: steps that are profiled")
        kernels = timeline.record(self.torch, step, PROFILED_STEPS)
        return {**self.window(command), "kernels": kernels}

    def describe(self):
        """The state in words."""
        if isinstance(self.state, str):
            return self.state
        name, step, since = self.state
        waited = (time.monotonic_ns() - since) / 1e9
        return f"{name}: step {step} of the window not done since {waited:.1f} s"

    def ask_lane(self):
        """What the lane's error word says, from the thread that answers `state`."""
        if not self.attnd:
            return "no session"
        ctypes.CDLL("libcuda.so.1").cuCtxSetCurrent(self.context)
        return self.attnd.lane_error() or "no error yet"


# ---- the protocol ----


def serve(make):
    """Commands on standard input, each a method of what @make gives, until the input ends."""
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    with contextlib.suppress(KeyboardInterrupt):
        answer_all(make(), sys.stdin, answers)


def answer_all(engine, commands, answers):
    lock, waiting = threading.Lock(), queue.Queue()

    def say(answer):
        with lock:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

    def listen():
        for line in commands:
            command = json.loads(line)
            if command["do"] == "state":
                say({"state": engine.describe()})
                say({"lane": engine.ask_lane()})
            else:
                waiting.put(command)
        os._exit(0)  # the commanding process is gone

    threading.Thread(target=listen, daemon=True).start()
    while True:
        command = waiting.get()
        try:
            say({"ok": command["do"], **getattr(engine, command["do"])(command)})
            engine.enter("idle")
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{engine.describe()}: {type(error).__name__}: {error}"})


if __name__ == "__main__":
    serve(lambda: Engine(int(sys.argv[1])))
