"""Rotation and the update of the cache, as one kernel between the QKV product and attention.

All ways have the same one, so that a difference is attention's. rotate.cu is compiled ahead: a
bundle has rotate.cubin beside this file, a checkout in its build folder.
"""

import ctypes
import pathlib

THETA = 500000.0
WARPS = 8  # of a block; each has one head of a row
RELATIVE_ERROR_MAX = 2e-3  # root mean square; fp16 rounds to 5e-4

HERE = pathlib.Path(__file__).resolve().parent
PLACES = HERE / "rotate.cubin", HERE.parents[1] / "build/bench/engines/rotate.cubin"


class Args(ctypes.Structure):
    """struct RotateArgs of rotate.cu."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("qkv", "positions", "slots", "cos_sin", "k", "v")),
        *((name, ctypes.c_int32) for name in ("rows", "heads_q", "heads_kv", "dim")),
    ]


def checked(code, what):
    if code:
        raise RuntimeError(f"rotate: {what}: CUDA error {code}")


class Kernel:
    """The loaded kernel; of the context that is current when it is made."""

    def __init__(self):
        path = next((path for path in PLACES if path.exists()), None)
        if path is None:
            raise FileNotFoundError(f"{PLACES[0]} is missing: `make gpu-bundle` compiles it")
        self.driver, image = ctypes.CDLL("libcuda.so.1"), path.read_bytes()
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        checked(self.driver.cuModuleLoadData(ctypes.byref(module), image), "load")
        found = self.driver.cuModuleGetFunction(
            ctypes.byref(self.function), module, b"rotate_and_store"
        )
        checked(found, "find the kernel")

    def launch(self, args, stream):
        """@args: Args; they are copied. @stream: a stream's handle."""
        blocks = -(-(args.heads_q + 2 * args.heads_kv) // WARPS)
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(args))
        code = self.driver.cuLaunchKernel(
            self.function, args.rows, blocks, 1, 32 * WARPS, 1, 1, 0, ctypes.c_void_p(stream),
            parameters, None,
        )  # fmt: skip
        checked(code, "launch")


def table(torch, positions, dim):
    """cos and sin of each position, float32 [positions, 2, dim / 2]."""
    steps = torch.arange(dim // 2, dtype=torch.float64) * 2 / dim
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * THETA**-steps
    return torch.stack((angles.cos(), angles.sin()), 1).float().cuda()


def rotated(torch, x, cos_sin):
    """The definition, in float64. x: [rows, heads, dim]; cos_sin: [rows, 2, dim / 2]."""
    cosine, sine = cos_sin.double()[:, :, None].unbind(1)
    low, high = x.double().chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def verify(torch, before, after, k, v, sizes, cos_sin):
    """Compare one launch with the definition. @before, @after: qkv [rows, columns]; @k, @v: what
    lies in the pages of these rows, [rows, heads_kv, dim]. ValueError says what is off."""
    heads = before.unflatten(1, (-1, sizes.head_dim))
    of_q, of_k, of_v = heads.split((sizes.heads_q, sizes.heads_kv, sizes.heads_kv), 1)
    found_q = after.unflatten(1, (-1, sizes.head_dim))[:, : sizes.heads_q]
    for name, found, right in (
        ("q", found_q, rotated(torch, of_q, cos_sin)),
        ("k", k, rotated(torch, of_k, cos_sin)),
        ("v", v, of_v.double()),
    ):
        off = ((found.double() - right).square().mean() / right.square().mean()).sqrt().item()
        if not off <= RELATIVE_ERROR_MAX:
            raise ValueError(f"rotate: {name} is off by {off:.2e} of its size")
