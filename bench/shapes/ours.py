"""Attention by attnd, through its Python package: whole calls, as an engine makes them."""

import pathlib
import sys

import judge
from device import LAYERS
from shapes import pages_of

# Behind an installed one.
sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "client/python"))

NAMES = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}


class Ours:
    """A pool, a plan, and a run of each layer, of one case."""

    def __init__(self, session, case, batch, device):
        import attnd

        self.device, shape = device, case.shape
        if hasattr(device, "torch"):
            self.pool = attnd.PagePool.from_tensors(
                session, [as_known(device, k, v) for k, v in zip(device.k, device.v)],
                dtype=NAMES[shape.type],
            )  # fmt: skip
            self.q, self.o = device.q, device.o
        else:
            self.pool = attnd.PagePool(
                session, LAYERS, pages_of(case.batch, shape.page), shape.page, shape.heads_kv,
                shape.dim_qk, NAMES[shape.type], leased=False, head_dim_vo=shape.dim_vo,
            )  # fmt: skip
            device.planes(self.pool)
            self.q, self.o = device.q_memory, device.o_memory
        self.attention = attnd.BatchAttention(self.pool)
        options = {"causal": True}
        if case.batch.tree:
            options = {"custom_mask": judge.mask_of(case)}
        if case.batch.window:
            options["window_left"] = case.batch.window - 1
        self.attention.plan(*batch.part(0, len(batch.rows)), shape.heads_q, **options, wait=True)
        if hasattr(device, "torch"):
            for layer in range(LAYERS):
                self.attention.prepare(self.q, layer, self.o)

    def call(self, layer):
        self.attention.run(self.q, layer, self.o)

    def failure(self):
        """What the first run failed with, or None; on a GPU nobody else says it."""
        if not hasattr(self.device, "torch"):
            return None
        import attnd

        try:
            self.attention.lane_error()
        except attnd.Error as failure:
            return str(failure)
        return None

    def close(self):
        self.attention.close()
        self.pool.release()


def as_known(device, k, v):
    """fp8 goes by its bytes: not every interchange has a name for it."""
    torch = device.torch
    fp8 = k.dtype == torch.float8_e4m3fn
    return (k.view(torch.uint8), v.view(torch.uint8)) if fp8 else (k, v)
