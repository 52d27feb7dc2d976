"""The prefix tree of a pool: what one session publishes, another finds."""

import asyncio
import ctypes as c
import unittest

import numpy as np

import attnd
from service import ServiceTest

PAGES, PAGE, HEADS, HEADS_KV, DIM = 32, 16, 4, 2, 64
PROMPT = np.arange(5 * PAGE + 3, dtype=np.int32)


class PrefixTest(ServiceTest):
    def setUp(self):
        super().setUp()
        self.pool = attnd.PagePool(self.session, 1, PAGES, PAGE, HEADS_KV, DIM)
        self.cache = attnd.PrefixCache(self.pool)

    def other(self, writable=True):
        """Another engine: its session, and its view of the pool and of the namespace."""
        session = attnd.Session(self.path, "other")
        self.addCleanup(session.close)
        pool = attnd.PagePool.attach(session, self.pool.share(writable=True))
        return session, attnd.PrefixCache.attach(pool, self.cache.share(writable))

    def published(self, keys):
        pages = self.pool.alloc_pages(len(keys))
        self.assertEqual(self.cache.publish(keys, pages).wait().taken, len(keys))
        return pages

    def test_keys_are_chained_and_the_namespaces_own(self):
        keys = self.cache.keys(PROMPT)
        self.assertEqual(keys.shape, (5, 2))
        np.testing.assert_array_equal(self.cache.keys(PROMPT[: 3 * PAGE + 1]), keys[:3])
        changed = PROMPT.copy()
        changed[PAGE] += 1
        same = (self.cache.keys(changed) == keys).all(1)
        self.assertEqual(same.tolist(), [True, False, False, False, False])
        self.assertFalse((self.cache.keys(PROMPT, extra=b"adapter") == keys).all(1).any())
        self.assertFalse((attnd.PrefixCache(self.pool).keys(PROMPT) == keys).all(1).any())
        _, other = self.other()
        np.testing.assert_array_equal(other.keys(PROMPT), keys)

    def test_what_one_session_computed_another_attends_to(self):
        draw = np.random.default_rng(1)
        k, v = (draw.normal(size=(4 * PAGE, HEADS_KV, DIM)).astype(np.float16) for _ in range(2))
        q = draw.normal(size=(4 * PAGE, HEADS, DIM)).astype(np.float16)
        keys = self.cache.keys(PROMPT)[:4]
        self.assertEqual(self.cache.match(keys).wait()[:2], (0, "missing"))
        self.assertEqual(self.cache.claim(keys).wait().blocks, 4)
        pages = self.pool.alloc_pages(4)
        attention = attnd.BatchAttention(self.pool)
        attention.plan([0, 4 * PAGE], [0, 4], pages, [PAGE], HEADS, causal=True)
        attention.append(k, v, 0)
        publish = self.cache.publish(keys, pages, lane=attention.lane)
        wanted, _ = attention.run(q, 0)
        self.assertEqual(publish.wait().taken, 4)

        session, cache = self.other()
        found = cache.match(keys).wait()
        self.assertEqual(found[:3], (4, "end", 4))
        np.testing.assert_array_equal(found.pages, pages)
        self.session.close()  # pages outlive the engine that published them
        theirs = attnd.BatchAttention(cache.pool)
        theirs.plan([0, 1], [0, 4], found.pages, [PAGE], HEADS, causal=True)
        got, _ = theirs.run(q[-1:], 0)
        np.testing.assert_allclose(got[0], wanted[-1], atol=1e-3)
        cache.pool.free_pages(found.pages)
        with self.assertRaises(attnd.NotLeased):
            cache.pool.free_pages(found.pages)

    def test_a_match_waits_for_a_claim_and_learns_its_end(self):
        keys = self.cache.keys(PROMPT)
        session, cache = self.other()
        self.assertEqual(self.cache.claim(keys).wait().blocks, 5)
        self.assertEqual(cache.match(keys).wait().end, "claimed")
        with self.assertRaises(attnd.Timeout):
            cache.match(keys, wait=True, timeout_us=1000).wait()
        waits = cache.match(keys, wait=True)
        pages = self.published(keys[:2])
        self.assertFalse(waits.done)
        self.assertEqual(self.cache.abandon(keys).wait().blocks, 3)
        found = waits.wait(20)
        self.assertEqual(found[:2], (2, "abandoned"))
        np.testing.assert_array_equal(found.pages, pages)

    def test_a_part_behind_a_parent(self):
        keys = self.cache.keys(PROMPT)
        self.published(keys[:2])
        pages = self.pool.alloc_pages(3)
        self.assertEqual(self.cache.publish(keys[2:], pages, keys[1]).wait().taken, 3)
        self.assertEqual(self.cache.match(keys[3:], keys[2]).wait().blocks, 2)
        self.assertEqual(self.cache.match(keys).wait().blocks, 5)

    def test_pins(self):
        keys = self.cache.keys(PROMPT)
        self.pool.free_pages(self.published(keys))
        self.assertEqual(self.cache.pin(keys[:2]).wait().blocks, 2)
        taken = self.pool.alloc_pages(PAGES - 2)  # evicts what is not pinned
        self.assertEqual(self.cache.match(keys).wait().blocks, 2)
        self.assertEqual(self.cache.unpin(keys[:2]).wait().blocks, 2)
        self.pool.free_pages(taken)

    def test_refusals(self):
        keys = self.cache.keys(PROMPT)
        with self.assertRaisesRegex(ValueError, "5 blocks have 5 pages"):
            self.cache.publish(keys, [1])
        with self.assertRaises(attnd.NotLeased) as refused:
            self.cache.publish(keys, [0, 1, 2, 3, 4]).wait()
        self.assertEqual(refused.exception.field, "pages")
        _, reader = self.other(writable=False)
        self.assertFalse(reader.writable)
        with self.assertRaises(attnd.Permission):
            reader.claim(keys).wait()
        with self.assertRaises(attnd.Unknown):
            attnd.PrefixCache.attach(self.pool, bytes(16))
        self.cache.release()
        with self.assertRaisesRegex(ValueError, "released"):
            self.cache.match(keys).wait()

    def test_a_publish_that_is_refused_has_published_nothing(self):
        keys, pages = self.cache.keys(PROMPT), self.pool.alloc_pages(5)
        for wrong in (pages[[0, 1, 2, 3, 0]], pages[[0, 1, 2, 2, 4]]):
            with self.assertRaises(attnd.Invalid):
                self.cache.publish(keys, wrong).wait()
            with self.assertRaises(attnd.Invalid):
                self.cache.publish(keys[[0, 1, 2, 3, 1]], pages).wait()
            self.assertEqual(self.cache.match(keys).wait().blocks, 0)
        self.assertEqual(self.cache.publish(keys, pages).wait()[:4], (5, "end", 0, 5))

    def test_operations_are_awaited(self):
        keys = self.cache.keys(PROMPT)

        async def both():
            await self.cache.claim(keys)
            wait = self.cache.match(keys, wait=True)
            await self.cache.publish(keys, self.pool.alloc_pages(5))
            return await wait

        self.assertEqual(asyncio.run(both()).blocks, 5)

    def test_a_pool_goes_with_its_last_namespace(self):
        handle, info = self.pool.handle, attnd._abi.PoolInfo()

        def there():
            native = self.session.native()
            return attnd._library.lib.attnd_pool_info(native, handle, c.byref(info)) == 0

        self.pool.release()
        self.pool = None
        self.assertTrue(there())
        self.cache = None
        self.assertFalse(there())


if __name__ == "__main__":
    unittest.main()
