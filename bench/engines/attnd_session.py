"""A session with attnd, over ctypes: what an engine in Python needs of attnd.h and attnd_cuda.h.

Calls that fail raise Refused. `session.prepare(...)` is attnd_prepare(session, ...), and
`session.cuda_export(...)` is attnd_cuda_export(session, ...).
"""

import ctypes as c

u16, u32, u64, i32, i64 = c.c_uint16, c.c_uint32, c.c_uint64, c.c_int32, c.c_int64
Ints = c.POINTER(i32)

FP16, PAGES_OF_ENGINE, CAUSAL = 1, 2, 1
COMPLETION_NS = 20_000_000_000


def struct(name, /, **fields):
    """A struct of attnd.h; one that begins with `size` knows its own."""
    kind = type(name, (c.Structure,), {"_fields_": list(fields.items())})
    if "size" in fields:
        kind.__init__ = lambda self, **values: c.Structure.__init__(
            self, **{"size": c.sizeof(kind), **values}
        )
    return kind


Fault = struct("Fault", code=i32, field=u32, index=u64, value=i64, limit=i64)
OpenArgs = struct(
    "OpenArgs", size=u32, ring_entries=u32, arena_bytes=u64, socket_path=c.c_char_p, name=c.c_char_p
)
Info = struct(
    "Info", size=u32, session=u32, backend=c.c_char * 16, isa=c.c_char * 32,
    daemon_version=c.c_char * 32, ring_entries=u32, arena_bytes=u64, residency=c.c_char * 16,
    gpu_uuid=c.c_uint8 * 16,
)  # fmt: skip
Tensor = struct("Tensor", memory=u32, offset_bytes=u64)
Plane = struct(
    "Plane", memory=u32, offset_bytes=u64, stride_page=i64, stride_token=i64, stride_head=i64
)
PoolDesc = struct(
    "PoolDesc", size=u32, layers=u32, pages=u32, page_size=u32, heads_kv=u32, dim_qk=u32,
    dim_vo=u32, dtype=u32, page_owner=u32, k=c.POINTER(Plane), v=c.POINTER(Plane), memory_kind=u32,
)  # fmt: skip
PlanArgs = struct(
    "PlanArgs", size=u32, pool=u32, requests=u32, rows=u32, pages=u32, levels=u32, heads_q=u32
)
Level = struct(
    "Level", requests=u32, qo_indptr=Ints, kv_indptr=Ints, kv_indices=Ints, kv_last_page_len=Ints
)
Strides = struct("Strides", row=i64, head=i64)
Batch = struct(
    "Batch", size=u32, levels=u32, heads_q=u32, dtype=u32, flags=u32, reserve_pages=u32,
    sm_scale=c.c_float, level=c.POINTER(Level), q=Strides, o=Strides, lse=Strides, k=Strides,
    v=Strides,
)  # fmt: skip
Op = struct("Op", user_data=u64, lane=u16, flags=u16, timeout_us=u32)
PrepareArgs = struct(
    "PrepareArgs", size=u32, layer=u32, lane=u32, zero=u32, q=Tensor, o=Tensor, lse=Tensor
)
Completion = struct(
    "Completion", user_data=u64, fault=Fault, operation=u32, lane=u32, begin_ns=u64, end_ns=u64
)


class Refused(Exception):
    """A call of the library failed."""


def ints(values):
    return (i32 * len(values))(*values)


class Session:
    def __init__(self, socket_path, name):
        self.lib = c.CDLL("libattnd.so.0", mode=c.RTLD_GLOBAL)
        self.lib_cuda = c.CDLL("libattnd-cuda.so.0")
        self.lib.attnd_error_name.restype = c.c_char_p
        self.lib.attnd_close.restype = None
        self.handle = c.c_void_p()
        args = OpenArgs(socket_path=socket_path.encode(), name=name.encode())
        self.call(self.lib.attnd_open, c.byref(args), c.byref(self.handle))

    def close(self):
        self.lib.attnd_close(self.handle)
        self.handle = None

    def error_name(self, code):
        return self.lib.attnd_error_name(code).decode()

    def call(self, function, *args):
        code = function(*args)
        if code < 0:
            fault = Fault()
            self.lib.attnd_last_fault(c.byref(fault))
            raise Refused(
                f"{function.__name__}: {self.error_name(code)}, field {fault.field}, "
                f"index {fault.index}, value {fault.value}, limit {fault.limit}"
            )
        return code

    def __getattr__(self, name):
        library = self.lib_cuda if name.startswith("cuda_") else self.lib
        function = getattr(library, "attnd_" + name)
        return lambda *args: self.call(function, self.handle, *args)

    def residency(self):
        info = Info()
        self.info(c.byref(info))
        return info.residency.decode()

    def export(self, tensor):
        """Where a tensor lies, as a place that runs and pools can name."""
        place = Tensor()
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride()))
        self.cuda_export(
            u64(tensor.data_ptr()), u64(extent * tensor.element_size()), c.byref(place)
        )
        return place

    def finish(self):
        """The one operation in flight, which must succeed."""
        done = Completion()
        if self.wait(c.byref(done), u32(1), u64(COMPLETION_NS)) != 1:
            raise Refused(f"no completion within {COMPLETION_NS // 10**9} s")
        if done.fault.code:
            name = self.error_name(done.fault.code)
            raise Refused(f"operation {done.operation} completed with {name}: {done.fault.value}")

    def lane_error(self, lane):
        """0, or what the first run of the lane failed with since this was last asked."""
        return self.lib_cuda.attnd_cuda_lane_error(self.handle, u32(lane))
