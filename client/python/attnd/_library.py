"""libattnd.so, found and loaded; libattnd-cuda.so where it is wanted.

A wheel carries the libraries in `attnd/lib`, together with the protobuf-c library that they need.
$ATTND_LIBRARY_PATH names another folder to look in first, for instance the `build` of a checkout.
Last comes the loader's own path, for a library that `make install` put there. Calls of a library
that ctypes.CDLL loads let go of the interpreter's lock, so threads run while one waits. Calls that
each step makes and that never wait keep it: to get it back takes as long as they do.
"""

import ctypes as c
import functools
import os
import pathlib

from . import _abi

_SONAME = "libattnd.so.0"
_CARRIED = pathlib.Path(__file__).with_name("lib")


def _folders():
    wanted = os.environ.get("ATTND_LIBRARY_PATH")
    return ([pathlib.Path(wanted)] if wanted else []) + [_CARRIED]


def _load(name):
    for folder in _folders():
        if (folder / name).exists():
            return c.CDLL(str(folder / name), mode=c.RTLD_GLOBAL)
    return c.CDLL(name, mode=c.RTLD_GLOBAL)


def _load_attnd():
    try:
        c.CDLL("libprotobuf-c.so.1", mode=c.RTLD_GLOBAL)  # the machine's own, where it has one
    except OSError:
        if (_CARRIED / "libprotobuf-c.so.1").exists():
            c.CDLL(str(_CARRIED / "libprotobuf-c.so.1"), mode=c.RTLD_GLOBAL)
    try:
        return _load(_SONAME)
    except OSError as missing:
        raise ImportError(
            f"{_SONAME} was not found: {missing}. Wheels of `make wheel` carry it; "
            "$ATTND_LIBRARY_PATH names a folder that has it."
        ) from missing


_P, _H = c.c_void_p, c.c_void_p  # a pointer, a session
_U32, _U64 = c.c_uint32, c.c_uint64
_PROTOTYPES = {
    "attnd_open": (c.c_int, _P, _P),
    "attnd_close": (None, _H),
    "attnd_info": (c.c_int, _H, _P),
    "attnd_tables_memory": (_P, _H, _P),
    "attnd_fd": (c.c_int, _H),
    "attnd_arm": (c.c_int, _H),
    "attnd_last_fault": (None, _P),
    "attnd_version": (c.c_char_p,),
    "attnd_error_name": (c.c_char_p, c.c_int),
    "attnd_field_name": (c.c_char_p, _U32),
    "attnd_last_fault_string": (c.c_char_p, c.c_char_p, c.c_size_t),
    "attnd_fault_string": (c.c_char_p, _P, c.c_char_p, c.c_size_t),
    "attnd_memory_create": (c.c_int, _H, _U64, _P, _P),
    "attnd_memory_create_device": (c.c_int, _H, _U64, _P),
    "attnd_memory_register": (c.c_int, _H, c.c_int, _U64, _P),
    "attnd_memory_info": (c.c_int, _H, _U32, _P),
    "attnd_memory_release": (c.c_int, _H, _U32),
    "attnd_pool_create": (c.c_int, _H, _P, _P),
    "attnd_pool_info": (c.c_int, _H, _U32, _P),
    "attnd_pool_share": (c.c_int, _H, _U32, c.c_int, _P),
    "attnd_pool_attach": (c.c_int, _H, _P, _P),
    "attnd_pool_release": (c.c_int, _H, _U32),
    "attnd_pages_alloc": (c.c_int, _H, _U32, _U32, _P),
    "attnd_pages_share": (c.c_int, _H, _U32, _U32, _P),
    "attnd_pages_free": (c.c_int, _H, _U32, _U32, _P),
    "attnd_pages_offer": (c.c_int, _H, _U32, _U32, _P, _U32, _P),
    "attnd_pages_claim": (c.c_int, _H, _P, _P, _P, _U32),
    "attnd_pages_offer_layers": (c.c_int, _H, _U32, _U32, _P, _U32, _P),
    "attnd_pages_ready": (c.c_int, _H, _U32, _P, _U32, _P),
    "attnd_pages_claim_async": (c.c_int, _H, _P, _P),
    "attnd_claim_result": (c.c_int, _H, _P, _P),
    "attnd_plan_create": (c.c_int, _H, _P, _P),
    "attnd_plan_destroy": (c.c_int, _H, _U32),
    "attnd_plan_set": (c.c_int, _H, _U32, _P, _P),
    "attnd_plan_advance": (c.c_int, _H, _U32, _P, _P),
    "attnd_append": (c.c_int, _H, _U32, _P, _P),
    "attnd_run": (c.c_int, _H, _U32, _P, _P),
    "attnd_merge_state": (c.c_int, _H, _U32, _P, _P),
    "attnd_cancel": (c.c_int, _H, _U64),
    "attnd_wait": (c.c_int, _H, _P, _U32, _U64),
    "attnd_prepare": (c.c_int, _H, _U32, _P, _P),
    "attnd_unprepare": (c.c_int, _H, _U32),
    "attnd_prefix_open": (c.c_int, _H, _U32, _P, _P),
    "attnd_prefix_attach": (c.c_int, _H, _P, _P),
    "attnd_prefix_share": (c.c_int, _H, _U32, c.c_int, _P),
    "attnd_prefix_info": (c.c_int, _H, _U32, _P),
    "attnd_prefix_release": (c.c_int, _H, _U32),
    "attnd_prefix_key": (None, _P, _P, c.c_char_p, c.c_size_t, _P),
    "attnd_prefix_match": (c.c_int, _H, _P, _P),
    "attnd_prefix_claim": (c.c_int, _H, _P, _P),
    "attnd_prefix_publish": (c.c_int, _H, _P, _P, _P),
    "attnd_prefix_abandon": (c.c_int, _H, _P, _P),
    "attnd_prefix_pin": (c.c_int, _H, _P, _P),
    "attnd_prefix_unpin": (c.c_int, _H, _P, _P),
    "attnd_prefix_result": (c.c_int, _H, _P, _P),
}
_CUDA_PROTOTYPES = {
    "attnd_cuda_map": (c.c_int, _H, _U32, _P),
    "attnd_cuda_unmap": (c.c_int, _U64),
    "attnd_cuda_export": (c.c_int, _H, _U64, _U64, _P),
    "attnd_cuda_plan_on_stream": (c.c_int, _H, _U32, _U32, _P, _P),
    "attnd_cuda_run_on_stream": (c.c_int, _H, _U32, _U32, _P),
    "attnd_cuda_run_fused_on_stream": (c.c_int, _H, _U32, _U32, _P, _P),
    "attnd_cuda_stream_open": (c.c_int, _H),
    "attnd_cuda_lane_error": (c.c_int, _H, _U32),
    "cuStreamIsCapturing": (c.c_int, _P, _P),  # the driver's, which comes along
    "cuPointerGetAttribute": (c.c_int, _P, c.c_int, _U64),
}


def _declare(library, prototypes):
    for name, (result, *arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _table(library):
    """{name: (offset, bytes)}, as attnd_abi() tells it; its last entry has no name."""
    try:
        library.attnd_abi.restype = c.POINTER(_abi.Entry)
    except AttributeError:
        raise ImportError("this libattnd is too old: it has no attnd_abi()") from None
    table, entries, index = {}, library.attnd_abi(), 0
    while entries[index].name is not None:
        entry = entries[index]
        table[entry.name.decode()] = entry.offset, entry.bytes
        index += 1
    return table


lib = _declare(_load_attnd(), _PROTOTYPES)
_abi.check(_table(lib))
# What each step calls. To convert arguments by declared types takes as long as such a call: these
# have none, and are given pointers, int and what ctypes knows the size of.
_at_once = c.PyDLL(lib._name, handle=lib._handle)
plan_set, plan_advance, append, run = (
    _at_once[f"attnd_{name}"] for name in ("plan_set", "plan_advance", "append", "run")
)
wait = lib["attnd_wait"]


@functools.cache
def cuda():
    """libattnd-cuda, or None where it or the driver is missing."""
    try:
        return _declare(_load("libattnd-cuda.so.0"), _CUDA_PROTOTYPES)
    except OSError:
        return None


def cuda_or_error():
    """libattnd-cuda, for a call that has no meaning without it."""
    if cuda() is None:
        raise ValueError("the GPU's calls need libattnd-cuda.so.0 and the driver: neither was found")
    return cuda()


def allocation_of(address):
    """The number that the driver gave the allocation at an address of the GPU. Addresses come
    back, numbers do not. None where it has none."""
    number = c.c_uint64()
    buffer_id = 7  # CU_POINTER_ATTRIBUTE_BUFFER_ID
    failed = cuda().cuPointerGetAttribute(c.byref(number), buffer_id, address)
    return None if failed else number.value


def is_captured(stream):
    """Is a stream (its handle) part of a capture?"""
    status = c.c_int()
    failed = cuda().cuStreamIsCapturing(stream, c.byref(status))
    return not failed and status.value == 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
