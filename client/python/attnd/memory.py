"""Memory of a session, and tensors in it.

The service makes the memory and the library maps it. An object that looks at it keeps it: an array
of numpy, a tensor of torch, a consumer of DLPack. So the handle goes back when the last of them is
gone, never earlier, and a session that is closed ends only then. A child of fork() has no such
mappings: what it reads there is a fault of its own.
"""

from __future__ import annotations

import ctypes as c
import functools
import math
import sys
import typing

import numpy

from . import _convert, _dlpack
from ._library import cuda, cuda_or_error, lib
from .errors import checked

if typing.TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor as TorchTensor

    from ._types import DType

FP8 = "float8_e4m3fn", "float8_e5m2"
_BUSY = -5
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "int32": 4, "uint8": 1, **dict.fromkeys(FP8, 1)}
_TYPESTR = {
    "float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "int32": "<i4", "uint8": "|u1",
    **dict.fromkeys(FP8, "|u1"),
}  # fmt: skip


@functools.lru_cache(64)
def _type_name(dtype):
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    package, _, name = name.rpartition(".")
    return name if name in BYTES and package in ("", "torch", "numpy") else None


def dtype_name(dtype, name="dtype"):
    """The name of a type: of numpy's, of torch's, or the name itself."""
    try:
        found = _type_name(dtype)
    except TypeError:  # it cannot be hashed
        found = None
    if found is None:
        raise TypeError(f"{name} is {dtype}, which is no type of attnd: {', '.join(BYTES)}")
    return found


def current_cuda_device():
    """The device of the current CUDA context. PyTorch makes one when it is first needed."""
    device, torch = c.c_int(), sys.modules.get("torch")
    if torch is not None:
        torch.cuda.synchronize()
    if c.CDLL("libcuda.so.1").cuCtxGetDevice(c.byref(device)) != 0:
        raise RuntimeError("no CUDA context is current: torch.cuda.init() makes one")
    return device.value


class Elsewhere(LookupError, ValueError):
    """A tensor lies where the service cannot reach it, and there is no copying here."""


_mapped_still = []  # addresses that could not be unmapped when their memory was dropped


def _unmap(address):
    """When the GPU is done with what may use it. To wait for that would end a capture: then it is
    done with the next one."""
    _mapped_still.append(address)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_current_stream_capturing():
        return
    for _ in range(len(_mapped_still)):
        at = _mapped_still.pop(0)
        if cuda().attnd_cuda_unmap(at) == _BUSY:
            _mapped_still.append(at)


class Memory:
    """Bytes that the service and this process both see. Drops its handle when it is collected."""

    def __init__(self, native, handle, address, nbytes, device=None, drop=None):
        self._native, self.handle, self.nbytes = native, handle, nbytes
        self.device = device  # (kind, number) of DLPack
        self._drop = drop or (lib.attnd_memory_release, handle)
        self._mapped = address is None
        if self._mapped:
            address = c.c_uint64()
            checked(cuda_or_error().attnd_cuda_map(native, handle, c.byref(address)))
            address = address.value
        self.address = address

    def check(self):
        """Forked in a child of the process, where the mapping is not."""
        self._native.check()

    def __del__(self):
        # Refusals have nobody to go to: what is in use, or of a service that is gone, ends with
        # the session.
        drop = getattr(self, "_drop", None)
        if drop is None:
            return
        if getattr(self, "address", None) and self._mapped and not self._native.left():
            _unmap(self.address)
        if self._native.alive:
            drop[0](self._native, drop[1])

    def tensor(
        self, shape: tuple[int, ...], dtype: DType = "float16", offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> Tensor:  # fmt: skip
        """A tensor at @offset bytes; strides in elements, contiguous if None."""
        self.check()
        shape = _convert.shape_of("shape", shape)
        if strides is not None:
            strides = _convert.integers("strides", strides, len(shape), 0, 1 << 48)
        offset = _convert.integer("offset", offset, 0, self.nbytes)
        return Tensor(self, offset, shape, strides, dtype_name(dtype))


class Tensor:
    """A strided tensor in memory of a session. `numpy()` and `torch()` show the same bytes;
    numpy has no bfloat16 and gets uint16, and no fp8 and gets uint8."""

    __slots__ = ("memory", "offset", "shape", "strides", "dtype", "contiguous", "__weakref__")

    def __init__(self, memory, offset, shape, strides, dtype):
        self.memory, self.offset, self.shape, self.dtype = memory, offset, shape, dtype
        dense = _dlpack.contiguous(shape)
        self.strides = dense if strides is None else strides
        self.contiguous = self.strides == dense
        last = sum((n - 1) * s for n, s in zip(shape, self.strides))
        inside = offset >= 0 and all(n >= 0 for n in shape) and all(s >= 0 for s in self.strides)
        if (
            len(self.strides) != len(shape)
            or not inside
            or (math.prod(shape) and offset + (last + 1) * BYTES[dtype] > memory.nbytes)
        ):
            raise ValueError(f"{shape} at {offset} leaves its memory of {memory.nbytes} bytes")

    def __repr__(self):
        return f"attnd.Tensor({self.shape}, {self.dtype}, {self.device})"

    @property
    def device(self) -> str:
        kind, number = self.memory.device
        return "cpu" if kind == _dlpack.CPU else f"cuda:{number}"

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * BYTES[self.dtype]

    def data_ptr(self) -> int:
        """The address of its first element in this process."""
        self.memory.check()
        return self.memory.address + self.offset

    def _interface(self, version):
        self.memory.check()
        size = BYTES[self.dtype]
        return {
            "shape": self.shape,
            "typestr": _TYPESTR[self.dtype],
            "data": (self.data_ptr(), False),
            "strides": tuple(s * size for s in self.strides),
            "version": version,
        }

    @property
    def __array_interface__(self):
        if self.memory.device[0] != _dlpack.CPU:
            raise AttributeError("__array_interface__: the tensor is on a GPU")
        return self._interface(3)

    @property
    def __cuda_array_interface__(self):
        if self.memory.device[0] != _dlpack.CUDA:
            raise AttributeError("__cuda_array_interface__: the tensor is in host memory")
        return self._interface(2)

    def __dlpack_device__(self):
        return self.memory.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A capsule of version 0, which every consumer takes. The service writes only what it was
        asked to: there is nothing to wait for on @stream but operations, which have completed."""
        self.memory.check()
        if copy or dl_device not in (None, self.memory.device):
            raise BufferError("attnd lends tensors where they are and copies none")
        return _dlpack.lend(
            self, self.data_ptr(), self.shape, self.strides, self.dtype, self.memory.device
        )

    def numpy(self) -> ndarray:
        return numpy.asarray(self)

    def torch(self) -> TorchTensor:
        import torch

        if self.dtype in FP8:  # DLPack names them only since 1.1
            same = Tensor(self.memory, self.offset, self.shape, self.strides, "uint8")
            return torch.from_dlpack(same).view(getattr(torch, self.dtype))
        return torch.from_dlpack(self)


def describe(x, name="the tensor"):
    """(address, shape, strides in elements, dtype, kind of device, what keeps it) of any tensor,
    which errors call @name."""
    if isinstance(x, Tensor):
        return x.data_ptr(), x.shape, x.strides, x.dtype, x.memory.device[0], x
    if hasattr(x, "data_ptr") and hasattr(x, "is_cuda"):  # torch
        return _of_torch(x, name)
    if isinstance(x, numpy.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, of which some values are none")
    for interface, kind in (
        ("__array_interface__", _dlpack.CPU),
        ("__cuda_array_interface__", _dlpack.CUDA),
    ):
        interface = getattr(x, interface, None)
        if interface is not None:
            return *_of_interface(interface, name), kind, x
    if hasattr(x, "__dlpack__"):
        try:
            capsule = x.__dlpack__()
            return *_dlpack.borrow(capsule), (x, capsule)
        except (TypeError, ValueError, BufferError, RuntimeError) as why:
            raise TypeError(f"{name} cannot be lent: {why}") from None
    raise TypeError(f"{name} is {type(x).__name__}, and no tensor")


def _of_torch(x, name):
    kind = _dlpack.CUDA if x.is_cuda else _dlpack.CPU
    there = kind == _dlpack.CUDA or x.device.type == "cpu"
    if not there or x.layout is not sys.modules["torch"].strided or x.is_nested or x.is_neg():
        raise TypeError(
            f"{name} is a tensor of {x.device.type}, {x.layout}, of tensors, or a view that is to "
            "be negated"
        )
    try:
        address = x.data_ptr()
    except RuntimeError as why:
        raise TypeError(f"{name} has no memory: {why}") from None
    if address == 0 and x.numel():
        raise TypeError(f"{name} has no memory: it is a {type(x).__name__}")
    return address, tuple(x.shape), x.stride(), dtype_name(x.dtype, name), kind, x


def _of_interface(interface, name):
    """(address, shape, strides in elements, dtype) of a numpy or CUDA array interface."""
    dtype = next((d for d, t in _TYPESTR.items() if t == interface["typestr"]), None)
    if dtype is None:
        raise TypeError(f"{name} is of {interface['typestr']}, which is no type of attnd")
    shape, size = tuple(interface["shape"]), BYTES[dtype]
    if interface.get("data") is None or interface.get("mask") is not None:
        raise TypeError(f"{name} has an array interface without an address, or with a mask")
    if not interface["data"][0] and math.prod(shape):
        raise TypeError(f"{name} has no memory: its address is 0")
    strides = interface.get("strides")
    if strides is None:
        return interface["data"][0], shape, _dlpack.contiguous(shape), dtype
    if any(s % size for s in strides):
        raise ValueError(f"{name} has strides of {strides} bytes, of elements of {size}")
    return interface["data"][0], shape, tuple(s // size for s in strides), dtype


def refuse_gradient(name, x):
    """Of a tensor of PyTorch that takes part in a graph of gradients: none would come from here."""
    if getattr(x, "requires_grad", False) and sys.modules["torch"].is_grad_enabled():
        raise NotImplementedError(f"{name} requires a gradient, and attnd computes none")


def refuse_inference(name, x):
    """Of a tensor that PyTorch lets nobody copy to, because inference_mode() has ended."""
    is_inference = getattr(x, "is_inference", None)
    if callable(is_inference) and is_inference():
        torch = sys.modules.get("torch")
        if torch and not torch.is_inference_mode_enabled():
            raise ValueError(f"{name} is a tensor of inference_mode(), which has ended")


def on_gpu(name, x, shape, dtype):
    """(address, shape, strides in elements) of a tensor of @dtype on the GPU, the elements of its
    last dimension side by side; None in @shape: any number."""
    refuse_gradient(name, x)
    address, has, strides, found, kind, _ = describe(x, name)
    if kind != _dlpack.CUDA or found != dtype:
        raise TypeError(f"{name} is of {found}; it has to be of {dtype}, on the GPU")
    if len(has) != len(shape) or any(n is not None and n != m for n, m in zip(shape, has)):
        raise ValueError(f"{name} is {tuple(has)}; it has to be {shape}")
    if has[-1] > 1 and strides[-1] != 1:
        raise ValueError(f"{name} has gaps: strides {tuple(strides)}")
    return address, has, strides


def copy(to, source):
    """Between host tensors of any kind."""
    tensors = [to, source]
    if any(type(x).__module__.partition(".")[0] == "torch" for x in tensors):
        to, source = (x.torch() if isinstance(x, Tensor) else x for x in tensors)
        to.copy_(source)
    else:
        numpy.copyto(host_array(to), host_array(source))


def is_read_only(x):
    """Whether x says that it may not be written."""
    flags = getattr(x, "flags", None)
    if flags is not None:
        return not getattr(flags, "writeable", True)
    place = getattr(x, "__array_interface__", {}).get("data")
    return isinstance(place, tuple) and bool(place[1])


class Described:
    """A host tensor as numpy takes it, of what describe() said of it."""

    def __init__(self, address, shape, strides, dtype, _, keep):
        size = BYTES[dtype]
        self.keep, self.__array_interface__ = keep, {
            "shape": shape, "typestr": _TYPESTR[dtype], "data": (address, False), "version": 3,
            "strides": tuple(s * size for s in strides),
        }  # fmt: skip


def host_array(x):
    """An array of numpy over a host tensor of any kind."""
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__"):
        return numpy.asarray(x)
    return numpy.asarray(Described(*describe(x)))
