"""Steps of an engine on a GPU whose streams execute their runs: what vLLM's and SGLang's modules do
there. Lengths and page tables stay on the GPU, so a step is a few launches, in a graph or outside.

A plan is of a number of rows and of a way in which layers attend. A step is cut once for each way,
by the first layer that attends so, and each layer is one more launch. Where q and out lie, and have
as many rows as a plan, they are used there: under capture, and in steps of the sizes that an engine
makes again and again. Others are copied through two buffers that stay, and have runs prepared for
all time. So what an engine prepares is bounded, whatever its steps are like.
"""

import torch

from ._layers import Layers
from ._library import allocation_of, cuda
from .attention import BatchAttention
from .errors import checked
from .pool import PagePool

_OWN_MAX = 2560  # runs of an engine's own tensors; a service has room for 4,096 of all kinds
_OWN_EACH = 400  # of a plan: BatchAttention keeps 512 prepared, those over the buffers too
_ASKED = 64  # steps between two looks for what went wrong
_ROOM_MIN = 16  # rows of the smallest plan over the buffers


def by_engine(session):
    """Whether the session's streams execute their runs themselves: on a GPU, if the service lets
    them."""
    if not torch.cuda.is_available() or session.info["backend"] != "cuda":
        return False
    torch.cuda.synchronize()  # there is a context
    checked(cuda().attnd_cuda_stream_open(session.native()))
    return session.info["executor"] == "engine"


def layers_over(session, *planes_and_heads, **said):
    """Steps, or where the service executes what streams launch, and on the host, Layers."""
    return (Steps if by_engine(session) else Layers)(session, *planes_and_heads, **said)


def capturing():
    return torch.cuda.is_current_stream_capturing()


def strides_of(x):
    """plan()'s strides of q or out: None where it is contiguous."""
    return None if x.is_contiguous() else x.stride()[:2]


class Steps:
    """Attention over the layers of one engine: [(k, v), ...], each [page, token, head, dim].

    @requests, @rows: of a step, at most. @sizes: rows of steps that come again and again. @keys: of
    a request, at most. @options: of plan(), in all ways."""

    own = 0  # runs of engines' own tensors, of all that this process has had

    def __init__(
        self, session, planes, num_qo_heads, *, dtype, requests, rows, sizes=(), keys=None,
        kv_dtype=None, **options,
    ):  # fmt: skip
        self.pool = PagePool.from_tensors(session, planes, dtype=kv_dtype)
        self.num_qo_heads, self.dtype, self.options = num_qo_heads, dtype, options
        self.requests, self.rows, self.keys = requests, rows, keys
        self.sizes, self._plans = frozenset(sizes), {}
        self._sinks, self._rows_of_sinks, self._begun = None, {}, 0
        self._device, self._buffers = planes[0][0].device, ((), ())
        self.buffers(self.room(rows))

    def begin(self, starts, lengths, table):
        """A step: qo_indptr [requests + 1], lengths in tokens [requests] and pages [requests, most]
        of it, int32 on the GPU. They are read when it is cut, in the stream's order, and under
        capture by each replay; the table until its last run is over."""
        self._begun += 1
        if self._begun % _ASKED == 0 and self._plans:
            next(iter(self._plans.values())).attention.lane_error()
        if self._rows_of_sinks:  # they may have been written since
            torch._foreach_copy_(*map(list, zip(*self._rows_of_sinks.values())))
        return Step(self, starts, lengths, table)

    def room(self, rows):
        """Rows of the plan that a step of so many has in the buffers."""
        return max(_ROOM_MIN, 1 << (rows - 1).bit_length())

    def buffers(self, rows):
        """Of q and of out, of so many rows at least."""
        if len(self._buffers[0]) < rows:
            kind, heads = getattr(torch, self.dtype), self.num_qo_heads
            self._buffers = [
                torch.empty(rows, heads, dim, dtype=kind, device=self._device)
                for dim in (self.pool.head_dim, self.pool.head_dim_vo)
            ]
        return (x[:rows] for x in self._buffers)

    def sinks(self, layer, values):
        """The table of all layers' sinks, [layers, heads]. What a layer's are is copied in front of
        each step, not once a layer: from where they were then, so it is asked whether they are there
        still. Others cannot have come to lie there, for those are kept."""
        if self._sinks is None:
            shape = self.pool.layers, self.num_qo_heads
            self._sinks = self.pool.session.empty(shape, "float32", self.pool.device)
        values = values.detach()
        row, known = self._rows_of_sinks.get(layer, (None, None))
        if known is None or (known.data_ptr(), known.dtype) != (values.data_ptr(), values.dtype):
            row = self._sinks.torch()[layer] if row is None else row
            row.copy_(values)
            self._rows_of_sinks[layer] = row, values
        return self._sinks

    def plan(self, way, rows, requests, q_strides=None, out_strides=None):
        """The plan of so many rows, made the first time, with room for so many requests."""
        requests = max(requests, min(self.requests, rows))
        key = rows, requests, q_strides, out_strides, way
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self, way, rows, requests, q_strides, out_strides)
        return plan


class Plan:
    """A plan, and the runs that are prepared of it: over the buffers, and of tensors that are used
    where they lie."""

    def __init__(self, steps, way, rows, requests, q_strides, out_strides):
        self.attention, self._numbers, self._own = BatchAttention(steps.pool), {}, {}
        self._q, self._o = steps.buffers(rows)
        self.attention.plan_shape(
            requests, rows, steps.num_qo_heads, q_strides=q_strides, out_strides=out_strides,
            q_data_type=steps.dtype, **steps.options, **dict(way),
        )  # fmt: skip

    def takes(self, layer, q, out):
        """Whether a run of an engine's own tensors is prepared, or may be."""
        key = layer, q.data_ptr(), out.data_ptr()
        if key not in self._own:
            if Steps.own >= _OWN_MAX or len(self._own) >= _OWN_EACH:
                return False
            Steps.own += 1
            self._own[key] = None
        return True

    def run_own(self, layer, q, out):
        """q attends where it lies. Outside of a capture, what is prepared for the places is good
        while the same allocations are there."""
        if capturing():
            self.attention.run(q, layer, out)
            return
        at = q.data_ptr(), out.data_ptr()
        of, number = tuple(map(allocation_of, at)), None
        if self._own[layer, *at] is not None:
            before, number = self._own[layer, *at]
            number = number if before == of else None
        if number is None:
            number = self.attention.prepare(q, layer, out)
            self._own[layer, *at] = of, number
        self.attention.launch(number)

    def run_buffered(self, layer, q, out):
        """q, copied to the buffers, attends there, and what comes out is copied back."""
        rows, number = len(q), self._numbers.get(layer)
        if number is None:
            number = self._numbers[layer] = self.attention.prepare(self._q, layer, self._o)
        self._q[:rows].copy_(q)
        self.attention.launch(number)
        out.copy_(self._o[:rows])


class Step:
    """One pass over the layers. A layer that comes again begins another one: lengths may be others
    by then, and so it is when what was tried is captured."""

    def __init__(self, steps, starts, lengths, table):
        self.steps, self._arrays = steps, (lengths, table, starts)
        self._seen, self._cut = set(), set()

    def run(self, layer, q, out, sinks=None, name=None, **way):
        """Attention on a layer, in the way that options of plan() say. @name: what it is known by
        if several layers have its pages."""
        name = layer if name is None else name
        if name in self._seen:
            self._seen.clear()
            self._cut.clear()
        self._seen.add(name)
        steps = self.steps
        if sinks is not None:
            way["sinks"] = steps.sinks(layer, sinks)
        way, requests = tuple(way.items()), len(self._arrays[0])
        if len(q) in steps.sizes or capturing():
            plan = steps.plan(way, len(q), requests, strides_of(q), strides_of(out))
            if plan.takes(layer, q, out):
                self._cut_for(plan)
                plan.run_own(layer, q, out)
                return
        plan = steps.plan(way, steps.room(len(q)), requests)
        self._cut_for(plan)
        plan.run_buffered(layer, q, out)

    def _cut_for(self, plan):
        if plan not in self._cut:
            keys, (lengths, table, starts) = self.steps.keys, self._arrays
            held = table.shape[1] * self.steps.pool.page_size
            plan.attention.plan_on_stream(
                lengths, table, starts, max_kv_len=min(keys, held) if keys else None
            )
            self._cut.add(plan)
