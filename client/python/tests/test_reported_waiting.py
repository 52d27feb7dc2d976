"""Reported: event loops, threads and children that share a session."""

import asyncio
import os
import sys
import threading
import time
import unittest

import numpy as np

import attnd
from reported import DIM, HEADS, SIZE, ReportedTest


class WaitingTest(ReportedTest):
    def test_a_loop_that_ends_with_an_await_leaves_the_next_loops_alone(self):
        large, small = attnd.BatchAttention(self.pool), self.attention
        large.plan([0, 2048], [0, 64], np.arange(64), [8], 64, wait=True)
        small.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        big = [self.session.empty((2048, 64, DIM)) for _ in range(2)]
        q, o = (self.session.empty((2, HEADS, DIM)) for _ in range(2))

        async def wait(operation):
            await operation

        async def leave():
            asyncio.create_task(wait(large.submit(big[0], 0, big[1])))
            await asyncio.sleep(0.001)

        async def cancel():
            task = asyncio.create_task(wait(large.submit(big[0], 0, big[1])))
            await asyncio.sleep(0.005)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        for ends in (leave, cancel):
            asyncio.run(ends())
            small.run(q, 0, o)  # a blocking call goes on
            for _ in range(2):  # and so do later loops
                begin = time.monotonic()
                asyncio.run(asyncio.wait_for(wait(small.submit(q, 0, o)), 20))
                self.assertLess(time.monotonic() - begin, 15)
        with self.assertRaises(asyncio.TimeoutError):
            asyncio.run(asyncio.wait_for(wait(large.submit(big[0], 0, big[1])), 0.001))
        asyncio.run(asyncio.wait_for(wait(small.submit(q, 0, o)), 20))
        self.assertEqual(self.session._loops, {})

    def test_a_loop_that_was_left_open_gives_the_session_to_the_next(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, o = (self.session.empty((2, HEADS, DIM)) for _ in range(2))

        async def wait(operation):
            await operation

        loops = [asyncio.new_event_loop() for _ in range(2)]
        for loop in (*loops, loops[0]):
            loop.run_until_complete(
                asyncio.wait_for(wait(self.attention.submit(q, 0, o)), 20)
            )
        for loop in loops:
            loop.close()

    def test_loops_of_two_threads_and_a_blocking_thread_each_get_their_own(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, lock, failures = self.session.empty((2, HEADS, DIM)), threading.Lock(), []

        def submit(out):
            with lock:
                return self.attention.submit(q, 0, out)

        async def awaits(out):
            for _ in range(60):
                await asyncio.wait_for(self.wait_for(submit(out)), 20)

        def work(blocking):
            out = self.session.empty((2, HEADS, DIM))
            try:
                if not blocking:
                    asyncio.run(awaits(out))
                for _ in range(60 if blocking else 0):
                    submit(out).wait(20)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(x,)) for x in (False, False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual((failures, [x for x in threads if x.is_alive()]), ([], []))

    def test_loops_that_end_while_others_wait_leave_nobody_behind(self):
        self.attention.plan([0, 2], [0, 2], [0, 1], [4], HEADS, causal=True, wait=True)
        q, lock, failures = self.session.empty((2, HEADS, DIM)), threading.Lock(), []
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)  # threads meet in the middle of things

        async def awaits(out):
            with lock:
                operation = self.attention.submit(q, 0, out)
            await asyncio.wait_for(self.wait_for(operation), 20)

        def work():
            out = self.session.empty((2, HEADS, DIM))
            try:
                for _ in range(300):
                    asyncio.run(awaits(out))
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual((failures, [x for x in threads if x.is_alive()]), ([], []))

    async def wait_for(self, operation):
        await operation

    def test_every_call_of_a_child_says_forked_whatever_it_is_given(self):
        pool = attnd.PagePool(self.session, 1, 16, SIZE, 1, DIM)
        pages, cache = pool.alloc_pages(2), attnd.PrefixCache(pool)
        attention, tensor = attnd.BatchAttention(pool), self.session.empty((1, 1, DIM))
        attention.plan([0, 1], [0, 1], pages[:1], [3], 1, wait=True)
        operation = attention.submit(tensor, 0, self.session.empty((1, 1, DIM)))
        keys = cache.keys(np.arange(SIZE))
        calls = [
            lambda: attention.plan(None, 5, "x", [], -1), lambda: attention.run(None, "x"),
            lambda: attention.submit(None, -1, None), lambda: attention.append(1, 2, 3),
            lambda: attention.advance(None), lambda: attention.merge_state(1, 2, 3, 4),
            lambda: pool.alloc_pages(-1), lambda: pool.share_pages("x"), pool.release,
            lambda: pool.free_pages(None), lambda: pool.offer_pages(pages, -1),
            lambda: pool.claim_pages("x"), lambda: pool.share(5), lambda: pool.kv_cache(-1),
            lambda: attnd.PagePool(self.session, "x", 0, 0, 0, 0),
            lambda: attnd.PagePool.attach(self.session, 5),
            lambda: attnd.PagePool.from_tensors(self.session, 5),
            lambda: attnd.BatchAttention(pool, -1), lambda: attnd.PrefixCache(pool, -1),
            lambda: attnd.PrefixCache.attach(pool, 5), lambda: cache.keys("x"),
            lambda: cache.match(None), lambda: cache.publish(keys, "x"), lambda: cache.share(7),
            lambda: cache.claim(3), cache.release, lambda: self.session.empty(-1),
            lambda: self.session.memory("x"), lambda: self.session.info, self.session.fileno,
            lambda: self.session.tables, lambda: operation.wait(-1), operation.cancel,
            tensor.numpy, tensor.data_ptr, lambda: np.asarray(tensor),
        ]  # fmt: skip
        child = os.fork()
        if child == 0:
            wrong = 255
            try:
                for i, call in enumerate(calls):
                    wrong = i + 1
                    try:
                        call()
                        os._exit(wrong)
                    except attnd.Forked:
                        pass
                os._exit(0)
            finally:
                os._exit(wrong)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        operation.wait(20)


if __name__ == "__main__":
    unittest.main()
