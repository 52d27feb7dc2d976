"""BatchAttention: plan a batch once, run it layer after layer, with FlashInfer's names.

Where q lies in memory of the session, or on the GPU, nothing is copied. Other host tensors are
copied into memory of the session and back, which is for convenience and tests.

On the host, and for `submit()`, a run is an operation of the ring: it completes, and then `out` is
there. On the GPU `run()` is one kernel of one thread in the current stream, which rings the service
and waits: the call returns at once, a CUDA graph may hold it, and what went wrong is in
`lane_error()`. A plan is an operation in either case. What it refuses, the next run says.
"""

from __future__ import annotations

import collections
import ctypes as c
import math
import typing
import weakref

import numpy

from . import _abi, _csr
from ._dlpack import CPU, contiguous
from ._library import capture_of, cuda, lib
from ._variant import PLAIN, mask_of, variant_of
from .errors import checked
from .memory import BYTES, FP8, Tensor, copy, describe, dtype_name
from .session import Operation, Refusal

if typing.TYPE_CHECKING:
    from ._types import Array, DType, Ints, Layer, Levels, Strides
    from .pool import PagePool

_STRIDED = "q", "o", "lse", "k", "v"
_NOTHING_SAID, _NO_STRIDES = (None,) * 6, (None,) * 5
_NUMBERS = int, float, type(None)
_PREPARED_MAX = 512  # runs that one BatchAttention keeps prepared


def _stream(torch, stream):
    """A stream's handle, or None: the current stream."""
    return torch.cuda.current_stream() if stream is None else torch.cuda.ExternalStream(stream)


def _room(wanted, have):
    """The next power of two: a batch that grows token by token does not ask every time."""
    return max(have, 1 << max(wanted - 1, 0).bit_length())


class BatchAttention:
    """Attention over batches of requests on one pool. One thread at a time."""

    def __init__(self, pool: PagePool, lane: int = 0) -> None:
        self.pool, self.session, self.lane = pool, pool.session, lane
        self._plan = self._batch = self._levels = self._shaped_for = None
        self._strides = {}
        self._capacity = {"requests": 0, "rows": 0, "pages": 0, "levels": 0, "fixed_split": 0}
        self._kept, self._staged, self._spare, self._tables = [], [], {}, None
        self._prepared = collections.OrderedDict()
        self._refusal = Refusal()
        self._number = self.session.listen(self._refusal)
        self._quiet = c.byref(
            _abi.Op(user_data=self._number, lane=lane, flags=_abi.SKIP_SUCCESS)
        )
        self._run_args, self._op = _abi.RunArgs(), _abi.Op(lane=lane)
        self._run_refs = c.byref(self._run_args), c.byref(self._op)
        self._beside = self._announced = None  # a stream; the capture in which run() is to join it
        self._planned = self._filled = None  # what the last plan() and the last run were given

    def close(self) -> None:
        """Give the plan back, and what is prepared of it, when nothing of it is in flight."""
        session, self.session = self.session, None
        if session is None or session.closed:
            return
        session.forget(self._number)
        for number, _ in self._prepared.values():
            lib.attnd_unprepare(session.native(), number)
        self._destroy(session)

    def _destroy(self, session):
        """No wait: this may be called in the middle of anything, by the code that dropped the last
        run."""
        if self._plan is not None:
            session.destroy_plan(self._plan, self.pool)
        self._plan = None

    def __del__(self):
        if getattr(self, "session", None) is not None:
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
            level first. They are copied before plan() returns, but for those in Session.tables,
            which must not change until a run of this plan is over, or plan() has waited.
        num_kv_heads, head_dim_*, page_size, *_data_type: may be left out, and must agree with the
            pool. Beside a pool of fp8 q_data_type is of 16 bits; float16 if None.
        sm_scale: of q.k; 1 / sqrt(head_dim) if None.
        window_left: keys that a row sees before its own position; -1 for all.
        rope_*: of pos_encoding_mode ROPE_LLAMA. The two factors and rope_old_context are
            Llama 3.1's, rope_dim says how many dimensions turn, and with rope_append append()
            stores K turned.
        sinks: float32 [num_qo_heads], or [layers, num_qo_heads]; natural logarithms. They are
            copied here unless they lie in memory of the session or on the GPU; there they are read
            by each run. So are the next three.
        custom_mask: bool, [qo_len * kv_len] of each request, one after the other; causal is then
            ignored. packed_custom_mask: the same as bits, least significant first, each request
            from a byte of its own.
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
        variant = (
            window_left, logits_soft_cap, pos_encoding_mode, rope_scale, rope_theta,
            rope_low_freq_factor, rope_high_freq_factor, rope_old_context, rope_dim, rope_append,
            q_scale, k_scale, v_scale, fixed_split_size, attention_chunk_size,
        )  # fmt: skip
        masked = custom_mask is not None or packed_custom_mask is not None
        tables = masked or any(x is not None for x in (sinks, kv_scales, alibi_slopes))
        options = (
            num_qo_heads, num_kv_heads, head_dim_qk, page_size, head_dim_vo, causal, sm_scale,
            variant, q_data_type, kv_data_type, reserve_pages, q_strides, out_strides, lse_strides,
            k_strides, v_strides, natural_lse, shared_pages, wait,
        )  # fmt: skip
        before = self._planned
        if (
            before is not None and before[0]() is qo_indptr and before[1]() is kv_indptr
            and before[2]() is kv_indices and before[3]() is kv_last_page_len
            and not tables and before[4] == options and (
                qo_indptr.item(-1) == self.rows and kv_indptr.item(-1) <= kv_indices.size
                if before[5] is None else _csr.same_tensors(before[:4], before[5], self.rows)
            )
        ):  # fmt: skip
            self._refusal.failure = None
            if before[6]:
                self._set(lib.attnd_plan_set, self._batch_ref, True)
            else:
                self.session.submit(lib.attnd_plan_set, self._plan, self._batch_ref, self._quiet)
            return
        self._planned = None
        said = num_kv_heads, head_dim_qk, head_dim_vo, page_size, q_data_type, kv_data_type
        dtype = self.pool.rows_dtype if said == _NOTHING_SAID else self._agree(*said)
        arrays = qo_indptr, kv_indptr, kv_indices, kv_last_page_len
        if isinstance(qo_indptr, (list, tuple)) and any(hasattr(x, "__len__") for x in qo_indptr):
            csr = list(zip(*arrays, strict=True))
        else:
            csr = [arrays]
        if self._levels is None or len(self._levels) != len(csr):
            self._levels = (_abi.Level * len(csr))()
        levels, kept = self._levels, []
        requests = entries = pages = rows = 0
        for level, arrays in zip(levels, csr):
            kept.append(ints := [_csr.ints(x) for x in arrays])
            level.requests = requests = _csr.lengths(*ints)
            level.qo_indptr, level.kv_indptr = ints[0][0], ints[1][0]
            level.kv_indices, level.kv_last_page_len = ints[2][0], ints[3][0]
            entries, pages = entries + requests, pages + ints[2][1]
            rows = max(rows, c.c_int32.from_address(ints[0][0] + 4 * requests).value)
        batch = self._batch
        if batch is None or self._strides or batch.levels != len(levels):
            batch = self._batch = _abi.Batch(levels=len(levels), level=levels)
            self._batch_ref = c.byref(batch)
        batch.reserve_pages = reserve_pages
        batch.flags = (
            (_abi.CAUSAL if causal and not masked else 0) | (_abi.LSE_LN if natural_lse else 0)
            | (_abi.SHARED_PAGES if shared_pages else 0)
        )  # fmt: skip
        batch.dtype, batch.sm_scale = _abi.ROWS[dtype], sm_scale or 0.0
        batch.variant, batch.mask_indptr, kept_tables = None, None, None
        if tables or variant != PLAIN:
            mask = None
            if masked:
                csr_here = (_csr.array_of(ints[i]) for i in (0, 1, 3))
                mask, starts = mask_of(self.pool, csr_here, custom_mask, packed_custom_mask)
                batch.mask_indptr = starts.ctypes.data
            batch.variant, kept_tables = variant_of(
                self.pool, num_qo_heads, variant, sinks, kv_scales, alibi_slopes, mask
            )
        if self._strides:
            self._strides, self._filled = {}, None
        if (q_strides, out_strides, lse_strides, k_strides, v_strides) != _NO_STRIDES:
            self._filled = None
            for name, pair in zip(
                _STRIDED, (q_strides, out_strides, lse_strides, k_strides, v_strides)
            ):
                if pair is not None:
                    self._strides[name] = tuple(pair)
                    setattr(batch, name, _abi.Strides(*pair))
        room = entries, rows, pages + reserve_pages * requests, len(levels), fixed_split_size or 0
        self._make_room(num_qo_heads, *room)
        self._refusal.failure = None
        if (rows, num_qo_heads, dtype) != self._shaped_for:
            self.rows, self.dtype, self._shaped_for = rows, dtype, (rows, num_qo_heads, dtype)
            self._shapes = {name: self._shape(name) for name in _STRIDED}
        wait = wait or self.pool.device == "cuda"
        self._set(lib.attnd_plan_set, self._batch_ref, wait)
        self._tables = kept_tables  # until another plan does without them
        plain = not (self._strides or tables) and type(sm_scale) in _NUMBERS
        named = _csr.named_again(csr, kept) if plain else None
        if named is not None:
            self._planned = *named[0], options, named[1], wait

    def advance(
        self, kv_len: Ints, page_indptr: Ints | None = None, page_indices: Ints | None = None, *,
        wait: bool = False,
    ) -> None:  # fmt: skip
        """New lengths in tokens of all entries of the planned batch, level 0's first [entries], and
        pages appended to their lists (CSR: [entries + 1] and [pages]). Runs that were submitted
        keep theirs."""
        lengths = _csr.ints(kv_len)
        args, kept = _abi.Advance(entries=lengths[1], kv_len=lengths[0]), [lengths]
        if page_indptr is not None:
            kept += [_csr.ints(page_indptr), _csr.ints(page_indices)]
            args.page_indptr, args.page_indices = kept[1][0], kept[2][0]
        self._set(lib.attnd_plan_advance, c.byref(args), wait or self.pool.device == "cuda")

    def _set(self, function, args, wait):
        if wait:
            operation = Operation(self.session, function.__name__[11:], self)
            op = _abi.Op(lane=self.lane)
            self.session.submit(function, self._plan, args, c.byref(op), operation, op)
            operation.wait()
        else:
            self.session.submit(function, self._plan, args, self._quiet)

    def _agree(self, num_kv_heads, head_dim_qk, head_dim_vo, page_size, q_data_type, kv_data_type):
        """Refuse what the pool contradicts. Return: the type of q, out and what is appended."""
        pool = self.pool
        for name, said, has in (
            ("num_kv_heads", num_kv_heads, pool.num_kv_heads),
            ("head_dim_qk", head_dim_qk, pool.head_dim),
            ("head_dim_vo", head_dim_vo, pool.head_dim_vo),
            ("page_size", page_size, pool.page_size),
        ):
            if said is not None and said != has:
                raise ValueError(f"{name} is {said}, and {has} in the pool")
        if kv_data_type is not None and dtype_name(kv_data_type) != pool.dtype:
            raise ValueError(f"kv_data_type is {kv_data_type}, and {pool.dtype} in the pool")
        rows = pool.rows_dtype if q_data_type is None else dtype_name(q_data_type)
        if rows not in _abi.ROWS or pool.dtype not in (rows, *FP8):
            raise ValueError(f"q_data_type is {q_data_type}, and {pool.dtype} in the pool")
        return rows

    def _make_room(self, num_qo_heads, requests, rows, pages, levels, fixed_split):
        have = self._capacity
        if (
            self._plan is not None and num_qo_heads == self.num_qo_heads and levels <=
            have["levels"] and requests <= have["requests"] and rows <= have["rows"] and pages <=
            have["pages"] and (not fixed_split or 0 < have["fixed_split"] <= fixed_split)
        ):  # fmt: skip
            return
        splits = [n for n in (fixed_split, have["fixed_split"]) if n]
        room = {
            "requests": _room(requests, have["requests"]),
            "rows": _room(rows, have["rows"]),
            "pages": _room(pages, have["pages"]),
            "levels": max(levels, have["levels"]),
            "fixed_split": min(splits, default=0),
        }
        args = _abi.PlanArgs(pool=self.pool.handle, heads_q=num_qo_heads, **room)
        plan, native = c.c_uint32(), self.session.native()
        checked(lib.attnd_plan_create(native, c.byref(args), c.byref(plan)))
        self._drop_prepared(0)
        self._destroy(self.session)
        self.pool.plans += 1
        self._plan, self._capacity, self.num_qo_heads = plan.value, room, num_qo_heads

    # ---- run ----

    def run(
        self, q: Array, kv_cache: Layer, out: Array | None = None, lse: Array | bool | None = None,
        *, stream: int | None = None,
    ) -> tuple[Array, Array | None]:  # fmt: skip
        """Attention of the planned batch on one layer. q and out: [rows, num_qo_heads, head_dim].
        kv_cache: a layer's number, PagePool.kv_cache(layer), or tensors at its place. lse: None,
        True, or a float32 tensor [rows, num_qo_heads]; base 2. Return: (out, lse). On a GPU q is
        used and out is written in the order of @stream (the current one)."""
        layer = self.pool.layer_of(kv_cache)
        if self.pool.device == "cuda":
            return self._run_on_stream(layer, q, out, lse, stream)
        operation, out, lse, back = self._submit(layer, q, out, lse, 0)
        operation.wait()
        self._bring_back(back)
        return out, lse

    def _bring_back(self, back):
        """What ended wrote into copies, and the memory of these for the next."""
        for to, source in back:
            copy(to, source)
        if self._staged:
            for name, memory in self._staged:
                self._spare.setdefault(name, []).append(memory)
            self._staged = []

    def submit(
        self, q: Array, kv_cache: Layer, out: Array, lse: Array | None = None, *,
        timeout_us: int = 0,
    ) -> Operation:  # fmt: skip
        """The same as an operation, to wait() for or to await. out and lse must lie in memory of
        the session, or on the GPU, so that nothing is left to copy. After @timeout_us microseconds
        it ends with attnd.Timeout; 0: never."""
        for name, x in (("out", out), ("lse", lse)):
            if x is not None:
                self._place(name if name == "lse" else "o", x, False, None)
        operation, _, _, _ = self._submit(self.pool.layer_of(kv_cache), q, out, lse, timeout_us)
        self._staged = []  # nobody here learns when it has ended: the operation keeps them
        return operation

    def append(self, k: Array, v: Array, kv_cache: Layer) -> None:
        """Store K and V of the batch's new tokens, [rows, num_kv_heads, head_dim] each, at the end
        of their requests. A run that is submitted afterwards sees them."""
        args = _abi.AppendArgs(layer=self.pool.layer_of(kv_cache))
        for name, x in (("k", k), ("v", v)):
            memory, offset, keep = self._place(name, x, True, None)
            setattr(args, name, _abi.Place(memory, offset))
            self._kept.append(keep)
        self.session.submit(lib.attnd_append, self._plan, c.byref(args), self._quiet)

    def merge_state(
        self, v_a: Array, s_a: Array, v_b: Array, s_b: Array, out: Array | None = None,
        lse: Array | None = None,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Two results of the planned batch's queries over different keys as one: outs and lses as
        run() gives them, of this service or of anything else. Return: (out, lse). out may be v_a or
        v_b, and lse the s of the same. On a GPU it waits for what the current stream holds, and
        returns when the result is there."""
        if self._plan is None:
            raise RuntimeError("plan() comes before merge_state()")
        if self.pool.device == "cuda":
            import torch

            torch.cuda.current_stream().synchronize()
        args, back = _abi.MergeArgs(), []
        out = _like(v_a, self._shapes["o"], self.dtype) if out is None else out
        lse = _like(s_a, self._shapes["lse"], "float32") if lse is None else lse
        for place, name, x in (
            (args.o_a, "o", v_a), (args.lse_a, "lse", s_a), (args.o_b, "o", v_b),
            (args.lse_b, "lse", s_b),
        ):  # fmt: skip
            self._fill(place, name, x, True, None)
        self._fill(args.o, "o", out, False, back)
        self._fill(args.lse, "lse", lse, False, back)
        op = _abi.Op(lane=self.lane)
        operation = Operation(self.session, "merge", (self, self._kept), self._refusal)
        self.session.submit(
            lib.attnd_merge_state, self._plan, c.byref(args), c.byref(op), operation, op
        )
        self._kept = []
        operation.wait()
        self._bring_back(back)
        return out, lse

    def _submit(self, layer, q, out, lse, timeout_us):
        if self._plan is None:
            raise RuntimeError("plan() comes before run()")
        before, args, kept, back = self._filled, self._run_args, self._kept, ()
        if (
            before is not None and before[0] is self._shapes and before[1]() is q
            and before[2]() is out and (lse is None if before[3] is None else before[3]() is lse)
        ):  # fmt: skip
            kept += (q, out, lse)
        else:
            out, lse, back = self._fill_all(q, out, lse)
        args.layer, self._op.timeout_us = layer, timeout_us
        operation = Operation(self.session, "run", (self, kept), self._refusal)
        self.session.submit(lib.attnd_run, self._plan, *self._run_refs, operation, self._op)
        self._kept = []
        return operation, out, lse, back

    def _fill_all(self, q, out, lse):
        """The places of a run's tensors; new ones for those that were not given."""
        args, back, self._filled = self._run_args, [], None
        if out is None:
            out = _like(q, self._shapes["o"], self.dtype)
        if lse is True:
            lse = _like(q, self._shapes["lse"], "float32")
        self._fill(args.q, "q", q, True, None)
        self._fill(args.o, "o", out, False, back)
        if lse is None:
            args.lse.memory = 0
        else:
            self._fill(args.lse, "lse", lse, False, back)
        ours = type(q) is type(out) is Tensor and type(lse) in (Tensor, type(None))
        if ours and not self._staged:
            refs = weakref.ref(q), weakref.ref(out), lse if lse is None else weakref.ref(lse)
            self._filled = self._shapes, *refs
        return out, lse, back

    def _fill(self, place, name, x, read, back):
        place.memory, place.offset_bytes, keep = self._place(name, x, read, back)
        self._kept.append(keep)

    def _shape(self, name):
        heads = self.pool.num_kv_heads if name in "kv" else self.num_qo_heads
        dim = self.pool.head_dim if name in "qk" else self.pool.head_dim_vo
        return (self.rows, heads) if name == "lse" else (self.rows, heads, dim)

    def _check(self, name, shape, strides, dtype):
        """Refuse a tensor that is not what the plan wants. Return: whether its strides are
        right."""
        wanted, of = self._shapes[name], "float32" if name == "lse" else self.dtype
        if tuple(shape) != wanted or dtype != of:
            raise ValueError(
                f"{name} is {tuple(shape)} of {dtype}; the plan wants {wanted} of {of}"
            )
        planned = self._strides.get(name)
        if planned is None:
            return tuple(strides) == contiguous(wanted) or self.rows == 0
        if tuple(strides[:2]) != planned or (name != "lse" and strides[2] != 1):
            raise ValueError(f"{name} has strides {tuple(strides)}; they were planned as {planned}")
        return True

    def _place(self, name, x, read, back):
        """(memory, offset, what keeps it) of a tensor, or of a copy in memory of the session.
        Copies that are written go to @back; without it they are refused."""
        if (
            type(x) is Tensor and x.contiguous and x.shape == self._shapes[name] and not
            self._strides and x.dtype == ("float32" if name == "lse" else self.dtype)
            and x.memory._native is self.session._native
        ):  # fmt: skip
            return x.memory.handle, x.offset, x
        described = describe(x)
        _, shape, strides, dtype, kind, _ = described
        fits = self._check(name, shape, strides, dtype)
        if fits:
            try:
                return self.session.place(described)
            except LookupError:
                if kind != CPU:
                    raise
        elif kind != CPU:
            raise ValueError(f"{name} is not contiguous: say its strides to plan()")
        if back is None and not read:
            raise LookupError(f"{name} must lie in memory of the session, contiguous as planned")
        own = self._stage(name, self._shapes[name], dtype)
        if read:
            copy(own, x)
        else:
            back.append((x, own))
        return own.memory.handle, own.offset, own

    def _stage(self, name, shape, dtype):
        """A contiguous tensor in memory of the session, for one that lies elsewhere. run() gives
        its memory back when it has ended."""
        if name in self._strides:
            raise LookupError(
                f"{name} was planned with strides: it must lie in memory of the session"
            )
        nbytes, spare = math.prod(shape) * BYTES[dtype], self._spare.setdefault(name, [])
        memory = spare.pop() if spare else None
        if memory is None or memory.nbytes < nbytes:
            memory = self.session.memory(max(2 * nbytes, 4096))
        self._staged.append((name, memory))
        return memory.tensor(shape, dtype)

    # ---- on a stream ----

    def prepare(
        self, q: Array, kv_cache: Layer, out: Array, lse: Array | None = None
    ) -> None:  # fmt: skip
        """What the first run() of these tensors on a GPU does before it launches, and what blocks:
        do it for each layer before a graph is captured. Nothing runs."""
        checked(cuda().attnd_cuda_stream_open(self.session.native()))
        self._prepare(self.pool.layer_of(kv_cache), [q, out] if lse is None else [q, out, lse])

    def announce(self, stream: int | None = None) -> None:
        """On a GPU: say that run() follows on this stream, some 10 to 50 us later, so that the
        service's kernels are on their way meanwhile. In front of the last kernel before run(), if
        all its blocks fit on the GPU at once; attnd_cuda_announce() has the rest. It is said on a
        stream beside that one, whose next kernel does not wait for it. The next run() joins the
        two, if both are in the same capture, or in none; an announcement that is part of a capture
        has to be followed by a run() there."""
        import torch

        here = _stream(torch, stream)
        if self._beside is None:
            self._beside = torch.cuda.Stream(device=here.device)
        self._beside.wait_stream(here)
        checked(cuda().attnd_cuda_announce(self.session.native(), self._beside.cuda_stream))
        self._announced = capture_of(here.cuda_stream)

    def _run_on_stream(self, layer, q, out, lse, stream):
        import torch

        if out is None:
            out = torch.empty(self._shapes["o"], dtype=getattr(torch, self.dtype), device="cuda")
        if lse is True:
            lse = torch.empty(self._shapes["lse"], dtype=torch.float32, device="cuda")
        number = self._prepare(layer, [q, out] if lse is None else [q, out, lse])
        here = _stream(torch, stream)
        if self._announced is not None and self._announced == capture_of(here.cuda_stream):
            here.wait_stream(self._beside)
            self._announced = None
        checked(
            cuda().attnd_cuda_run_on_stream(
                self.session.native(), self.lane, number, here.cuda_stream
            )
        )
        return out, lse

    def _prepare(self, layer, tensors):
        """The run of these tensors, prepared the first time. A graph replays its number, so a
        number stays good until more than _PREPARED_MAX others came after it."""
        described = [(name, *describe(x)) for name, x in zip(_STRIDED, tensors)]
        for name, _, shape, strides, dtype, _, _ in described:
            if not self._check(name, shape, strides, dtype):
                raise ValueError(f"{name} is not contiguous: say its strides to plan()")
        key = layer, *(x[1] for x in described)
        found = self._prepared.get(key)
        if found is not None:
            self._prepared.move_to_end(key)
            return found[0]
        args, number = _abi.PrepareArgs(layer=layer, lane=self.lane), c.c_uint32()
        kept = [x.memory for x in tensors if type(x) is Tensor]
        for name, *x in described:
            memory, offset, _ = self.session.place(x)
            setattr(args, name, _abi.Place(memory, offset))
        self._drop_prepared(_PREPARED_MAX - 1)
        native = self.session.native()
        checked(lib.attnd_prepare(native, self._plan, c.byref(args), c.byref(number)))
        self._prepared[key] = number.value, kept
        return number.value

    def _drop_prepared(self, most):
        while len(self._prepared) > most:
            _, (number, _) = self._prepared.popitem(last=False)
            checked(lib.attnd_unprepare(self.session.native(), number))

    def lane_error(self) -> None:
        """Raise what the first run of the lane failed with since this was last asked. Ask when the
        stream is done: outputs of a lane with an error are not to be used."""
        checked(cuda().attnd_cuda_lane_error(self.session.native(), self.lane))


def _like(q, shape, dtype):
    """A new tensor of q's framework."""
    if type(q).__module__.partition(".")[0] == "torch":
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=q.device)
    return numpy.empty(shape, {"bfloat16": "uint16"}.get(dtype, dtype))
