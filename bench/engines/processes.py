"""The processes of a run: an MPS server, a daemon, engines. Every wait has a deadline.
bench/shapes has the same, with one process that measures in place of engines.

Whatever does not answer in time is a Hang, whose text names the engine, its lane and its state.
Leaving a `with` ends what it began, within seconds, however it is left; children also die with
their parent.
"""

import contextlib
import ctypes
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

PR_SET_PDEATHSIG = 1

READY_S = 30  # a daemon, an MPS server
END_S = 20  # a daemon that parks its worker
STATE_S = 3  # an engine's thread that answers for one that hangs


class Hang(Exception):
    """Somebody did not answer in time, or died."""


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_process(process, how=signal.SIGKILL, seconds=5):
    """Return: its exit status, or None if it is still there."""
    if process.poll() is None:
        process.send_signal(how)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


class Lines:
    """Lines of a pipe, each waited for until a deadline."""

    def __init__(self, file):
        self.descriptor, self.rest = file.fileno(), b""

    def next(self, deadline):
        """The next line; None: the deadline has passed; "": the other end is closed."""
        while b"\n" not in self.rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.descriptor], [], [], left)[0]:
                return None
            more = os.read(self.descriptor, 1 << 16)
            if not more:
                return ""
            self.rest += more
        line, self.rest = self.rest.split(b"\n", 1)
        return line.decode() + "\n"


# ---- MPS ----


def without_mps():
    """What keeps a process from an MPS server that may run on this machine."""
    return {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}


@contextlib.contextmanager
def mps_server(with_mps):
    """An MPS server of its own, by the script @with_mps. Gives its clients' environment."""
    command = [with_mps, "sh", "-c", 'echo "$CUDA_MPS_PIPE_DIRECTORY"; exec cat >/dev/null']
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        directory = Lines(process.stdout).next(time.monotonic() + READY_S)
        if not directory:
            raise Hang(f"MPS does not start within {READY_S} s")
        yield {"CUDA_MPS_PIPE_DIRECTORY": directory.strip()}
    finally:
        process.stdin.close()  # the script then ends the server
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            end_process(process)
            print("engines: the MPS server does not end", file=sys.stderr)


@contextlib.contextmanager
def surroundings(options, mps):
    """The environment of a service and its clients: an MPS server of their own or none, and the
    libraries of @options."""
    with mps_server(options.with_mps) if mps else contextlib.nullcontext(without_mps()) as found:
        libraries = str(options.libraries.resolve())
        paths = [libraries, os.environ.get("LD_LIBRARY_PATH", "")]
        found.update(LD_LIBRARY_PATH=":".join(filter(None, paths)), ATTND_LIBRARY_PATH=libraries)
        yield found


# ---- the daemon ----


class Daemon:
    """A private attnd. Its log is in a temporary directory and shown if something goes wrong."""

    def __init__(self, programs, residency, environment, execute=None, backend="cuda"):
        """@execute: who executes runs, in the daemon's words; None: as it decides by itself."""
        self.attnctl = programs / "attnctl"
        self.directory = tempfile.TemporaryDirectory(prefix="attnd-engines-")
        base = pathlib.Path(self.directory.name)
        self.socket_path, self.log_path = str(base / "socket"), base / "log"
        self.command = [
            str(programs / "attnd"), "--socket", self.socket_path, "--backend", backend, "--trust",
            "--verbose", *(["--residency", *residency.split()] if residency else []),
            *(["--execute", execute] if execute else []),
        ]  # fmt: skip
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(base / "notify"))
        environment = dict(os.environ, **environment, NOTIFY_SOCKET=str(base / "notify"))
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                self.command, env=environment, stdout=log, stderr=log, preexec_fn=die_with_parent
            )
        try:
            self.wait_ready(notify)
        except BaseException:
            end_process(self.process)
            raise
        finally:
            notify.close()

    def wait_ready(self, notify):
        deadline, message = time.monotonic() + READY_S, b""
        notify.settimeout(0.1)
        while b"READY=1" not in message:
            if self.process.poll() is not None:
                raise Hang(f"{' '.join(self.command)}: ended at once\n{self.log()}")
            if time.monotonic() > deadline:
                raise Hang(f"{' '.join(self.command)}: not ready in {READY_S} s\n{self.log()}")
            with contextlib.suppress(TimeoutError):
                message = notify.recv(256)

    def log(self, lines=15):
        with contextlib.suppress(FileNotFoundError):
            return "".join(self.log_path.read_text().splitlines(True)[-lines:])
        return ""

    def status(self):
        """What attnctl says; the service may be what hangs."""
        try:
            asked = subprocess.run(
                [self.attnctl, "status", "--socket", self.socket_path],
                capture_output=True, text=True, timeout=5,
            )  # fmt: skip
            return asked.stdout + asked.stderr
        except (subprocess.TimeoutExpired, OSError) as error:
            return f"attnctl: {error}"

    def stop(self):
        """Ends it in good order. A Hang says that it would not."""
        status = end_process(self.process, signal.SIGTERM, END_S)
        log = self.log() if status != 0 else ""
        self.kill()
        if status is None:
            raise Hang(f"the daemon does not end within {END_S} s\n{log}")
        if status != 0:
            raise Hang(f"the daemon ended with {status}\n{log}")

    def kill(self):
        """Ends it, gently first: a worker that is killed ends every context under MPS."""
        if end_process(self.process, signal.SIGTERM, 5) is None:
            end_process(self.process)
        self.directory.cleanup()


# ---- engines ----


class Engine:
    """The parent's side of one engine process."""

    def __init__(self, number, environment, program):
        self.number, self.role = number, "?"
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, **environment),
        )  # fmt: skip
        self.lines = Lines(self.process.stdout)

    def __str__(self):
        return f"engine {self.number} ({self.role})"

    def tell(self, command):
        try:
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Hang(f"{self} is gone, exit status {end_process(self.process)}") from None

    def answer(self, deadline, doing):
        line = self.lines.next(deadline)
        if line is None:
            raise Hang(f"{self} does not end: {doing}")
        if line == "":
            raise Hang(f"{self} died while {doing}, exit status {end_process(self.process)}")
        answer = json.loads(line)
        if "error" in answer:
            raise Hang(f"{self} failed while {doing}: {answer['error']}")
        return answer

    def describe(self):
        """Its state and its lane's, by the thread that answers while the engine hangs."""
        found, deadline = {}, time.monotonic() + STATE_S
        try:
            self.tell({"do": "state"})
            while "lane" not in found:
                line = self.lines.next(deadline)
                if not line:
                    break
                found.update(json.loads(line))
        except Hang as gone:
            return str(gone)
        return f"{self}: {found.get('state', 'silent')}; lane 0: {found.get('lane', 'unknown')}"


class Engines:
    """A set of engine processes that start at once and are told the same kind of thing at once."""

    def __init__(self, count, environment, program, own=()):
        """@own: more of the environment for the first of them, the second, and so on."""
        own = [*own, *({} for _ in range(count - len(own)))]
        self.all = [
            Engine(number, {**environment, **own[number]}, program) for number in range(count)
        ]

    def ask(self, commands, seconds, doing):
        """@commands: {number: command}. Return: {number: answer}. Waits at most @seconds."""
        deadline = time.monotonic() + seconds
        for number, command in commands.items():
            self.all[number].tell(command)
        return {number: self.all[number].answer(deadline, doing) for number in commands}

    def describe(self):
        return "\n".join(engine.describe() for engine in self.all)

    def tell_hang(self, program, hang, daemon):
        """What everybody was doing, on standard error. @daemon: None if there is none."""
        print(f"{program}: {hang}\n{self.describe()}", file=sys.stderr)
        if daemon:
            print(daemon.status() + daemon.log(), file=sys.stderr)

    def end(self):
        """Closes their input, which they end on; kills those that do not."""
        for engine in self.all:
            with contextlib.suppress(OSError):
                engine.process.stdin.close()
        for engine in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                engine.process.wait(5)
        for engine in self.all:
            end_process(engine.process)
