"""Calls of the whole package in any order, with arguments from the edges of their types.

hypothesis chooses which kinds of calls come and how many, and a seed their order and arguments.
Each argument is drawn with what it means: a value in one of many guises, or nothing that fits. So
the outcome of each call is known. A call whose arguments fit succeeds, and what it computes is
right in float64. One with an argument that does not fit raises an attnd.Error, a TypeError or a
ValueError that names that argument. A call that hangs ends the program with a traceback. At the end
of each example no lease, descriptor or operation is left.

$ATTND_PROPERTY_S says for how long it goes on (1 s); $ATTND_PROPERTY_SEED where it begins.
"""

import asyncio
import collections
import contextlib
import faulthandler
import gc
import os
import random
import re
import time
import unittest

import numpy as np

import attnd
from reference import attention as exact
from service import service

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError:
    hypothesis = None

SECONDS = float(os.environ.get("ATTND_PROPERTY_S", "1"))
SEED = int(os.environ.get("ATTND_PROPERTY_SEED", "0"))
HANG_S = 60
PAGES, SIZE, HEADS, HEADS_KV, DIM, LAYERS = 24, 4, 2, 1, 16, 2
WRAPS = 2**32
BAD = object()  # the argument means nothing


def guise_of_integer(draw, n):
    """(argument, meaning) for a whole number."""
    kinds = (
        lambda: n, lambda: np.int64(n), lambda: np.array(n), lambda: np.int32(n),
    )  # fmt: skip
    return draw.choice(kinds)()


def bad_integer(draw, n):
    return draw.choice((
        n + WRAPS, n - WRAPS, n + 0.5, float(n), float("nan"), True, np.bool_(True), str(n), [n],
        np.array([n, n]), np.float64(n), 2**64 + n, -1 - n - 2**31, 1j, b"1", np.int64(n + WRAPS),
        object(), {},
    ))  # fmt: skip


def guise_of_real(draw, x):
    kinds = (lambda: x, lambda: np.float64(x), lambda: np.array(x))
    if float(x).is_integer():
        kinds += (lambda: int(x), lambda: np.int8(x))
    return draw.choice(kinds)()


def bad_real(draw):
    return draw.choice((
        float("nan"), float("inf"), -float("inf"), -1.0, 1e39, "1", True, [1.0], 1j, object(),
        np.array([1.0, 2.0]), np.float32("nan"), -1e-30, b"1",
    ))  # fmt: skip


def guise_of_array(draw, values):
    """An array of whole numbers in one of many forms."""
    values = [int(x) for x in values]
    kind = draw.randrange(12)
    if kind < 3:
        return (list(values), tuple(values), [np.int64(x) for x in values])[kind]
    dtype = draw.choice((np.int32, np.int64, np.int16, np.uint32, np.uint8, ">i4", np.float64,
        np.float32, ">i8"))  # fmt: skip
    array = np.array(values, dtype)
    if kind == 3:
        array.flags.writeable = False
    elif kind == 4:
        array = np.repeat(array, 2)[::2]
    elif kind == 5:
        array = array[::-1].copy()[::-1]
    elif kind == 6:
        array = array[:, None]
    elif kind == 7 and len(values):
        array = array[None]
    elif kind == 8:
        array = np.frombuffer(b"\0" + array.tobytes(), array.dtype, offset=1)  # not aligned
    return array


def bad_array(draw, values):
    """As many values, of which one does not fit; or what is no array of them."""
    values, at = [int(x) for x in values], draw.randrange(max(len(values), 1))
    if not values or draw.random() < 0.3:
        return draw.choice((None, 5, "12", b"12", {1, 2}, np.array(5), object(), np.zeros((2, 2)),
            np.array(["1"] * 2), np.array([1j] * 2), np.array([True, False])))  # fmt: skip
    wrong = draw.choice((
        values[at] + WRAPS, values[at] - WRAPS, values[at] + 0.5, float("nan"), float("inf"),
        2**31, -(2**31) - 1, 2**64,
    ))  # fmt: skip
    changed = [*values[:at], wrong, *values[at + 1 :]]
    if draw.random() < 0.5:
        return changed
    return np.array(changed)


class Refused(Exception):
    """A call was refused, as it had to be."""


class Machine:
    """A session with a pool of the engine's pages, a leased one and a namespace, and what they are
    known to hold."""

    def __init__(self, path, draw):
        self.path, self.draw, self.calls = path, draw, 0
        self.open()

    def open(self):
        self.session = attnd.Session(self.path, "property")
        self.pool = attnd.PagePool(
            self.session, LAYERS, PAGES, SIZE, HEADS_KV, DIM, leased=False
        )
        self.planes = [[x.numpy() for x in self.pool.kv_cache(i)] for i in range(LAYERS)]
        fill = np.random.default_rng(self.draw.getrandbits(32))
        for plane in sum(self.planes, []):
            plane[:] = fill.normal(size=plane.shape)
        self.fill = fill
        self.attention, self.plan_of = attnd.BatchAttention(self.pool), None
        self.again = None  # q of the run before, and its values
        self.leased = attnd.PagePool(self.session, 1, PAGES, SIZE, HEADS_KV, DIM)
        self.leases, self.tickets = collections.Counter(), []
        self.cache = attnd.PrefixCache(self.leased)
        self.flying = []

    def close(self):
        for operation in self.flying:
            operation.wait(HANG_S)
        pages = list(self.leases.elements())
        if pages:
            self.leased.free_pages(pages)
        for ticket, _ in self.tickets:
            self.leased.free_pages(self.leased.claim_pages(ticket))
        every = self.leased.alloc_pages(PAGES)  # no lease was left
        self.leased.free_pages(every)
        self.attention.close()
        self.session.close()
        assert not self.session._pending, "operations are left"
        for name in ("attention", "pool", "leased", "cache", "planes", "flying", "session", "again"):
            delattr(self, name)

    # ---- outcomes ----

    def call(self, function, wrong=None):
        """A call with arguments that fit, or where @wrong does not."""
        self.calls += 1
        if wrong is None:
            return function()
        try:
            function()
        except (attnd.Error, TypeError, ValueError) as why:
            names = wrong if isinstance(wrong, tuple) else (wrong,)
            said = f"{why} {getattr(why, 'field', '')}"
            assert any(re.search(rf"\b{name}\b", said) for name in names), (wrong, repr(why))
            raise Refused from None
        raise AssertionError(f"{wrong} was taken")

    def arguments(self, fitting, chance=0.3):
        """{name: argument} of {name: (meaning, kind)}, and the one that does not fit, or None."""
        draw, wrong = self.draw, None
        if draw.random() < chance:
            wrong = draw.choice(list(fitting))
        made = {}
        for name, (meaning, kind) in fitting.items():
            if kind is int:
                make = bad_integer if name == wrong else guise_of_integer
            elif kind is list:
                make = bad_array if name == wrong else guise_of_array
            elif name == wrong:
                made[name] = bad_real(draw)
                continue
            else:
                make = guise_of_real
            made[name] = make(draw, meaning)
        return made, wrong

    # ---- attention ----

    def plan(self):
        draw = self.draw
        requests = draw.randrange(1, 4)
        kv_len = [draw.choice((0, 1, 3, SIZE, SIZE + 1, 4 * SIZE)) for _ in range(requests)]
        qo_len = [draw.randrange(0, min(n, 5) + 1) for n in kv_len]
        counts = [-(-n // SIZE) for n in kv_len]
        pages = draw.sample(range(PAGES), sum(counts))
        starts = lambda x: [0, *np.cumsum(x).tolist()]  # noqa: E731
        arrays = {
            "qo_indptr": (starts(qo_len), list), "kv_indptr": (starts(counts), list),
            "kv_indices": (pages, list),
            "kv_last_page_len": ([(n - 1) % SIZE + 1 if n else 1 for n in kv_len], list),
        }  # fmt: skip
        options = {"num_qo_heads": (HEADS, int)}
        for name, meanings, kind in (
            ("window_left", (0, 1, 3, 100), int), ("reserve_pages", (0, 1, 3), int),
            ("sm_scale", (0.0, 0.25, 1.0, 1e-300), float), ("logits_soft_cap", (0.0, 0.5), float),
            ("k_scale", (0.0, 0.5, 1.0), float), ("v_scale", (0.0, 2.0), float),
            ("q_scale", (0.0, 0.5), float), ("num_kv_heads", (HEADS_KV,), int),
            ("head_dim_qk", (DIM,), int), ("page_size", (SIZE,), int),
            ("fixed_split_size", (16, 64), int),
        ):  # fmt: skip
            if draw.random() < 0.15:
                options[name] = draw.choice(meanings), kind
        causal, sinks = draw.random() < 0.7, None
        made, wrong = self.arguments({**arrays, **options})
        if draw.random() < 0.2:
            sinks = made["sinks"] = self.fill.normal(size=HEADS).astype(np.float32)
        made["causal"] = draw.choice((causal, np.bool_(causal), int(causal)))
        made["wait"] = draw.random() < 0.5
        names = wrong
        if wrong in arrays:  # the service may see first that another does not go with it
            names = wrong, "pages" if wrong == "kv_indices" else wrong
        self.call(lambda: self.attention.plan(**made), names)
        meant = {name: meaning for name, (meaning, _) in options.items()}
        self.plan_of = {
            "qo_len": qo_len, "kv_len": kv_len, "causal": causal, "sinks": sinks, "meant": meant,
            "lists": [pages[a:b] for a, b in zip(starts(counts), starts(counts)[1:])],
            "room": [n * SIZE for n in counts],
        }  # fmt: skip

    def expected(self, q, layer):
        plan, outs, row = self.plan_of, [], 0
        meant = plan["meant"]
        k, v = (x.astype(float) for x in self.planes[layer])
        scale = meant.get("sm_scale", DIM**-0.5)
        scale *= meant.get("q_scale", 1.0) * meant.get("k_scale", 1.0)
        for rows, tokens, pages in zip(plan["qo_len"], plan["kv_len"], plan["lists"]):
            keys, values = (x[pages].reshape(-1, HEADS_KV, DIM)[:tokens] for x in (k, v))
            outs.append(exact(
                q[row : row + rows], keys, values, plan["causal"], scale,
                meant.get("window_left", -1), meant.get("logits_soft_cap", 0), plan["sinks"],
            ))  # fmt: skip
            row += rows
        o, lse = (np.concatenate(x) for x in zip(*outs))
        return o * meant.get("v_scale", 1.0), lse

    def rows(self):
        return sum(self.plan_of["qo_len"])

    def tensor(self, shape):
        """q, k or v of random values, in memory of the session or not, strided or not."""
        values = self.fill.normal(size=shape).astype(np.float16)
        kind = self.draw.randrange(4)
        if kind == 0:
            lent = self.session.empty(shape)
            lent.numpy()[:] = values
            return lent, values
        if kind == 1:
            return np.repeat(values, 2, axis=1)[:, ::2], values
        if kind == 2:
            return np.asfortranarray(values), values
        return values, values

    def run(self):
        """Or two, of which the second may be of the same q when what the first wrote is gone."""
        self.run_once()
        if self.draw.random() < 0.4:
            self.run_once()

    def run_once(self):
        draw = self.draw
        if self.plan_of is None:
            self.call(lambda: self.attention.run(None, 0), "plan")
            return
        layer = draw.randrange(LAYERS)
        given, q = self.tensor((self.rows(), HEADS, DIM))
        if self.again is not None and self.again[1].shape == q.shape and draw.random() < 0.5:
            given, q = self.again
        self.again = given, q
        made, wrong = self.arguments({"kv_cache": (layer, int)}, 0.2)
        if wrong is None and draw.random() < 0.3:
            made["kv_cache"] = draw.choice((
                self.pool.kv_cache(layer), tuple(self.planes[layer]),
                tuple(self.pool.kv_cache(layer)),
            ))  # fmt: skip
        if wrong is None and draw.random() < 0.15:
            wrong, given = "q", draw.choice((None, q[:-1] if len(q) else q[None], q.astype(float),
                q.astype(np.int32), [1], "q", q[..., :-1], q[:, :, None]))  # fmt: skip
        shape, lse = (self.rows(), HEADS, DIM), draw.choice((True, True, False, None, "f"))
        out = draw.choice((lambda: None, lambda: self.session.empty(shape),
            lambda: np.zeros(shape, np.float16)))()  # fmt: skip
        if lse == "f":
            lse = self.session.empty(shape[:2], "float32")
        o, sums = self.call(lambda: self.attention.run(given, **made, out=out, lse=lse), wrong)
        assert out is None or o is out, "out is what was given"
        wanted, of_rows = self.expected(q, layer)
        np.testing.assert_allclose(np.asarray(o, float), wanted, rtol=2e-3, atol=2e-3)
        if sums is None:
            assert lse is None or lse is False, "lse was asked for"
        else:
            np.testing.assert_allclose(np.asarray(sums, float), of_rows, rtol=2e-3, atol=2e-3)

    def submit(self):
        draw = self.draw
        if self.plan_of is None:
            return
        shape = self.rows(), HEADS, DIM
        q, out = self.session.empty(shape), self.session.empty(shape)
        q.numpy()[:] = self.fill.normal(size=shape)
        made, wrong = self.arguments({"timeout_us": (0, int), "kv_cache": (0, int)}, 0.2)
        kept = out
        if wrong is None and draw.random() < 0.1:
            wrong, out = "out", draw.choice((np.zeros(shape, np.float16), None, [1], q))
            if out is q and not self.rows():
                wrong, out = None, kept
        if out is q:  # the service sees it, and says so when it ends
            operation = self.call(lambda: self.attention.submit(q, out=out, **made))
            self.call(lambda: operation.wait(HANG_S), ("o", "q", "out"))
            return
        operation = self.call(lambda: self.attention.submit(q, out=out, **made), wrong)
        how = draw.randrange(5)
        if how == 0:
            self.flying.append(operation)
            return
        if how == 1:

            async def wait():
                await operation

            asyncio.run(asyncio.wait_for(wait(), HANG_S))
        elif how == 2:

            async def leave():
                async def wait():
                    await operation

                task = asyncio.create_task(wait())
                await asyncio.sleep(0)
                if draw.random() < 0.5:
                    task.cancel()

            asyncio.run(leave())
            return
        elif how == 3:
            self.call(lambda: operation.wait(draw.choice((-1, float("nan"), "1", True))), "timeout")
        operation.wait(guise_of_real(draw, 60))
        wanted, _ = self.expected(q.numpy(), 0)
        np.testing.assert_allclose(out.numpy().astype(float), wanted, rtol=2e-3, atol=2e-3)

    def append(self):
        if self.plan_of is None or self.flying:
            return
        shape, layer = (self.rows(), HEADS_KV, DIM), self.draw.randrange(LAYERS)
        (k, of_k), (v, of_v) = self.tensor(shape), self.tensor(shape)
        made, wrong = self.arguments({"kv_cache": (layer, int)}, 0.2)
        self.call(lambda: self.attention.append(k, v, **made), wrong)
        self.call(lambda: self.attention.run(np.zeros((self.rows(), HEADS, DIM), np.float16), 0))
        row, plan = 0, self.plan_of
        for rows, tokens, pages in zip(plan["qo_len"], plan["kv_len"], plan["lists"]):
            for i in range(rows):
                position = tokens - rows + i
                page, at = pages[position // SIZE], position % SIZE
                assert (self.planes[layer][0][page, at] == of_k[row]).all(), "K is stored"
                assert (self.planes[layer][1][page, at] == of_v[row]).all(), "V is stored"
                row += 1

    def advance(self):
        plan = self.plan_of
        if plan is None:
            self.call(lambda: self.attention.advance([1]), "plan")
            return
        kv_len = [
            self.draw.randrange(rows, room + 1) for rows, room in zip(plan["qo_len"], plan["room"])
        ]
        made, wrong = self.arguments({"kv_len": (kv_len, list)})
        if wrong is None and self.draw.random() < 0.2:
            wrong, made = "kv_len", {"kv_len": self.draw.choice((kv_len[:-1], [*kv_len, 1], []))}
        elif wrong is None and self.draw.random() < 0.2:
            wrong = self.draw.choice(("page_indptr", "page_indices"))
            made["page_indptr"], made["page_indices"] = {
                "page_indptr": ([0] * len(kv_len), []), "page_indices": (
                    [0] * len(kv_len) + [1], []),
            }[wrong]  # fmt: skip
            wrong = "page_indptr", "page_indices"
        self.call(lambda: self.attention.advance(**made), wrong)
        plan["kv_len"] = kv_len

    # ---- leases ----

    def alloc(self):
        free = PAGES - len(set(self.leases).union(*(pages for _, pages in self.tickets)))
        count = self.draw.randrange(0, 6)
        made, wrong = self.arguments({"count": (count, int)})
        if wrong is None and count > free:
            wrong = "pages"
        pages = self.call(lambda: self.leased.alloc_pages(**made), wrong)
        assert not set(pages.tolist()) & set(self.leases), "a page that somebody has"
        self.leases.update(pages.tolist())

    def some_leased(self):
        pages = list(self.leases.elements())
        return self.draw.sample(pages, self.draw.randrange(0, len(pages) + 1))

    def leases_call(self):
        what = self.draw.choice(("share_pages", "free_pages", "offer_pages"))
        pages = self.some_leased()
        made, wrong = self.arguments({"pages": (pages, list)})
        if wrong is None and pages and self.draw.random() < 0.2:
            free = sorted(set(range(PAGES)) - set(self.leases))
            if free:
                made, wrong = {"pages": [*pages, free[0]]}, ("pages", "page")
        if wrong is None and what == "offer_pages" and not pages:
            return
        found = self.call(lambda: getattr(self.leased, what)(**made), wrong)
        if what == "share_pages":
            self.leases.update(pages)
        else:
            self.leases.subtract(pages)
            self.leases = +self.leases
        if what == "offer_pages":
            self.tickets.append((found, pages))

    def claim(self):
        if self.tickets and self.draw.random() < 0.7:
            ticket, pages = self.tickets.pop(self.draw.randrange(len(self.tickets)))
            found = self.call(lambda: self.leased.claim_pages(ticket))
            assert found.tolist() == pages, "a ticket's pages in their order"
            self.leases.update(pages)
            return
        bad = self.draw.choice((b"", b"x" * 15, "x" * 16, None, 5, [0] * 16))
        self.call(lambda: self.leased.claim_pages(bad), "ticket")

    # ---- prefixes, memory, sessions ----

    def keys(self):
        tokens = [self.draw.randrange(-5, 100) for _ in range(self.draw.randrange(0, 12))]
        plain = [x for x in tokens if x >= 0]
        made, wrong = self.arguments({"tokens": (plain, list)})
        found = self.call(lambda: self.cache.keys(**made), wrong)
        again = self.call(lambda: self.cache.keys(np.array(plain, np.int32)))
        assert found.tolist() == again.tolist() and len(found) == len(plain) // SIZE

    def match(self):
        keys = self.cache.keys(list(range(8)))
        made, wrong = self.arguments({"lane": (0, int), "timeout_us": (0, int)}, 0.4)
        if wrong is None and self.draw.random() < 0.3:
            wrong, keys = "keys", self.draw.choice((None, keys[:, :1], keys + 0.5, -1, "keys"))
        operation = self.call(lambda: self.cache.match(keys, **made), wrong)
        if self.draw.random() < 0.8:
            assert operation.wait(HANG_S).blocks == 0

    def memory(self):
        shape = [self.draw.randrange(0, 5) for _ in range(self.draw.randrange(1, 4))]
        made, wrong = {"shape": self.draw.choice((shape, tuple(shape), np.array(shape)))}, None
        bad = self.draw.choice((None, None, (1.5,), (-1,), "2", (True,), (2**62, 2**62)))
        if bad is not None:
            made, wrong = {"shape": bad}, ("shape", "nbytes")
        tensor = self.call(lambda: self.session.empty(dtype="float32", **made), wrong)
        assert tensor.numpy().shape == tuple(shape) and not tensor.numpy().any()

    def anew(self):
        """Objects closed at any time."""
        what = self.draw.randrange(4)
        if what == 0:
            self.attention.close()
            for call in (lambda: self.attention.plan([0], [0], [], [], HEADS),
                         lambda: self.attention.run(None, 0)):  # fmt: skip
                with contextlib.suppress(Refused):
                    self.call(call, "closed")
        if what == 1:
            self.close()
            self.open()
            return
        for operation in self.flying:
            operation.wait(HANG_S)
        self.flying = []
        self.attention, self.plan_of = attnd.BatchAttention(self.pool), None
        if what == 2:
            gc.collect()


CALLS = (
    ["plan"] * 6 + ["run"] * 6 + ["submit"] * 4 + ["append"] * 2 + ["advance"] * 4 + ["alloc"] * 3
    + ["leases_call"] * 3 + ["claim", "keys", "match", "memory", "anew"]
)  # fmt: skip


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@unittest.skipIf(hypothesis is None, "no hypothesis")
class PropertyTest(unittest.TestCase):
    def test_each_call_is_right_or_refused_by_name(self):
        total, end = 0, time.monotonic() + SECONDS

        def example(seed, names, count):
            nonlocal total
            faulthandler.dump_traceback_later(HANG_S + 30, exit=True)
            before = descriptors()
            machine = Machine(path, random.Random(seed))
            try:
                for name in machine.draw.choices(names, k=count):
                    try:
                        getattr(machine, name)()
                    except Refused:
                        pass
                machine.close()
            except BaseException:
                print(f"seed {seed}, call {machine.calls}: {name}")
                machine.session.close()
                vars(machine).clear()  # the exception holds it, and it would hold its session
                raise
            total += machine.calls
            machine = None
            gc.collect()
            self.assertLessEqual(descriptors(), before, "descriptors are left")
            faulthandler.cancel_dump_traceback_later()

        with service() as path:
            rounds = 0
            while rounds == 0 or time.monotonic() < end:
                run = hypothesis.given(
                    st.integers(0, 2**32),
                    st.lists(st.sampled_from(CALLS), min_size=8, max_size=40),
                    st.integers(1, 400),
                )(lambda seed, names, count: example(seed, names, count))
                run = hypothesis.settings(
                    max_examples=25, deadline=None, database=None,
                    suppress_health_check=list(hypothesis.HealthCheck),
                )(run)
                hypothesis.seed(SEED + rounds)(run)()
                rounds += 1
        print(f"python.calls_fuzzed {total} calls, first seed {SEED}, {rounds} rounds")


if __name__ == "__main__":
    unittest.main()
