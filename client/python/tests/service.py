"""A service of one's own for a test: started in a folder that goes away, ended with the test."""

import contextlib
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ.get("ATTND_BUILD", ROOT / "build"))


@contextlib.contextmanager
def service(*options, backend="cpu"):
    """The path of the socket of a daemon that is ready."""
    with tempfile.TemporaryDirectory(
        prefix="attnd-python-"
    ) as folder, contextlib.ExitStack() as stack:
        notify = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notify.bind(f"{folder}/notify")
        notify.settimeout(60)
        path = f"{folder}/socket"
        log = stack.enter_context(open(f"{folder}/log", "w+"))
        daemon = subprocess.Popen(
            [BUILD / "attnd", "--socket", path, "--backend", backend, *options],
            env=dict(os.environ, NOTIFY_SOCKET=f"{folder}/notify"), stdout=log, stderr=log,
        )  # fmt: skip
        try:
            while b"READY=1" not in notify.recv(256):
                pass
            yield path
        except BaseException:
            log.seek(0)
            print(log.read())
            raise
        finally:
            daemon.terminate()
            daemon.wait(30)


class ServiceTest(unittest.TestCase):
    """Tests of a class share a service at `path`. Each has a session, which it may close itself."""

    options, backend = (), "cpu"

    @classmethod
    def setUpClass(cls):
        context = service(*cls.options, backend=cls.backend)
        cls.path = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)

    def setUp(self):
        import attnd

        self.session = attnd.Session(self.path, "test")
        self.addCleanup(self.session.close)


if __name__ == "__main__":  # service.py COMMAND...: with $ATTND_SOCKET
    backend = os.environ.get("ATTND_BACKEND", "cpu")
    with service(*os.environ.get("ATTND_OPTIONS", "").split(), backend=backend) as path:
        sys.exit(subprocess.call(sys.argv[1:], env=dict(os.environ, ATTND_SOCKET=path)))
