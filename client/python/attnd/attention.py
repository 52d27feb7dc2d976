"""BatchAttention: plan a batch once, run it layer after layer, with FlashInfer's names.

Where q lies in memory of the session, or on the GPU, nothing is copied. Other host tensors are
copied into memory of the session and back, which is for convenience and tests.

On the host, and for `submit()`, a run is an operation of the ring: it completes, and then `out` is
there. On the GPU `run()` is one launch in the current stream: the kernel that attends, or, where
the service executes, one of one thread that rings it and waits. The call returns at once, a CUDA
graph may hold it, and what went wrong is in `lane_error()`. A plan is an operation in either case.
What it refuses, the next run says.
"""

from __future__ import annotations

import ctypes as c
import threading
import typing
import weakref

import numpy

from . import _abi, _convert, _csr, _library, _planned
from ._library import lib
from ._on_stream import OnStream
from ._prepared import Prepared
from ._settings import Settings, same
from ._tensors import Tensors
from ._variant import mask_of, variant_of
from ._waiting import Operation, Refusal
from .errors import Error, NoMemory, NoSpace, Range, checked
from .memory import Tensor
from .pool import KVCache

if typing.TYPE_CHECKING:
    from ._types import Array, DType, Ints, Layer, Levels, Strides
    from .pool import PagePool


def _room(wanted, have):
    """The next power of two: a batch that grows token by token does not ask every time."""
    return max(have, 1 << max(wanted - 1, 0).bit_length())


def _holds(capacity, room):
    """Whether a plan holds a batch. What it has for splits depends on the shortest of them."""
    split = not room[4] or 0 < capacity[4] <= room[4]
    return split and all(have >= wanted for have, wanted in zip(capacity[:4], room))


class BatchAttention(OnStream):
    """Attention over batches of requests on one pool. Any threads may run and append what one of
    them has planned; plan() and advance() come from one thread at a time."""

    def __init__(self, pool: PagePool, lane: int = 0) -> None:
        pool._native()
        lane = _convert.integer("lane", lane, 0, _abi.LANES - 1)
        self.pool, self.session, self.lane = pool, pool.session, lane
        self._now = self._batch = self._levels = None  # _now: the batch that runs are of
        self._spare = None  # (plan, capacity, heads) of a first batch that was refused
        self._said, self._strided = None, False  # the last plan()'s options; has _batch strides?
        self._tensors, self._one = Tensors(pool), threading.RLock()  # who fills in what is below
        self._prepared = Prepared(pool.session, lane)
        self._refusal = Refusal()
        self._number = self.session.listen(self._refusal)
        self._quiet = c.byref(
            _abi.Op(user_data=self._number, lane=lane, flags=_abi.SKIP_SUCCESS)
        )
        self._op_set = _abi.Op(lane=lane, flags=_abi.SKIP_SUCCESS)  # of the batch that is there
        self._quiet_set = c.byref(self._op_set)
        self._waited = _abi.Op(lane=lane)  # submit() numbers it, and gives it, under one lock
        self._waited_ref = c.byref(self._waited)
        self._run_args, self._op = _abi.RunArgs(), _abi.Op(lane=lane)
        self._run_refs = c.byref(self._run_args), c.byref(self._op)
        self._planned = self._filled = None  # what the last plan() and the last run were given
        self._shape = None  # what plan_shape() was, if no plan() came after it

    def close(self) -> None:
        """Give the plan back, and what is prepared of it, when nothing of it is in flight."""
        session, self.session = self.session, None
        if session is None:
            return
        self._planned = None
        session.forget(self._number)
        if session.closed:
            return
        self._prepared.end()
        now, self._now = self._now, None
        if now is not None:  # no wait: whoever dropped the last run calls this, anywhere
            self._forget([now, *_planned.forget_before(now)], session)
        if self._spare is not None:
            session.destroy_plan(self._spare[0], self.pool)

    @property
    def rows(self) -> int | None:
        """Of q and out in the planned batch."""
        return self._tensors.rows

    @property
    def dtype(self) -> str | None:
        """Of the rows of the planned batch."""
        return self._tensors.dtype

    def _native(self, what=None):
        """The library's session. The first thing that a call does: in a child it says Forked."""
        session = self.session
        if session is None:
            raise ValueError("the BatchAttention is closed")
        native = session.native()
        if what is not None:
            failure = self._refusal.failure
            if failure is not None and self._refusal.batch:
                self._refusal.failure = None
                raise failure
            if self._now is None:
                raise ValueError(f"plan() comes before {what}()")
        return native

    def __del__(self):
        session = getattr(self, "session", None)
        if session is not None and not session.left():
            self.close()

    # ---- plan ----

    def plan(
        self, qo_indptr: Levels, kv_indptr: Levels, kv_indices: Levels, kv_last_page_len: Levels,
        num_qo_heads: int, num_kv_heads: int | None = None, head_dim_qk: int | None = None,
        page_size: int | None = None, head_dim_vo: int | None = None, *, causal: bool = False,
        sm_scale: float | None = None, window_left: int = -1, logits_soft_cap: float | None = None,
        pos_encoding_mode: str = "NONE", rope_scale: float | None = None,
        rope_theta: float | None = None, rope_low_freq_factor: float | None = None,
        rope_high_freq_factor: float | None = None, rope_old_context: int | None = None,
        rope_dim: int | None = None, rope_append: bool = False, sinks: Array | None = None,
        custom_mask: Array | None = None, packed_custom_mask: Array | None = None,
        q_scale: float | None = None, k_scale: float | None = None, v_scale: float | None = None,
        kv_scales: Array | None = None, alibi_slopes: Array | None = None,
        attention_chunk_size: int | None = None, fixed_split_size: int | None = None,
        q_data_type: DType | None = None, kv_data_type: DType | None = None,
        reserve_pages: int = 0, q_strides: Strides = None, out_strides: Strides = None,
        lse_strides: Strides = None, k_strides: Strides = None, v_strides: Strides = None,
        natural_lse: bool = False, shared_pages: bool = False, wait: bool = False,
    ) -> None:  # fmt: skip
        """Plan a batch of requests; runs go on until the next plan.

        qo_indptr, kv_indptr [requests + 1], kv_indices [pages], kv_last_page_len [requests]: int32
            CSR arrays, lists or of numpy or torch. For a cascade, lists of such arrays, the shared
            level first. They are copied before plan() returns, except for those in Session.tables,
            which must not change until a run of this plan is over, or plan() has waited.
        num_kv_heads, head_dim_*, page_size, *_data_type: may be left out, and must agree with the
            pool. Beside a pool of fp8 q_data_type is of 16 bits; float16 if None.
        sm_scale: of q.k; 1 / sqrt(head_dim) if None.
        window_left: keys that a row sees before its own position; -1 for all.
        rope_*: of pos_encoding_mode ROPE_LLAMA. The two factors and rope_old_context are
            Llama 3.1's, rope_dim says how many dimensions turn, and with rope_append append()
            stores K turned.
        sinks: float32 [num_qo_heads], or [layers, num_qo_heads]; natural logarithms, and the lse
            of a row that sees no key. They are copied here unless they lie in memory of the session
            or on the GPU; there they are read by each run. So are the next three.
        custom_mask: bool, [qo_len * kv_len] of each request, one after the other; causal is then
            ignored. packed_custom_mask: the same as bits, least significant first, each request
            from a byte of its own; custom_mask is then ignored.
        k_scale, v_scale, kv_scales: what the pool holds times these is K and V; kv_scales is
            float32 [2, num_kv_heads], or of each layer, of K and then of V. append() to a pool of
            fp8 divides by them.
        alibi_slopes: float32 [num_qo_heads], or of each layer, with pos_encoding_mode ALIBI: a rank
            of tensor parallelism has its part of the model's; as in the paper if None.
        attention_chunk_size: a row sees keys of its own chunk of so many alone, as in Llama 4.
        fixed_split_size: keys of a split; a request's result then depends on itself alone.
        reserve_pages: room for advance(), of each request of the last level.
        *_strides: (row, head) in elements; contiguous if None.
        natural_lse: lse in natural logarithms; base 2 if False.
        shared_pages: a hint that requests side by side begin with the same pages.
        wait: return when the plan is accepted, or raise what it is refused for; otherwise plan()
            returns when it is submitted, and the next run raises that.
        """
        self._shape, before = None, self._planned
        # What layers of most models say; None of the rest is given.
        usual = (
            num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo, causal, wait, sm_scale,
            window_left, logits_soft_cap, pos_encoding_mode, reserve_pages, q_data_type,
            kv_data_type, natural_lse, shared_pages, rope_append,
        )  # fmt: skip
        plain = (
            rope_scale is None and rope_theta is None and rope_low_freq_factor is None
            and rope_high_freq_factor is None and rope_old_context is None and rope_dim is None
            and sinks is None and custom_mask is None and packed_custom_mask is None
            and q_scale is None and k_scale is None and v_scale is None and kv_scales is None
            and alibi_slopes is None and attention_chunk_size is None and fixed_split_size is None
            and q_strides is None and out_strides is None and lse_strides is None
            and k_strides is None and v_strides is None
        )
        if (
            before is not None and plain
            and before[0]() is qo_indptr is not None and before[1]() is kv_indptr is not None
            and before[2]() is kv_indices is not None
            and before[3]() is kv_last_page_len is not None and same(usual, before[7])
            and before[4](qo_indptr, kv_indptr, kv_indices, kv_last_page_len, *before[5])
        ):  # fmt: skip
            self._refusal.failure, now = None, self._now
            if before[6]:
                self._set(_library.plan_set, now.plan, self._batch_ref, True)
            else:
                now.sets += 1
                self.session.submit(_library.plan_set, now.plan, self._batch_ref, self._quiet_set)
            return
        self._native()
        self.pool._native()
        self._planned = None
        options = (
            num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, page_size, q_data_type,
            kv_data_type, causal, natural_lse, shared_pages, wait, sm_scale, reserve_pages,
            q_strides, out_strides, lse_strides, k_strides, v_strides, rope_append,
            pos_encoding_mode, window_left, logits_soft_cap, rope_theta, rope_scale,
            rope_low_freq_factor, rope_high_freq_factor, rope_old_context, rope_dim, q_scale,
            k_scale, v_scale, fixed_split_size, attention_chunk_size,
        )  # fmt: skip
        masked = custom_mask is not None or packed_custom_mask is not None
        said = self._said
        if said is None or said.masked != masked or not said.same(options):
            said = self._said = Settings(self.pool, options, masked)
        csr = _csr.levels((qo_indptr, kv_indptr, kv_indices, kv_last_page_len))
        kept = [_csr.read(arrays, i, len(csr)) for i, arrays in enumerate(csr)]
        if self._levels is None or len(self._levels) != len(csr):
            self._levels = (_abi.Level * len(csr))()
            self._batch = None
        entries, rows, pages = _csr.fill(self._levels, kept, said.reserve_pages)
        mask = starts = None
        if masked:
            csr_here = (_csr.array_of(kept[-1][i]) for i in (0, 1, 3))
            mask, starts = mask_of(self.pool, csr_here, custom_mask, packed_custom_mask)
        variant, kept_tables = variant_of(
            self.pool, said.heads, said.numbers, (sinks, kv_scales, alibi_slopes), mask
        )
        self._fill_batch(said, variant, starts)
        wait = said.wait or self.pool.device == "cuda"
        room = entries, rows, pages, len(csr), said.fixed_split
        self._set_plan(said, room, wait, kept_tables)
        again = plain and said.options is not None  # they cannot be changed in place
        named = _csr.named_again(csr, kept) if again else None
        if named is not None:
            references, unchanged, places = named
            self._planned = *references, unchanged, (places, rows), wait, usual

    def _fill_batch(self, said, variant, starts):
        """struct attnd_batch, of numbers and of the levels that are filled in."""
        batch = self._batch
        if batch is None or said.strides or self._strided:
            batch = self._batch = _abi.Batch(levels=len(self._levels), level=self._levels)
            self._batch_ref, self._strided = c.byref(batch), bool(said.strides)
        batch.reserve_pages, batch.flags = said.reserve_pages, said.flags
        batch.dtype, batch.sm_scale = _abi.ROWS[said.dtype], said.sm_scale
        batch.variant, batch.mask_indptr = variant, starts if starts is None else starts.ctypes.data
        for name, pair in said.strides.items():
            setattr(batch, name, _abi.Strides(*pair))

    def _set_plan(self, said, room, wait, tables):
        """Set the batch in the plan, if it has room for it, and else in another one. What fails
        leaves things as they are; what is refused later brings them back."""
        heads, before, self._refusal.failure = said.heads, self._now, None
        spare = self._spare if before is None else (before.plan, before.capacity, before.heads)
        if spare is not None and heads == spare[2] and _holds(spare[1], room):
            plan, capacity, _ = spare
        else:
            plan, capacity = self._create_plan(heads, room, spare and spare[1])
            spare = None
        tensors = self._tensors.planned()
        self._tensors.plan(heads, room[1], said.dtype, said.strides)
        now = _planned.Planned(
            self, plan, capacity, heads, room[0], tables, self._tensors.planned()
        )
        try:
            if wait:
                self._set(_library.plan_set, plan, self._batch_ref, True)
            else:
                now.number = self._op_set.user_data = self.session.listen(now)
                self.session.submit(_library.plan_set, plan, self._batch_ref, self._quiet_set)
        except BaseException as failure:
            self._tensors.plan_again(tensors)
            self.session.forget(now.number)
            if before is not None:
                self._op_set.user_data = before.number
            if spare is None:
                self.session.destroy_plan(plan, self.pool)
            elif not isinstance(failure, Error):  # interrupted: nobody knows which batch is there
                self._now, self._spare = None, spare
                if before is not None:
                    self._forget(_planned.forget_before(before))
            raise
        if wait and before is not None and before.plan == plan and not before.number:
            before = before.before  # of which nothing is left to be told
        now.before, self._now = before, now
        if spare is None:
            self._prepared.drop_all()
        if before is None and self._spare is not None and self._spare[0] != plan:
            self.session.destroy_plan(self._spare[0], self.pool)
        self._spare = None
        gone = _planned.forget_before(now) if wait else _planned.cut(now)
        if gone:
            self._forget(gone)

    def _forget(self, batches, session=None):
        """Batches that will not be there again."""
        session = session or self.session
        here = self._now and self._now.plan
        plans = {x.plan for x in batches} - {here}
        for batch in batches:
            session.forget(batch.number)
        kept = self._now and self._now.before
        while kept is not None:
            plans.discard(kept.plan)
            kept = kept.before
        for plan in plans:
            session.destroy_plan(plan, self.pool)

    def _set_refused(self, batch, failure):
        """A set of @batch was refused. If no set of it was not, the batch before it is there."""
        now = self._now
        if batch is now:
            self._refusal(failure)
            self._refusal.batch = True
        if batch.refused < batch.sets or now is None:
            return
        self._planned = self._shape = None
        self.session.forget(batch.number)
        if batch is not now:  # what is there now was set since
            while now is not None and now.before is not batch:
                now = now.before
            if now is not None:
                now.before, batch.before = batch.before, None
            self._forget([batch])
            return
        self._now, before = batch.before, batch.before
        if before is None:
            self._spare = batch.plan, batch.capacity, batch.heads
            return
        self._op_set.user_data = before.number
        self._tensors.plan_again(before.tensors)
        if before.plan != batch.plan:
            self._forget([batch])

    def advance(
        self, kv_len: Ints, page_indptr: Ints | None = None, page_indices: Ints | None = None, *,
        wait: bool = False,
    ) -> None:  # fmt: skip
        """New lengths in tokens of all entries of the planned batch, level 0's first [entries], and
        pages appended to their lists (CSR: [entries + 1] and [pages]). Runs that were submitted
        keep theirs."""
        self._native("advance")
        entries = self._now.entries
        places, _kept = _csr.advanced(kv_len, page_indptr, page_indices, entries)
        args = _abi.Advance(
            entries=entries, kv_len=places[0], page_indptr=places[1], page_indices=places[2]
        )
        wait = _convert.flag("wait", wait) or self.pool.device == "cuda"
        self._set(_library.plan_advance, self._now.plan, c.byref(args), wait)

    def _set(self, function, plan, args, wait):
        if wait:
            operation = Operation(self.session, function.__name__[11:], self)
            self.session.submit(function, plan, args, self._waited_ref, operation, self._waited)
            operation.wait()
        else:
            self.session.submit(function, plan, args, self._quiet)

    def _create_plan(self, heads, room, have):
        """A plan with room for batches that grow, as they have, or, where memory is short, for
        this one."""
        have = have or (0,) * len(room)
        entries, rows, pages, levels, split = room
        split = min((n for n in (split, have[4]) if n), default=0)
        room = max(entries, 1), max(rows, 1), max(pages, 1), levels, split  # a plan has one of each
        wide = *(_room(*x) for x in zip(room[:3], have)), max(levels, have[3]), split
        plan, native = c.c_uint32(), self.session.native()
        for capacity in (wide, room):
            args = _abi.PlanArgs(
                pool=self.pool.handle, heads_q=heads, requests=capacity[0], rows=capacity[1],
                pages=capacity[2], levels=capacity[3], fixed_split=capacity[4],
            )  # fmt: skip
            try:
                checked(lib.attnd_plan_create(native, c.byref(args), c.byref(plan)))
            except (NoMemory, NoSpace, Range):  # of the heap, of the arena; beyond what a plan has
                if capacity == room:
                    raise
            else:
                self.pool.plans += 1
                return plan.value, capacity

    # ---- run ----

    def run(
        self, q: Array, kv_cache: Layer, out: Array | None = None, lse: Array | bool | None = None,
        *, stream: int | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Attention of the planned batch on one layer. q and out: [rows, num_qo_heads, head_dim].
        kv_cache: a layer's number, PagePool.kv_cache(layer), or tensors at its place. lse: None,
        True, or a float32 tensor [rows, num_qo_heads]; base 2. Return: (out, lse). On a GPU q is
        used and out is written in the order of @stream (the current one)."""
        session, pool = self.session, self.pool
        if (
            session is None or session.left() or self._now is None
            or self._refusal.failure is not None
        ):  # fmt: skip
            self._native("run")
        if type(kv_cache) is KVCache and kv_cache.pool is pool:
            layer = kv_cache.layer
        else:
            layer = pool.layer_of(kv_cache)
        if lse is not None and isinstance(lse, (bool, numpy.bool_)):
            lse = True if lse else None
        on_stream = pool.device == "cuda"
        if stream is not None and not on_stream:
            raise ValueError(f"stream is {stream}; the pool is on the host")
        with self._one:
            if on_stream:
                return self._run_on_stream(layer, q, out, lse, stream)
            operation, out, lse, back = self._submit(layer, q, out, lse, 0)
            session._wait(operation, None)
            if operation.error is not None:
                raise operation.error
            now, tensors = self._now, self._tensors
            if now is not None and now.before is not None:  # it is known now
                self._forget(_planned.forget_before(now))
            if back or tensors.staged:
                tensors.bring_back(back)
            return out, lse

    def submit(
        self, q: Array, kv_cache: Layer, out: Array, lse: Array | None = None, *,
        timeout_us: int = 0,
    ) -> Operation:  # fmt: skip
        """The same as an operation, to wait() for or to await. out and lse must lie in memory of
        the session, or on the GPU, so that nothing is left to copy. After @timeout_us microseconds
        it ends with attnd.Timeout; 0: never."""
        self._native("submit")
        timeout_us = _convert.integer("timeout_us", timeout_us, 0, _convert.U32)
        layer = self.pool.layer_of(kv_cache)
        with self._one:
            self._tensors.place("o", out, False, None)
            if lse is not None:
                self._tensors.place("lse", lse, False, None)
            operation, _, _, _ = self._submit(layer, q, out, lse, timeout_us)
            self._tensors.staged = []  # nobody learns when it has ended: the operation keeps them
            return operation

    def append(self, k: Array, v: Array, kv_cache: Layer) -> None:
        """Store K and V of the batch's new tokens, [rows, num_kv_heads, head_dim] each, at the end
        of their requests. A run that is submitted afterwards sees them."""
        self._native("append")
        layer = self.pool.layer_of(kv_cache)
        with self._one:
            self._append(k, v, layer)

    def _append(self, k, v, layer):
        args, tensors = _abi.AppendArgs(layer=layer), self._tensors
        tensors.fill(args.k, "k", k, True, None)
        tensors.fill(args.v, "v", v, True, None)
        if not tensors.enough():
            self.session.submit(_library.append, self._now.plan, c.byref(args), self._quiet)
            return
        # Enough is kept for what is in flight: when this has ended, all before it in the lane has.
        operation, op = Operation(self.session, "append", (self, tensors.kept)), self._op
        op.timeout_us = 0
        self.session.submit(
            _library.append, self._now.plan, c.byref(args), c.byref(op), operation, op
        )
        tensors.kept = []
        try:
            operation.wait()
        except Error as failure:
            self._refusal(failure)
        tensors.bring_back(())

    def merge_state(
        self, v_a: Array, s_a: Array, v_b: Array, s_b: Array, out: Array | None = None,
        lse: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Two results of the planned batch's queries over different keys as one: outs and lses as
        run() gives them, of this service or of anything else. Return: (out, lse). out may be v_a or
        v_b, and lse the s of the same. On a GPU it waits for what the current stream holds, and
        returns when the result is there."""
        self._native("merge_state")
        if self.pool.device == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()
        with self._one:
            return self._merge(v_a, s_a, v_b, s_b, out, lse)

    def _merge(self, v_a, s_a, v_b, s_b, out, lse):
        args, back, tensors = _abi.MergeArgs(), [], self._tensors
        out = tensors.new("o", v_a) if out is None else out
        lse = tensors.new("lse", s_a) if lse is None else lse
        for place, name, x in (
            (args.o_a, "o", v_a), (args.lse_a, "lse", s_a), (args.o_b, "o", v_b),
            (args.lse_b, "lse", s_b),
        ):  # fmt: skip
            tensors.fill(place, name, x, True, None)
        tensors.fill(args.o, "o", out, False, back)
        tensors.fill(args.lse, "lse", lse, False, back)
        tensors.apart(back)
        op = _abi.Op(lane=self.lane)
        operation = Operation(self.session, "merge", (self, tensors.kept), self._refusal)
        self.session.submit(
            lib.attnd_merge_state, self._now.plan, c.byref(args), c.byref(op), operation, op
        )
        tensors.kept = []
        operation.wait()
        tensors.bring_back(back)
        return out, lse

    def _submit(self, layer, q, out, lse, timeout_us):
        before, args, tensors, back = self._filled, self._run_args, self._tensors, ()
        if (
            before is not None and before[0] is tensors.shapes and before[1]() is q is not None
            and before[2]() is out is not None
            and (lse is None if before[3] is None else before[3]() is lse is not None)
        ):  # fmt: skip
            keep = self, q, out, lse, tensors.kept
        else:
            out, lse, back = self._fill_all(q, out, lse)
            keep = self, tensors.kept
        session, op = self.session, self._op
        args.layer, op.timeout_us = layer, timeout_us
        operation = Operation(session, "run", keep, self._refusal)
        session.submit(_library.run, self._now.plan, *self._run_refs, operation, op)
        if tensors.kept:
            tensors.kept = []
        return operation, out, lse, back

    def _fill_all(self, q, out, lse):
        """The places of a run's tensors; new ones for those that were not given."""
        args, back, tensors, self._filled = self._run_args, [], self._tensors, None
        if out is None:
            out = tensors.new("o", q)
        if lse is True:
            lse = tensors.new("lse", q)
        tensors.fill(args.q, "q", q, True, None)
        tensors.fill(args.o, "o", out, False, back)
        if lse is None:
            args.lse.memory = 0
        else:
            tensors.fill(args.lse, "lse", lse, False, back)
            tensors.apart(back)
        ours = type(q) is type(out) is Tensor and type(lse) in (Tensor, type(None))
        if ours and not tensors.staged:
            refs = weakref.ref(q), weakref.ref(out), lse if lse is None else weakref.ref(lse)
            self._filled = tensors.shapes, *refs
        return out, lse, back
