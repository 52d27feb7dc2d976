"""Sessions: faults, waiting, signals, threads, fork, asyncio, and the end."""

import asyncio
import ctypes as c
import gc
import os
import pickle
import select
import signal
import threading
import time
import unittest

import numpy as np

import attnd
from attnd._library import lib
from attnd.errors import checked
from service import ServiceTest, service


class SessionTest(ServiceTest):
    def engine(self, requests=1):
        """A batch of `requests` rows that see one page each, and tensors for it."""
        pool = attnd.PagePool(self.session, 1, 16, 16, 1, 64)
        attention = attnd.BatchAttention(pool)
        page = pool.alloc_pages(1)[0]
        ones = np.arange(requests + 1)
        attention.plan(ones, ones, [page] * requests, [16] * requests, 1)
        shape = requests, 1, 64
        return attention, self.session.empty(shape), self.session.empty(shape)

    def test_a_fault_has_field_index_value_and_limit_as_numbers(self):
        attention, q, o = self.engine()
        attention.plan([0, 1], [0, 1], [777], [16], 1)
        with self.assertRaises(attnd.Range) as raised:
            attention.run(q, 0, o)
        fault = raised.exception
        self.assertEqual((fault.name, fault.field), ("ATTND_E_RANGE", "kv_indices"))
        self.assertEqual(
            (fault.index, fault.value, fault.limit, fault.operation), (0, 777, 15, "plan")
        )
        self.assertIsInstance(fault, ValueError)
        again = pickle.loads(pickle.dumps(fault))
        self.assertEqual((type(again), str(again)), (attnd.Range, str(fault)))

    def test_nobody_at_the_socket_is_disconnected_with_errno(self):
        with self.assertRaises(attnd.Disconnected) as raised:
            attnd.Session("/nonexistent/socket")
        self.assertEqual((raised.exception.field, raised.exception.value), ("socket", 2))
        self.assertIn("/nonexistent/socket", str(raised.exception))
        again = pickle.loads(pickle.dumps(raised.exception))
        self.assertEqual(str(again), str(raised.exception))

    def test_who_executes_is_wished_refused_by_name_and_told(self):
        def decide(session):  # as the first run that is prepared does
            checked(lib.attnd_mailbox(session.native(), c.byref(c.c_uint32())))

        self.assertEqual(self.session.info["executor"], "auto")
        decide(self.session)
        self.assertEqual(self.session.info["executor"], "service")
        with attnd.Session(self.path, execute="engine") as session:
            with self.assertRaises(attnd.Unsupported) as raised:
                decide(session)
        self.assertEqual(raised.exception.field, "executor")
        with self.assertRaisesRegex(ValueError, "auto, engine, service"):
            attnd.Session(self.path, execute="worker")

    def test_a_closed_session_says_so(self):
        self.session.close()
        self.session.close()
        with self.assertRaisesRegex(ValueError, "closed"):
            self.session.empty(8)

    def test_an_operation_in_flight_keeps_its_tensors_and_its_plan(self):
        attention, q, o = self.engine(8)
        operations = [attention.submit(q, 0, o) for _ in range(50)]
        del attention, q, o
        gc.collect()
        for operation in operations:
            operation.wait(20)
        self.assertTrue(all(operation.begin_ns <= operation.end_ns for operation in operations))

    def test_more_operations_than_the_ring_holds_all_end(self):
        session = attnd.Session(self.path, "small", ring_entries=8)
        self.addCleanup(session.close)
        self.session = session
        attention, q, o = self.engine()
        operations = [attention.submit(q, 0, o) for _ in range(500)]
        for operation in operations:
            operation.wait(20)

    def test_threads_that_wait_at_once_each_get_their_own(self):
        attention, q, o = self.engine(4)
        failures = []

        def work():
            try:
                for _ in range(100):
                    with lock:
                        operation = attention.submit(q, 0, o)
                    operation.wait(20)
            except BaseException as failure:
                failures.append(failure)

        lock, threads = threading.Lock(), [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def waits(self):
        """An operation that will not end: nothing of it was ever submitted."""
        operation = attnd.Operation(self.session, "run")
        operation.number = next(self.session._numbers)
        self.session._pending[operation.number] = operation
        return operation

    def test_a_wait_that_is_over_says_timeout(self):
        begin = time.monotonic()
        with self.assertRaises(TimeoutError):
            self.waits().wait(0.05)
        self.assertGreaterEqual(time.monotonic() - begin, 0.05)

    def test_what_has_ended_is_found_without_a_timeout(self):
        attention, q, o = self.engine()
        operation, deadline = attention.submit(q, 0, o), time.monotonic() + 20
        while not operation.done and time.monotonic() < deadline:
            try:
                operation.wait(0)
            except TimeoutError:
                pass
        self.assertTrue(operation.done)

    def test_a_signal_ends_a_wait_by_its_handlers_exception(self):
        class Interrupted(Exception):
            pass

        def interrupt(*_):
            raise Interrupted

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaises(Interrupted):
            self.waits().wait()
        attention, q, o = self.engine()  # and the session goes on
        attention.run(q, 0, o)

    def test_signals_at_any_moment_lose_no_completion(self):
        class Interrupted(Exception):
            pass

        def interrupt(*_):
            if armed:
                raise Interrupted

        armed = False
        attention, q, o = self.engine()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.0007)
        self.addCleanup(signal.setitimer, signal.ITIMER_REAL, 0)
        interrupted = 0
        for _ in range(1500):
            operation = attention.submit(q, 0, o)
            while not operation.done:
                try:
                    armed = True
                    operation.wait(10)
                except Interrupted:
                    interrupted += 1
                finally:
                    armed = False
        self.assertGreater(interrupted, 0)

    def test_a_waiter_is_woken_by_close_in_another_thread(self):
        operation = self.waits()
        threading.Timer(0.1, self.session.close).start()
        with self.assertRaises((attnd.Disconnected, ValueError)):
            operation.wait(20)

    def test_the_descriptor_is_readable_when_there_is_something(self):
        attention, q, o = self.engine()
        attention.run(q, 0, o)
        poll = select.poll()
        poll.register(self.session, select.POLLIN)
        native = self.session.native()
        checked(lib.attnd_arm(native))
        while poll.poll(0):  # what has ended by now
            self.session._collect(native, 0)
            checked(lib.attnd_arm(native))
        operation = attention.submit(q, 0, o)
        self.assertEqual(poll.poll(20_000), [(self.session.fileno(), select.POLLIN)])
        self.assertEqual(operation.done, False)
        operation.wait(20)

    def test_a_child_of_fork_is_told_and_the_parent_goes_on(self):
        attention, q, o = self.engine()
        child = os.fork()
        if child == 0:
            try:
                attention.submit(q, 0, o)
            except attnd.Forked:
                self.session.close()
                os._exit(7)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
        attention.run(q, 0, o)

    def test_operations_can_be_awaited_many_at_once(self):
        attention, q, o = self.engine()

        async def one(times):
            for _ in range(times):
                await attention.submit(q, 0, o)

        async def all_of_them():
            await asyncio.wait_for(asyncio.gather(*(one(40) for _ in range(8))), 20)

        asyncio.run(all_of_them())
        asyncio.run(all_of_them())  # in another loop, when the first is over
        attention.run(q, 0, o)

    def test_an_awaited_operation_raises_its_fault(self):
        attention, q, o = self.engine()
        attention.plan([0, 1], [0, 1], [777], [16], 1)

        async def run():
            await attention.submit(q, 0, o)

        with self.assertRaises(attnd.Range):
            asyncio.run(run())

    def test_a_session_may_be_closed_in_the_loop_that_awaits_it(self):
        attention, q, o = self.engine()

        async def run():
            operation = attention.submit(q, 0, o)
            waiting = asyncio.ensure_future(self.waits_for(operation))
            await asyncio.sleep(0)
            self.session.close()
            try:
                await asyncio.wait_for(waiting, 20)
            except attnd.Disconnected:
                pass
            await asyncio.sleep(0)

        asyncio.run(run())

    async def waits_for(self, operation):
        await operation

    def test_one_thread_may_wait_while_another_awaits(self):
        attention, q, o = self.engine()

        def blocking():
            for _ in range(100):
                attention.submit(q, 0, o).wait(20)

        async def both():
            thread = asyncio.to_thread(blocking)
            task = asyncio.create_task(thread)
            while not task.done():
                await asyncio.wait_for(attention.submit(q, 0, o), 20)
            await task

        asyncio.run(both())


class Death(unittest.TestCase):
    def test_a_service_that_ends_fails_what_is_in_flight(self):
        with service() as path:
            session = attnd.Session(path)
            operation = attnd.Operation(session, "run")
            operation.number = next(session._numbers)
            session._pending[operation.number] = operation
        with self.assertRaises(attnd.Disconnected):
            operation.wait(20)
        with self.assertRaises(attnd.Disconnected):
            session.empty(8)
        session.close()


if __name__ == "__main__":
    unittest.main()
