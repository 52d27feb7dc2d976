"""What is measured: shapes of heads and pages, batches, which of them make the default grid; and
the floor, below which no kernel gets.
"""

import dataclasses
import random

HEADS = (
    "32/8", "28/4", "40/8", "64/8", "16/2", "12/2", "8/1", "16/8", "32/32", "48/8", "71/71",
)  # fmt: skip
DIMS = ("64", "128", "256", "192/128", "576/512")
PAGES = (1, 16, 64, 128)
TYPES = ("fp16", "bf16", "fp8")
BYTES = {"fp16": 2, "bf16": 2, "fp8": 1}
LATENT = "576/512"  # V lies in the rows of K
FLOPS = 700e12  # the products' floor
WINDOW = 1024


@dataclasses.dataclass(frozen=True)
class Batch:
    """Requests as (query rows, keys, those rows included), those of several rows first."""

    name: str
    words: str
    requests: tuple
    tree: bool = False  # the rows of a request see its context and their ancestors only
    window: int = 0  # keys that a row sees before its own, with its own

    @property
    def rows(self):
        return sum(rows for rows, _ in self.requests)


def verification(rows):
    return tuple((rows, 2000 + 17 * i) for i in range(32))


ALL_BATCHES = (
    Batch("A", "8 decodes at 1000 to 1259", tuple((1, 1000 + 37 * i) for i in range(8))),
    Batch("B", "64 decodes at 500 to 3839", tuple((1, 500 + 53 * i) for i in range(64))),
    Batch("E", "256 decodes at 100 to 355", tuple((1, 100 + i) for i in range(256))),
    Batch("L", "a decode at 32000", ((1, 32000),)),
    Batch("X", "a decode at 131072", ((1, 131072),)),
    Batch("S", "32 requests of 5 rows at 2000 to 2527", verification(5)),
    *(
        Batch(f"V{n}", f"32 requests of {n} rows at 2000 to 2527", verification(n))
        for n in (2, 3, 4, 8, 16)
    ),
    Batch("T", "32 trees of 15 rows at 2000 to 2527", verification(15), tree=True),
    Batch("Q", "a prompt of 2000", ((2000, 2000),)),
    Batch("P", "4 chunks of 1000 at 4001", ((1000, 4001),) * 4),
    Batch("M", "a chunk of 512 at 8192 and 32 decodes at 4096", ((512, 8192), *((1, 4096),) * 32)),
    Batch("W", f"32 decodes at 8000, windows of {WINDOW}", ((1, 8000),) * 32, window=WINDOW),
    Batch("WQ", f"a prompt of 8000, windows of {WINDOW}", ((8000, 8000),), window=WINDOW),
)
BATCHES = {batch.name: batch for batch in ALL_BATCHES}
CORE = ("A", "B", "S", "Q", "P")
ROWS_2_TO_16 = ("S", "V2", "V3", "V4", "V8", "V16", "T")
PREFILLS = ("Q", "P")
# Small ones of each kind, for a run without a GPU.
DRY_BATCHES = {
    "A": Batch("A", "3 decodes", ((1, 20), (1, 33), (1, 1))),
    "S": Batch("S", "2 requests of 5 rows", ((5, 20), (5, 37))),
    "T": Batch("T", "2 trees of 7 rows", ((7, 30), (7, 41)), tree=True),
    "Q": Batch("Q", "a prompt of 40", ((40, 40),)),
    "M": Batch("M", "a chunk and a decode", ((9, 50), (1, 70))),
    "W": Batch("W", "a window of 8", ((1, 50), (1, 5)), window=8),
}


@dataclasses.dataclass(frozen=True)
class Shape:
    heads: str = "32/8"
    dim: str = "128"
    page: int = 16
    type: str = "fp16"

    @property
    def heads_q(self):
        return int(self.heads.split("/")[0])

    @property
    def heads_kv(self):
        return int(self.heads.split("/")[1])

    @property
    def dim_qk(self):
        return int(self.dim.split("/")[0])

    @property
    def dim_vo(self):
        return int(self.dim.split("/")[-1])

    @property
    def latent(self):
        return self.dim == LATENT

    @property
    def name(self):
        return f"{self.heads} x {self.dim}, pages of {self.page}, {self.type}"

    @property
    def key(self):
        """Elements of a key of all heads, K and V."""
        return self.heads_kv * (self.dim_qk + (0 if self.latent else self.dim_vo))


@dataclasses.dataclass(frozen=True)
class Case:
    shape: Shape
    batch: Batch

    @property
    def name(self):
        return f"{self.shape.name}: {self.batch.name}"


def pages_of(batch, page):
    return sum(-(-tokens // page) for _, tokens in batch.requests)


def page_order(count, seed):
    """Pages in random order."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


# ---- the floor ----


def seen(batch):
    """(keys that are read, pairs of a row and a key that it sees) of one head."""
    keys = pairs = 0
    for rows, tokens in batch.requests:
        if batch.tree:
            before = tokens - rows
            pairs += sum(before + depth(row) for row in range(rows))
            keys += tokens
            continue
        reach = batch.window or tokens
        pairs += sum(min(tokens - rows + row + 1, reach) for row in range(rows))
        keys += min(tokens, reach + rows - 1)
    return keys, pairs


def depth(row):
    """How many rows of its tree a row sees: itself and its ancestors. Row i's parent is
    (i - 1) / 2."""
    count = 1
    while row:
        row, count = (row - 1) // 2, count + 1
    return count


def floor_us(case, bytes_per_s):
    """The longer of two times: of the bytes, each once, and of the products."""
    shape, batch = case.shape, case.batch
    keys, pairs = seen(batch)
    of_rows = 2 * batch.rows * shape.heads_q * (shape.dim_qk + shape.dim_vo)
    moved = keys * shape.key * BYTES[shape.type] + of_rows
    flops = 2 * pairs * shape.heads_q * (shape.dim_qk + shape.dim_vo)
    return max(moved / bytes_per_s, flops / FLOPS) * 1e6


# ---- grids ----


def product(heads, dims, pages, types, batches):
    return [
        Case(Shape(h, d, page, t), BATCHES[b])
        for d in dims
        for t in types
        for page in pages
        for h in heads
        for b in batches
    ]


def default_grid():
    """Every head shape with most batches, and every other choice with the core of them."""
    few = ("32/8", "28/4", "16/2", "8/1")
    parts = [
        product(HEADS, ("128",), (16,), ("fp16",), (*CORE, "E", "L", "M", "V2", "V16")),
        product(few, ("128",), (16,), ("fp16",), ("V3", "V4", "V8", "T", "W", "WQ")),
        product(("32/8", "8/1"), ("128",), (16,), ("fp16",), ("X",)),
        product(few, ("128",), (1,), ("fp16",), CORE),
        product(("32/8",), ("128",), (64, 128), ("fp16",), CORE),
        product(("32/8", "8/1"), ("128",), (16,), ("bf16",), CORE),
        product(("32/8", "8/1"), ("128",), (16,), ("fp8",), CORE),
        product(("32/8",), ("64",), (16,), ("fp16",), CORE),
        product(("16/8",), ("256",), (16,), ("fp16", "bf16"), CORE),
        product(("32/32",), ("192/128",), (16,), ("bf16",), ("A", "S", "Q", "P")),
        product(("16/1", "128/1"), (LATENT,), (64,), ("bf16",), ("A", "B", "S", "L")),
    ]
    return list(dict.fromkeys(case for part in parts for case in part))


def dry_grid():
    """Small batches of shapes that the CPU worker takes, one of each kind."""
    shapes = [Shape("8/2"), Shape("4/4", page=1), Shape("6/1", "64", 64), Shape("2/2", "192/128")]
    return [Case(shape, batch) for shape in shapes for batch in DRY_BATCHES.values()]
