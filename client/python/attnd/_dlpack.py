"""DLPack by hand: tensors of the session for other libraries, and theirs for the session.

A consumer holds a DLManagedTensor until it calls its deleter. The structs that it holds, and the
tensor that they describe, stay in `_lent` under their address; the deleter takes them out, and then
the tensor's memory can go. A deleter may be called on any thread, in the middle of anything, also
when the interpreter is ending: it only removes an entry and raises nothing.
"""

import ctypes as c

CPU, CUDA = 1, 2
_CODES = {
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "float32": (2, 32),
    "int32": (0, 32),
    "uint8": (1, 8),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}
_NAMES = {code: name for name, code in _CODES.items()}


class _Device(c.Structure):
    _fields_ = [("kind", c.c_int32), ("number", c.c_int32)]


class _Tensor(c.Structure):
    _fields_ = [
        ("data", c.c_void_p),
        ("device", _Device),
        ("ndim", c.c_int32),
        ("code", c.c_uint8),
        ("bits", c.c_uint8),
        ("lanes", c.c_uint16),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("byte_offset", c.c_uint64),
    ]


_Deleter = c.CFUNCTYPE(None, c.c_void_p)


class _Managed(c.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c.c_void_p), ("deleter", _Deleter)]


_api = c.PyDLL(None)  # ctypes.pythonapi is everybody's, and so are the types declared there
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = c.py_object, (c.c_void_p, c.c_char_p, c.c_void_p)
_get = _api.PyCapsule_GetPointer
_get.restype, _get.argtypes = c.c_void_p, (c.c_void_p, c.c_char_p)
_is = _api.PyCapsule_IsValid
_is.restype, _is.argtypes = c.c_int, (c.c_void_p, c.c_char_p)

_lent = {}


@_Deleter
def _give_back(address, lent=_lent):
    lent.pop(address, None)


@_Deleter
def _capsule_dies(capsule, lent=_lent, is_valid=_is, get=_get):
    # A consumer renames the capsule that it takes. What still has its name was never taken.
    if is_valid(capsule, b"dltensor"):
        lent.pop(get(capsule, b"dltensor"), None)


# C++ code may hold a tensor longer than this module lives: its deleter must stay callable.
for _function in (_give_back, _capsule_dies, _lent):
    _api.Py_IncRef(c.py_object(_function))


def lend(owner, address, shape, strides, dtype, device):
    """A capsule of a tensor; @owner lives until its consumer has let go of it."""
    ndim = len(shape)
    dims = (c.c_int64 * ndim)(*shape), (c.c_int64 * ndim)(*strides)
    code, bits = _CODES[dtype]
    managed = _Managed(
        _Tensor(address, _Device(*device), ndim, code, bits, 1, dims[0], dims[1], 0),
        None,
        _give_back,
    )
    at = c.addressof(managed)
    _lent[at] = managed, dims, owner
    return _new(at, b"dltensor", c.cast(_capsule_dies, c.c_void_p))


def lent_count():
    """Tensors that consumers hold."""
    return len(_lent)


def borrow(capsule):
    """(address, shape, strides, dtype, device) of a capsule, which the caller keeps instead of
    taking the tensor out: when the capsule goes, it calls the deleter by itself."""
    tensor = _Managed.from_address(_get(id(capsule), b"dltensor")).tensor
    if tensor.lanes != 1 or (tensor.code, tensor.bits) not in _NAMES:
        raise TypeError(f"no type of attnd: DLPack code {tensor.code} of {tensor.bits} bits")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = (
        tuple(tensor.strides[i] for i in range(tensor.ndim))
        if tensor.strides
        else contiguous(shape)
    )
    address = (tensor.data or 0) + tensor.byte_offset
    return address, shape, strides, _NAMES[tensor.code, tensor.bits], tensor.device.kind


def contiguous(shape):
    """Strides in elements of a tensor without gaps, the last dimension innermost."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))
