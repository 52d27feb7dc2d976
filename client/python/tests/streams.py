"""A stream without a GPU, and attention in it: what _steps.py asks of them, by the reference.

A Stream does what it is given at once, or under capture() notes it, so that a graph does it at each
replay. Attention notes what BatchAttention would launch: a plan reads lengths and begins when its
launch is done, a run the table and its tensors.
"""

import contextlib
import types
from unittest import mock

import numpy as np

from backends import torch
from reference import attention


class Stream:
    def __init__(self):
        self.captured, self.cuts = None, 0

    def do(self, launch):
        if self.captured is None:
            launch()
        else:
            self.captured.append(launch)

    @contextlib.contextmanager
    def capture(self):
        """A graph of what is launched meanwhile, which is not done."""
        self.captured = graph = []
        yield lambda: [launch() for launch in graph]
        self.captured = None


class Table:
    """Memory of a session."""

    def __init__(self, shape, dtype, device):
        self._made = torch.zeros(shape, dtype=getattr(torch, dtype), device=device)

    def torch(self):
        return self._made


class Pool:
    """A pool of an engine's tensors, as PagePool has it."""

    def __init__(self, planes):
        self.planes, self.layers, self.device = planes, len(planes), "cpu"
        _, self.page_size, self.num_kv_heads, self.head_dim = planes[0][0].shape
        self.head_dim_vo = planes[0][1].shape[-1]
        self.session = types.SimpleNamespace(empty=Table)


class Attention:
    """BatchAttention over a Pool."""

    def __init__(self, stream, pool):
        self.stream, self.pool, self.batch, self.prepared = stream, pool, None, []

    def plan_shape(self, requests, rows, heads, *, q_strides, out_strides, q_data_type, **options):
        self.requests, self.rows, self.heads, self.options = requests, rows, heads, options
        self.strides = q_strides, out_strides

    def plan_on_stream(self, lengths, table, starts, max_kv_len):
        assert len(lengths) <= self.requests and len(starts) == len(lengths) + 1
        assert max_kv_len <= table.shape[1] * self.pool.page_size
        self.stream.cuts += 1
        self.stream.do(lambda: self._cut(lengths, table, starts, max_kv_len))

    def _cut(self, lengths, table, starts, most):
        assert lengths.max() <= most and starts[-1] <= self.rows
        self.batch = lengths.tolist(), table, starts.tolist()

    def run(self, q, layer, out):
        assert len(q) == len(out) == self.rows, (len(q), len(out), self.rows)
        for x, strides in zip((q, out), self.strides):
            assert x.is_contiguous() if strides is None else x.stride()[:2] == tuple(strides)
        self.stream.do(lambda: self._attend(q, layer, out))

    def prepare(self, q, layer, out):
        self.prepared.append((q, layer, out))
        return len(self.prepared) - 1

    def launch(self, number):
        self.run(*self.prepared[number])

    def lane_error(self):
        pass

    def _attend(self, q, layer, out):
        said, (lengths, table, starts) = dict(self.options), self.batch
        causal, scale, sinks = said.pop("causal"), said.pop("sm_scale"), said.pop("sinks", None)
        if sinks is not None:
            said["sinks"] = sinks.torch()[layer].double().numpy()
        for first, end, tokens, pages in zip(starts, starts[1:], lengths, table):
            if tokens and end > first:
                pages = pages[: -(-tokens // self.pool.page_size)].long()
                k, v = (x[pages].flatten(0, 1)[:tokens].numpy() for x in self.pool.planes[layer])
                o, _ = attention(q[first:end].numpy(), k, v, causal, scale, **said)
                out[first:end] = torch.from_numpy(o.astype(np.float16))


@contextlib.contextmanager
def streams(*modules):
    """_steps.py over a Stream, which is given; @modules are told that streams execute."""
    stream = Stream()
    names = "attnd._steps", *modules
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch(f"{name}.by_engine", lambda session: True))
        for name, to in (
            ("capturing", lambda: stream.captured is not None),
            ("allocation_of", lambda address: 1),
            ("BatchAttention", lambda pool: Attention(stream, pool)),
            ("PagePool", types.SimpleNamespace(
                from_tensors=lambda session, planes, dtype: Pool(planes))),
        ):  # fmt: skip
            stack.enter_context(mock.patch(f"attnd._steps.{name}", to))
        yield stream
