"""attnd: attention as a service, from Python.

    session = attnd.Session()
    pool = attnd.PagePool(session, layers=2, pages=64, page_size=16, num_kv_heads=2, head_dim=64)
    attention = attnd.BatchAttention(pool)
    attention.plan(qo_indptr, kv_indptr, kv_indices, kv_last_page_len, num_qo_heads=8, causal=True)
    out, lse = attention.run(q, pool.kv_cache(0), lse=True)

Importing it loads libattnd.so and compares the layout of its structs with the ones of this package.
"""

from ._abi import LayoutMismatch
from ._library import lib as _lib
from ._waiting import Operation
from .attention import BatchAttention
from .errors import (
    Busy, Cancelled, Device, Disconnected, Error, Expired, Forked, Full, Invalid, NoMemory, NoSpace,
    NotLeased, Overlap, PeerLost, Permission, Protocol, Range, SharedPage, System, Timeout, Unknown,
    Unsupported, Version, WorkerRestarted,
)  # fmt: skip
from .memory import Memory, Tensor
from .pool import KVCache, PagePool
from .prefix import PrefixCache, PrefixOperation, PrefixResult
from .session import Session

__version__ = _lib.attnd_version().decode()

__all__ = [
    "BatchAttention", "Busy", "Cancelled", "Device", "Disconnected", "Error", "Expired", "Forked",
    "Full", "Invalid", "KVCache", "LayoutMismatch", "Memory", "NoMemory", "NoSpace", "NotLeased",
    "Operation", "Overlap", "PagePool", "PeerLost", "Permission", "PrefixCache", "PrefixOperation",
    "PrefixResult", "Protocol", "Range", "Session", "SharedPage", "System", "Tensor", "Timeout",
    "Unknown", "Unsupported", "Version", "WorkerRestarted",
]  # fmt: skip
