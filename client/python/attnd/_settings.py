"""What plan() is told beside page tables and tables of floats, converted and held against the pool.

The options come as one tuple, in the order of OPTIONS and then of `_options.NUMBERS`. So plan() can
ask cheaply whether it is told the same as before.
"""

import operator

from . import _abi, _convert
from ._variant import numbers_of
from .memory import FP8, dtype_name

STRIDED = "q", "o", "lse", "k", "v"  # as struct attnd_batch calls them
OPTIONS = 18  # those in front of the variant's
_POOL = (
    ("num_kv_heads", "num_kv_heads"), ("head_dim_qk", "head_dim"), ("head_dim_vo", "head_dim_vo"),
    ("page_size", "page_size"),
)  # fmt: skip
# Types of options that stay what they are. Those of q_data_type and kv_data_type do, too.
_LASTING = frozenset((int, float, bool, str, type(None)))
_OF_TYPES = slice(5, 7)


class Settings:
    """The numbers of a batch."""

    __slots__ = (
        "heads", "dtype", "flags", "sm_scale", "reserve_pages", "strides", "wait", "numbers",
        "fixed_split", "options", "masked",
    )  # fmt: skip

    def __init__(self, pool, options, masked):
        heads, *of_pool = options[:5]
        q_type, kv_type, causal, natural_lse, shared_pages, wait, sm_scale, reserve = options[5:13]
        self.heads = _convert.integer("num_qo_heads", heads, 1, _convert.U16)
        self.dtype = _agreed(pool, of_pool, q_type, kv_type)
        causal = _convert.flag("causal", causal)
        self.flags = (
            (_abi.CAUSAL if causal and not masked else 0)
            | (_abi.LSE_LN if _convert.flag("natural_lse", natural_lse) else 0)
            | (_abi.SHARED_PAGES if _convert.flag("shared_pages", shared_pages) else 0)
        )
        self.sm_scale = 0.0 if sm_scale is None else _convert.scale("sm_scale", sm_scale)
        self.reserve_pages = _convert.integer("reserve_pages", reserve, 0, _abi.PLAN_PAGES_MAX)
        self.wait = _convert.flag("wait", wait)
        self.strides = {
            name: _strides(name, pair)
            for name, pair in zip(STRIDED, options[13:OPTIONS])
            if pair is not None
        }
        self.numbers = numbers_of(options[OPTIONS:])
        self.fixed_split = self.numbers.get("fixed_split", 0)
        # What it was made of, if that cannot be changed in place.
        types, self.masked = tuple(map(type, options)), masked
        lasting = _LASTING.issuperset(types[: _OF_TYPES.start] + types[_OF_TYPES.stop :])
        self.options = options if lasting else None

    def same(self, options):
        """Whether @options are those that this was made of."""
        return self.options is not None and same(options, self.options)


def same(options, before):
    """Whether they are the same: a float is no int, whatever it is. Mostly they are the same
    objects. @before: of types that cannot be changed in place."""
    return all(map(operator.is_, options, before)) or (
        tuple(map(type, options)) == tuple(map(type, before)) and options == before
    )


def name_of(name):
    """What callers, and errors, call one of STRIDED."""
    return "out" if name == "o" else name


def _strides(name, pair):
    return _convert.integers(f"{name_of(name)}_strides", pair, 2, 0, 1 << 48)


def _agreed(pool, of_pool, q_type, kv_type):
    """Refuse what the pool contradicts. Return: the type of q, out and what is appended."""
    for (name, attribute), said in zip(_POOL, of_pool):
        has = getattr(pool, attribute)
        if said is not None and _convert.integer(name, said, 1, _convert.U32) != has:
            raise ValueError(f"{name} is {said}, and {has} in the pool")
    if kv_type is not None and dtype_name(kv_type, "kv_data_type") != pool.dtype:
        raise ValueError(f"kv_data_type is {kv_type}, and {pool.dtype} in the pool")
    rows = pool.rows_dtype if q_type is None else dtype_name(q_type, "q_data_type")
    if rows not in _abi.ROWS or pool.dtype not in (rows, *FP8):
        raise ValueError(f"q_data_type is {q_type}, and {pool.dtype} in the pool")
    return rows


