"""One case with one residency: its windows in order, over engines that are there already."""

import sys
import time

from cases import ATTND_WAYS, Window, stays, windows_after, windows_before, windows_beside
from figures import Measured, Result, rate
from processes import Daemon

CONNECT_S = 40
LEAD_S, TAIL_S = 0.06, 0.06  # steps that do not count, while others begin or end
LEAD_ALONE_S = 0.01  # the same, of an engine that is alone
STEPS_MIN, WINDOW_MAX_S = 5, 4.0
PROFILE_S = 2.0


def keep_verified(results, answers):
    """@results: those whose roles the answers name; of several, each takes its own role's."""
    for number, answer in answers.items():
        for what, found in answer.get("verified", {}).items():
            for result in results:
                if len(results) == 1 or what.split()[0] == result.case.roles:
                    result.verified[f"engine {number} {what}"] = found


class Bench:
    """A set of engine processes, and what all their cases have in common."""

    def __init__(self, options, engines, environment, ways):
        self.options, self.engines, self.ways = options, engines, ways
        self.environment = environment
        self.daemon, self.chosen = None, {}  # chosen: role -> the name of FlashInfer's way
        self.window_s = options.window

    def say(self, text):
        if self.options.verbose:
            print(f"engines: {text}", file=sys.stderr, flush=True)

    def measure(self, case, residency):
        """@residency: the daemon's, and options of it. Return: the Result. Raises Hang."""
        options = self.options
        for number, role in enumerate(case.roles):
            self.engines.all[number].role = role
        result, self.window_s = self.result(case, residency), options.window
        self.run_windows(result, windows_before(case, self.ways))
        if "attnd" in self.ways:
            self.start(result)
            apart = stays(" ".join([result.actual, *residency.split()[1:]]))
            self.run_windows(result, windows_beside(case, self.ways, options.rounds, apart))
            if options.timeline:
                for way in ATTND_WAYS:
                    if way in self.ways:
                        self.profile(result, way)
            self.stop(result)
            self.run_windows(result, windows_after(case, self.ways, options.rounds, apart))
        if options.timeline:
            for way in self.ways:
                if way not in ATTND_WAYS:
                    self.profile(result, way)
        return result

    def result(self, case, residency):
        """An empty one, with the names of FlashInfer's ways."""
        roles = case.working_roles
        names = {role: self.chosen[role] for role in roles if role in self.chosen}
        return Result(case, residency, peer_names=names)

    def start(self, result):
        since = time.monotonic()
        self.start_daemon(result.residency)
        ready = time.monotonic()
        roles = {number: [role] for number, role in enumerate(result.case.roles)}
        result.actual = self.connect(roles, [result])
        done = time.monotonic()
        self.say(
            f"{result.case.name}: {result.actual}: daemon ready in {ready - since:.2f} s, engines "
            f"in {done - ready:.2f} s; {result.rows_verified()} rows right"
        )

    def stop(self, result):
        since = time.monotonic()
        self.disconnect({number: [role] for number, role in enumerate(result.case.roles)}, [result])
        self.stop_daemon()
        self.say(
            f"{result.case.name}: service ended in {time.monotonic() - since:.2f} s; "
            f"{result.rows_verified()} rows right in all"
        )

    def start_daemon(self, residency):
        options = self.options
        self.daemon = Daemon(options.programs, residency, self.environment, options.execute)

    def stop_daemon(self):
        self.daemon.stop()
        self.daemon = None

    def connect(self, roles, results):
        """@roles: {number of an engine: the roles it will play}. What was verified, and whose
        runs rotate, goes into @results. Return: the daemon's own word for its residency."""
        commands = {
            number: {
                "do": "connect", "roles": list(played), "socket": self.daemon.socket_path,
                "seed": self.options.seed,
                "ways": [way for way in ATTND_WAYS if way in self.ways],
            }
            for number, played in roles.items()
        }  # fmt: skip
        answers = self.engines.ask(commands, CONNECT_S, "connecting")
        keep_verified(results, answers)
        append = {role for answer in answers.values() for role in answer["appends"]}
        for result in results:
            result.appends = [role for role in result.case.working_roles if role in append]
        return answers[0]["residency"]

    def disconnect(self, roles, results):
        seed = self.options.seed + 1
        commands = {
            number: {"do": "disconnect", "roles": list(played), "seed": seed}
            for number, played in roles.items()
        }
        keep_verified(results, self.engines.ask(commands, CONNECT_S, "disconnecting"))

    def run_windows(self, result, windows):
        for window in windows:
            while True:
                answers, took_s = self.run_window(result.case, window)
                fewest = min(len(answer["ends_ns"]) for answer in answers.values())
                if fewest >= STEPS_MIN or took_s >= WINDOW_MAX_S:
                    break
                self.window_s = min(2 * took_s, WINDOW_MAX_S)
            measured = Measured(
                window.way,
                window.where,
                {i: rate(answer["ends_ns"], took_s) for i, answer in answers.items()},
                {i: [ns / 1e6 for ns in answer["took_ns"]] for i, answer in answers.items()},
            )
            result.windows.append(measured)
            rates = " ".join(f"{r:.1f}" for r in measured.rates.values())
            self.say(f"{result.case.name}: {window.way} {window.where}: {rates}")

    def profile(self, result, way):
        """The kernels of a step, of the first engine of each role, the others at work."""
        case = result.case
        for role in case.working_roles:
            window = Window(way, "profiled", tuple(case.working))
            first = case.roles.index(role)
            answers, _ = self.run_window(case, window, profiled=first)
            result.kernels[f"{role}, {way}"] = answers[first]["kernels"]

    def run_window(self, case, window, profiled=None):
        """Return: {number: answer}, and how long the window was, in seconds. The engine @profiled
        answers with the kernels of a step, which takes it some seconds; others step meanwhile."""
        seconds = self.window_s if profiled is None else PROFILE_S
        alone = len(window.engines) == 1 and profiled is None
        lead, tail = (LEAD_ALONE_S, 0) if alone else (0.02 + LEAD_S, TAIL_S)
        begin = time.monotonic_ns() + int(lead * 1e9)
        end = begin + int(seconds * 1e9)
        commands = {
            number: {
                "do": "profile" if number == profiled else "window",
                "role": case.roles[number],
                "way": window.way,
                "begin_ns": begin,
                "end_ns": end,
                "stop_ns": end + int(tail * 1e9),
                **({"steps_min": STEPS_MIN} if alone else {}),
            }
            for number in window.engines
        }
        limit = seconds + LEAD_S + TAIL_S + self.options.patience
        doing = f"a window of {seconds:.2f} s, {case.name}, {window.way}, {window.where}"
        return self.engines.ask(commands, limit, doing), seconds
