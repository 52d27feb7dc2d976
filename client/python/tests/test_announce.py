"""announce() and run() in streams and captures, over streams that refuse what CUDA refuses. No GPU
is needed; test_cuda.py has the real ones."""

import contextlib
import sys
import types
import unittest
from unittest import mock

import attnd
from attnd import _library
from service import ServiceTest

PLAIN, FIRST, SECOND = 0, 1, 2  # no capture, and two


class Stream:
    """Which capture it is part of, by the rules of cudaStreamWaitEvent()."""

    handles = {}
    device = "cuda:0"

    def __init__(self, device=None):
        self.capture, self.cuda_stream = PLAIN, len(self.handles) + 1
        self.joined = []
        self.handles[self.cuda_stream] = self

    def wait_stream(self, other):
        if other.capture != self.capture:
            if self.capture != PLAIN:
                raise RuntimeError("a capture waits for what is not part of it")
            self.capture = other.capture
        self.joined.append(other)


class Driver:
    """The calls of libattnd-cuda and of the driver that the two make."""

    def __init__(self):
        self.calls = []

    def cuStreamGetCaptureInfo_v2(self, handle, status, number, *_):
        capture = Stream.handles[handle].capture
        status._obj.value, number._obj.value = int(capture != PLAIN), capture
        return 0

    def attnd_cuda_announce(self, _, handle):
        self.calls.append(("announce", Stream.handles[handle].capture))
        return 0

    def attnd_cuda_run_on_stream(self, _, lane, number, handle):
        self.calls.append(("run", Stream.handles[handle].capture))
        return 0


class AnnounceTest(ServiceTest):
    def setUp(self):
        super().setUp()
        Stream.handles.clear()
        self.driver, self.here = Driver(), Stream()
        torch = types.SimpleNamespace(
            cuda=types.SimpleNamespace(
                Stream=Stream,
                ExternalStream=Stream.handles.__getitem__,
                current_stream=lambda: self.here,
            )
        )
        patches = contextlib.ExitStack()
        self.addCleanup(patches.close)
        patches.enter_context(mock.patch.dict(sys.modules, torch=torch))
        patches.enter_context(mock.patch.object(_library, "cuda", lambda: self.driver))
        self.pool = attnd.PagePool(self.session, 1, 4, 8, 2, 64, leased=False)
        self.attention = attnd.BatchAttention(self.pool)
        self.attention._prepare = lambda *_: 1

    def run_here(self, stream=None):
        self.attention._run_on_stream(0, object(), object(), None, stream)

    @contextlib.contextmanager
    def capture(self, number):
        """Ends as cudaStreamEndCapture() does: whatever forked has been joined."""
        before, self.here = self.here, Stream()
        self.here.capture = number
        yield
        beside = self.attention._beside
        forked = beside is not None and beside.capture == number
        self.assertEqual(forked and beside not in self.here.joined, False)
        for stream in Stream.handles.values():
            if stream.capture == number:
                stream.capture = PLAIN
        self.here = before

    def test_run_joins_what_was_announced_in_its_stream(self):
        self.attention.announce()
        self.run_here()
        self.assertEqual(self.here.joined, [self.attention._beside])
        self.run_here()
        self.assertEqual(len(self.here.joined), 1)
        self.assertEqual([name for name, _ in self.driver.calls], ["announce", "run", "run"])

    def test_run_in_a_capture_does_not_join_what_was_announced_outside_of_it(self):
        self.attention.announce()
        with self.capture(FIRST):
            self.run_here()
        self.assertEqual(self.driver.calls, [("announce", PLAIN), ("run", FIRST)])
        self.run_here()  # and that announcement is joined where it was made
        self.assertEqual(self.here.joined, [self.attention._beside])

    def test_in_a_capture_both_are_of_it(self):
        for number in (FIRST, SECOND):
            self.attention.announce()  # is not followed
            with self.capture(number):
                self.attention.announce()
                self.run_here()
                self.run_here()
                self.assertEqual(self.here.joined, [self.attention._beside])
        self.assertEqual(self.attention._beside.capture, PLAIN)

    def test_run_elsewhere_is_not_drawn_into_a_capture(self):
        elsewhere = Stream()
        with self.capture(FIRST):
            self.attention.announce()
            self.run_here(stream=elsewhere.cuda_stream)
            self.assertEqual((elsewhere.capture, elsewhere.joined), (PLAIN, []))
            self.run_here()

    def test_a_capture_that_was_given_up_is_not_joined_by_the_next(self):
        with self.assertRaises(AssertionError):
            with self.capture(FIRST):
                self.attention.announce()
        self.attention._beside.capture = PLAIN  # CUDA ends the capture all the same
        self.here = Stream()
        with self.capture(SECOND):
            self.run_here()
        self.assertEqual(self.driver.calls[-1], ("run", SECOND))


if __name__ == "__main__":
    unittest.main()
