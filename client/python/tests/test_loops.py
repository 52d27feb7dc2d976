"""Event loops and threads that share a session: one that is turned away is called or looks again,
and one that awaits nothing is left alone."""

import asyncio
import select
import threading
import unittest
import unittest.mock
import weakref

import attnd
from attnd import _waiting
from attnd._library import lib
from attnd.errors import checked
from service import ServiceTest


class Leads(dict):
    """The session's table of who collects; it tells when somebody is turned away."""

    def __init__(self):
        super().__init__()
        self.turned_away, self.leaves = threading.Event(), None

    def setdefault(self, key, me):
        leader = super().setdefault(key, me)
        if leader != me:
            self.turned_away.set()
            if self.leaves is not None:  # a thread that gives the lead up before this one goes on
                self.leaves.join(20)
        return leader


class LoopsTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.session._leader = self.leads = Leads()
        pool = attnd.PagePool(self.session, 1, 1, 16, 1, 64, leased=False)
        self.attention = attnd.BatchAttention(pool)
        self.attention.plan([0, 1], [0, 1], [0], [16], 1, wait=True)
        self.q, self.o = (self.session.empty((1, 1, 64)) for _ in range(2))
        self.collecting, self.collect = threading.Event(), self.session._collect

    def submit(self):
        return self.attention.submit(self.q, 0, self.o)

    def endless(self):
        """An operation that will not end: nothing of it was ever submitted."""
        operation = attnd.Operation(self.session, "run")
        operation.number = next(self.session._numbers)
        self.session._pending[operation.number] = operation
        return operation

    def hold(self, when, then):
        """The first time that a thread collects and @when() holds, it goes on with @then() when
        another has been turned away."""

        def collect(native, timeout_ns):
            found = self.collect(native, timeout_ns)
            if not self.collecting.is_set() and when():
                self.leads.turned_away.clear()
                self.collecting.set()
                self.leads.turned_away.wait(20)
                then()
            return found

        self.session._collect = collect

    def awaits(self):
        async def one():
            await asyncio.wait_for(self.wait_for(self.submit()), 20)

        asyncio.run(one())

    async def wait_for(self, operation):
        await operation

    def test_a_loop_whose_collecting_is_interrupted_calls_who_was_turned_away(self):
        class Interrupted(Exception):
            pass

        def interrupt():
            raise Interrupted

        endless, seen = self.endless(), []

        async def held():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda _, x: seen.append(type(x["exception"])))
            await endless

        thread = threading.Thread(target=lambda: asyncio.run(held()))
        self.hold(lambda: threading.current_thread() is thread, interrupt)
        thread.start()
        try:
            self.assertTrue(self.collecting.wait(20))
            self.awaits()
        finally:
            endless._end(None)
            thread.join(20)
        self.assertEqual(seen, [Interrupted])

    def leave_the_lead_behind(self):
        """As a signal's exception does that comes before the lead is given up."""

        def interrupted():
            lead = _waiting._Lead()
            self.assertTrue(self.session._take_lead(lead))

        thread = threading.Thread(target=interrupted)
        thread.start()
        thread.join(20)
        self.assertEqual(len(self.leads), 1)

    def test_a_lead_that_was_left_behind_is_taken_by_a_thread(self):
        self.leave_the_lead_behind()
        self.submit().wait(20)
        self.assertEqual(len(self.leads), 0)

    def test_a_lead_that_was_left_behind_is_taken_by_a_loop(self):
        self.leave_the_lead_behind()
        self.awaits()

    def test_a_handler_that_waits_may_interrupt_its_thread_where_that_takes_a_lead(self):
        self.leave_the_lead_behind()
        session, lead, taken = self.session, _waiting._Lead(), []

        def takes():
            with session._stealing:  # as the interrupted thread has it
                taken.append(session._take_lead(lead))

        thread = threading.Thread(target=takes, daemon=True)
        thread.start()
        thread.join(20)
        self.assertEqual(taken, [True])
        self.assertTrue(session._give_lead(lead))

    def test_a_handler_that_waits_takes_the_lead_of_its_thread_and_nobody_elses(self):
        session = self.session
        interrupted, handlers, anothers = (_waiting._Lead() for _ in range(3))
        self.assertTrue(session._take_lead(interrupted))
        self.assertTrue(session._take_lead(handlers))
        self.assertTrue(session._give_lead(handlers))
        thread = threading.Thread(target=session._take_lead, args=[anothers])
        thread.start()
        thread.join(20)
        self.assertFalse(session._give_lead(interrupted))
        self.assertFalse(session._take_lead(handlers))
        self.assertTrue(session._give_lead(anothers))

    def test_a_loop_finds_a_lead_that_is_left_behind_while_it_awaits(self):
        leads = []

        def take():
            leads.append(_waiting._Lead())
            self.assertTrue(self.session._take_lead(leads[0]))

        thread = threading.Thread(target=take)
        thread.start()
        thread.join(20)

        async def one():
            operation = asyncio.ensure_future(self.wait_for(self.submit()))
            while not self.leads.turned_away.is_set():
                await asyncio.sleep(0.001)
            leads.clear()
            await asyncio.wait_for(operation, 20)

        asyncio.run(one())

    def test_a_session_that_another_thread_closes_ends_what_a_loop_is_about_to_await(self):
        watch = self.session._watch

        def closed_meanwhile(loop, native, on):
            self.session._watch = watch
            self.session.close()
            watch(loop, native, on)

        async def one():
            operation = self.endless()
            self.session._watch = closed_meanwhile
            with self.assertRaises(attnd.Disconnected):
                await asyncio.wait_for(self.wait_for(operation), 20)
            self.assertEqual(self.session._watching, set())

        asyncio.run(one())

    def test_a_loop_that_has_nothing_to_await_keeps_nobody_away(self):
        ended, left = threading.Event(), []

        async def idle():
            await self.submit()
            ended.set()
            while not left:
                await asyncio.sleep(0.001)

        thread = threading.Thread(target=lambda: asyncio.run(idle()))
        self.hold(lambda: threading.current_thread() is thread and ended.is_set(), lambda: None)
        thread.start()
        try:
            self.assertTrue(ended.wait(20))
            self.submit().wait(20)  # which hands over to the loop, if that still collects
            self.awaits()
        finally:
            left.append(True)
            thread.join(20)

    def test_a_loop_that_is_turned_away_waits_until_it_is_called(self):
        endless, session, readable = self.endless(), self.session, select.poll()
        readable.register(session, select.POLLIN)
        another = _waiting._Lead()
        another.thread, self.leads[0] = -1, weakref.ref(another)
        self.assertEqual(checked(lib.attnd_arm(session.native())), 0)
        operation = self.submit()
        self.assertTrue(readable.poll(20_000))  # and stays it, until somebody collects

        async def turned_away():
            task = asyncio.create_task(self.wait_for(endless))
            with unittest.mock.patch.object(session, "_readable", wraps=session._readable) as calls:
                for _ in range(100):
                    await asyncio.sleep(0)
                self.assertLess(calls.call_count, 4)
            self.assertEqual((self.leads.pop(0)(), operation.done), (another, False))
            session._hand_over()
            await asyncio.wait_for(self.wait_for(operation), 20)
            endless._end(None)
            await task

        asyncio.run(turned_away())

    def test_a_loop_that_stopped_is_called_no_more(self):
        loop, calls = asyncio.new_event_loop(), []
        self.addCleanup(loop.close)
        loop.run_until_complete(self.wait_for(self.submit()))
        loop.call_soon_threadsafe = lambda *x: calls.append(x)
        for _ in range(20):
            self.submit().wait(20)
        self.assertEqual((calls, self.session._loops), ([], {}))

    def test_a_thread_that_finds_the_lead_given_up_meanwhile_does_not_sleep(self):
        endless = self.endless()

        def leaves():
            with self.assertRaises(TimeoutError):
                endless.wait(0)

        self.leads.leaves = thread = threading.Thread(target=leaves)
        self.hold(lambda: threading.current_thread() is thread, lambda: None)
        with unittest.mock.patch("attnd._waiting._FOLLOW_S", 20):
            thread.start()
            self.assertTrue(self.collecting.wait(20))
            operation = self.submit()
            operation.wait(10)


if __name__ == "__main__":
    unittest.main()
