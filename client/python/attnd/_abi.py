"""The structs of attnd.h, and the proof that the library lays them out in the same way.

They are written down once more here, because a package that needs no compiler cannot read a header.
What is written twice can differ, so `check()` compares every field's place and width with what the
library says of itself (`attnd_abi()`), and importing the package fails where they differ. A library
that is newer may know more fields at the end of a struct that begins with its size.
"""

import ctypes as c

from . import _options

u8, u16, u32, u64, i32, i64 = c.c_uint8, c.c_uint16, c.c_uint32, c.c_uint64, c.c_int32, c.c_int64

FOREVER = (1 << 64) - 1
LEASE_PAGES_MAX = 16384
ROWS = {"float16": 1, "bfloat16": 2}  # types of q, out and appended k and v, and of pools
DTYPES = {**ROWS, "float8_e4m3fn": 3, "float8_e5m2": 4}
CAUSAL, LSE_LN, SHARED_PAGES = 1, 2, 4
SKIP_SUCCESS = 1
ROPE_APPEND = 1
HOST, DEVICE, POOL, IPC = 1, 2, 3, 4
PAGES_OF_SERVICE, PAGES_OF_ENGINE = 1, 2
EXECUTORS = "auto", "engine", "service"
MATCH_WAITS = 2
CLAIM_EARLY = 1
LANES = 64
PLAN_PAGES_MAX = 1 << 26


class LayoutMismatch(ImportError):
    """The library lays a struct out in another way than this package."""


def _struct(c_name, /, **fields):
    kind = type(c_name, (c.Structure,), {"_fields_": list(fields.items()), "__slots__": ()})
    if "size" in fields:
        kind.__init__ = lambda self, **values: c.Structure.__init__(
            self, **{"size": c.sizeof(kind), **values}
        )
    return kind


Entry = _struct("attnd_abi_entry", name=c.c_char_p, offset=u32, bytes=u32)
Fault = _struct("attnd_fault", code=i32, field=u32, index=u64, value=i64, limit=i64)
OpenArgs = _struct(
    "attnd_open_args",
    size=u32, ring_entries=u32, arena_bytes=u64, socket_path=c.c_char_p, name=c.c_char_p,
    daemon_uid=c.POINTER(u32), tables_bytes=u64, execute=u32, reserved0=u32,
)  # fmt: skip
Info = _struct(
    "attnd_info",
    size=u32, session=u32, backend=c.c_char * 16, isa=c.c_char * 32, daemon_version=c.c_char * 32,
    ring_entries=u32, arena_bytes=u64, residency=c.c_char * 16, gpu_uuid=u8 * 16, mps=u32,
    executor=u32,
)  # fmt: skip
MemoryInfo = _struct(
    "attnd_memory_info", size=u32, memory_kind=u32, size_bytes=u64, address=c.c_void_p
)
Plane = _struct(
    "attnd_plane", memory=u32, offset_bytes=u64, stride_page=i64, stride_token=i64, stride_head=i64
)
PoolDesc = _struct(
    "attnd_pool_desc",
    size=u32, layers=u32, pages=u32, page_size=u32, heads_kv=u32, dim_qk=u32, dim_vo=u32, dtype=u32,
    page_owner=u32, k=c.POINTER(Plane), v=c.POINTER(Plane), memory_kind=u32,
)  # fmt: skip
PoolInfo = _struct(
    "attnd_pool_info",
    size=u32, memory=u32, address=c.c_void_p, memory_bytes=u64, writable=u32, desc=PoolDesc,
)  # fmt: skip
Token = _struct("attnd_token", bytes=u8 * 16)
PlanArgs = _struct(
    "attnd_plan_args",
    size=u32, pool=u32, requests=u32, rows=u32, pages=u32, levels=u32, heads_q=u32,
    fixed_split=u32,
)  # fmt: skip
Level = _struct(
    "attnd_level",
    requests=u32, qo_indptr=c.c_void_p, kv_indptr=c.c_void_p, kv_indices=c.c_void_p,
    kv_last_page_len=c.c_void_p,
)  # fmt: skip
Strides = _struct("attnd_strides", row=i64, head=i64)
Table = _struct("attnd_variant_table", memory=u32, layer_stride=u32, offset_bytes=u64)
Variant = _struct("attnd_variant", **_options.members(Table))
Batch = _struct(
    "attnd_batch",
    size=u32, levels=u32, heads_q=u32, dtype=u32, flags=u32, reserve_pages=u32, sm_scale=c.c_float,
    level=c.POINTER(Level), q=Strides, o=Strides, lse=Strides, k=Strides, v=Strides,
    variant=c.POINTER(Variant), mask_indptr=c.c_void_p,
)  # fmt: skip
Op = _struct("attnd_op", user_data=u64, lane=u16, flags=u16, timeout_us=u32)
Advance = _struct(
    "attnd_advance",
    size=u32, entries=u32, kv_len=c.c_void_p, page_indptr=c.c_void_p, page_indices=c.c_void_p,
)  # fmt: skip
Place = _struct("attnd_tensor", memory=u32, offset_bytes=u64)
AppendArgs = _struct("attnd_append_args", size=u32, layer=u32, k=Place, v=Place)
RunArgs = _struct("attnd_run_args", size=u32, layer=u32, q=Place, o=Place, lse=Place)
MergeArgs = _struct(
    "attnd_merge_args",
    size=u32, reserved0=u32, o_a=Place, lse_a=Place, o_b=Place, lse_b=Place, o=Place, lse=Place,
)  # fmt: skip
Completion = _struct(
    "attnd_completion",
    user_data=u64, fault=Fault, operation=u32, lane=u32, begin_ns=u64, end_ns=u64,
)  # fmt: skip
PrepareArgs = _struct(
    "attnd_prepare_args", size=u32, layer=u32, lane=u32, zero=u32, q=Place, o=Place, lse=Place
)
CudaPlanArgs = _struct(  # of libattnd-cuda: it begins with its size, by which that knows it
    "attnd_cuda_plan_args",
    size=u32, requests=u32, rows=u32, keys=u32, table_stride=u32, zero=u32, lengths=u64, table=u64,
    qo_indptr=u64, errors=u64,
)  # fmt: skip
CudaFusedArgs = _struct(  # likewise
    "attnd_cuda_fused_args",
    size=u32, rows=u32, k=u64, v=u64, k_row_stride=u32, k_head_stride=u32, v_row_stride=u32,
    v_head_stride=u32, cos_sin=u64, positions=u64, slots=u64, table_rows=u32, rotary_dim=u32,
    interleaved=u32, zero=u32,
)  # fmt: skip
PrefixDesc = _struct(
    "attnd_prefix_desc",
    size=u32, block_pages=u32, pages_max=u32, pages_low=u32, block_compute_us=u32,
)  # fmt: skip
PrefixInfo = _struct(
    "attnd_prefix_info",
    size=u32, pool=u32, block_pages=u32, pages_max=u32, writable=u32, salt=u8 * 16,
)  # fmt: skip
PrefixKey = _struct("attnd_prefix_key", word=u64 * 2)
PrefixArgs = _struct(
    "attnd_prefix_args",
    size=u32, prefix=u32, blocks=u32, flags=u32, keys=c.c_void_p, parent=c.c_void_p,
)  # fmt: skip
PrefixResult = _struct(
    "attnd_prefix_result",
    size=u32, blocks=u32, end=u32, foreign=u32, taken=u32, pages_count=u32, pages=c.c_void_p,
)  # fmt: skip

ClaimArgs = _struct(
    "attnd_claim_args", size=u32, pool=u32, pages_max=u32, flags=u32, ticket=c.POINTER(Token)
)
ClaimResult = _struct("attnd_claim_result", size=u32, pages_count=u32, pages=c.c_void_p)

STRUCTS = (
    Fault, OpenArgs, Info, MemoryInfo, Plane, PoolDesc, PoolInfo, Token, PlanArgs, Level, Strides,
    Table, Variant, Batch, Op, Advance, Place, AppendArgs, RunArgs, MergeArgs, Completion,
    PrepareArgs, PrefixDesc, PrefixInfo, PrefixKey, PrefixArgs, PrefixResult, ClaimArgs,
    ClaimResult,
)  # fmt: skip


def layout(kind):
    """{name: (offset, bytes)} of a struct and its fields, in the library's spelling."""
    name = kind.__name__
    fields = {f"{name}.{field[0]}": getattr(kind, field[0]) for field in kind._fields_}
    return {name: (0, c.sizeof(kind)), **{k: (f.offset, f.size) for k, f in fields.items()}}


def check(entries, structs=STRUCTS):
    """Compare with the library's own table, {name: (offset, bytes)}; LayoutMismatch names the first
    difference. Only a struct that begins with `size`, and is in no other, may be longer there."""
    inside = {field[1] for kind in structs for field in kind._fields_}
    for kind in structs:
        may_grow = kind._fields_[0][0] == "size" and kind not in inside
        for name, own in layout(kind).items():
            theirs = entries.get(name)
            longer = theirs and name == kind.__name__ and may_grow and theirs[1] >= own[1]
            if theirs != own and not longer:
                raise LayoutMismatch(
                    f"{name}: offset and bytes are {own} here and {theirs} in the library"
                )
