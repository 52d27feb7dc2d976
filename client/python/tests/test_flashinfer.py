"""FlashInfer as a judge: the same tensors through its wrappers and through the CUDA worker.

It runs where a GPU, PyTorch and FlashInfer are; $ATTND_PEERS names the folder that has the package.
FlashInfer compiles nothing here. UNBUILT lists features whose kernels need not be built ahead: where
one is missing, the feature is said to be not judged. Whatever else FlashInfer raises fails the
test. A window is judged by what is equal to it as well, a mask.
"""

import os
import sys
import unittest

import numpy as np

import attnd
from reference import Batch
from service import service
from test_attention import SEED

os.environ.setdefault("FLASHINFER_DISABLE_JIT", "1")
if os.environ.get("ATTND_PEERS"):
    sys.path.insert(0, os.environ["ATTND_PEERS"])
GPU, flashinfer = False, None
if os.environ.get("ATTND_BACKEND") == "cuda":
    try:
        import torch

        import flashinfer
        from flashinfer.jit import MissingJITCacheError

        GPU = torch.cuda.is_available()
    except ImportError as error:
        if os.environ.get("ATTND_PEERS"):
            raise  # a judge was named
        print(f"nobody judges: {error}", file=sys.stderr)
PAGES, PAGE, HEADS, HEADS_KV, DIM = 256, 16, 8, 2, 128
WORKSPACE_BYTES = 256 << 20
# Feature: what the kernels built ahead lack. Those are of fp16, of 128 dimensions, and plain except
# for masks.
UNBUILT = {
    "window 0": "a window",
    "window 17": "a window",
    "window 128": "a window",
    "soft cap": "a soft cap",
    "ALiBi": "ALiBi",
    "RoPE": "a rotation of keys",
    "sinks": "sinks",
    "float8_e4m3fn, head dimension 128": "keys of this type",
    "float8_e5m2, head dimension 128": "keys of this type",
    "float16, head dimension 64": "this head dimension",
}


@unittest.skipUnless(GPU and flashinfer, "no GPU, no FlashInfer, or ATTND_BACKEND is not cuda")
class FlashInferTest(unittest.TestCase):
    judged, unjudged = [], []

    @classmethod
    def setUpClass(cls):
        torch.cuda.init()
        context = service("--trust", backend="cuda")
        cls.path = context.__enter__()
        cls.addClassCleanup(context.__exit__, None, None, None)
        cls.addClassCleanup(cls.tell)

    @classmethod
    def tell(cls):
        print(f"FlashInfer {flashinfer.__version__} judged: {', '.join(cls.judged)}")
        for name in cls.unjudged:
            print(f"not judged: {name}: no kernel for {UNBUILT[name]} was built ahead")
        for name in filter(UNBUILT.__contains__, cls.judged):
            print(f"judged after all, though listed as not built ahead: {name}")

    def setUp(self):
        torch.zeros(1, device="cuda")  # a context is current
        torch.manual_seed(SEED)
        self.draw = np.random.default_rng(SEED)
        self.session = attnd.Session(self.path)
        self.addCleanup(self.session.close)
        self.pool, self.kv = self.make_pool()
        self.attention = attnd.BatchAttention(self.pool)

    # ---- both sides ----

    def normal(self, *shape):
        return torch.randn(*shape, device="cuda").half()

    def make_pool(self, page=PAGE, heads_kv=HEADS_KV, dim=DIM, dtype="float16"):
        pool = attnd.PagePool(
            self.session, 1, PAGES, page, heads_kv, dim, dtype, device="cuda", leased=False
        )
        planes = tuple(x.torch() for x in pool.kv_cache(0))
        for x in planes:
            x.copy_(self.normal(*x.shape).to(x.dtype))
        return pool, planes

    def workspace(self):
        return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")

    def ints(self, arrays):
        return [torch.tensor(np.asarray(x), dtype=torch.int32, device="cuda") for x in arrays]

    def prefill(self, batch, q, kv, layout="NHD", run=None, heads=(HEADS, HEADS_KV), **said):
        """FlashInfer's (o, lse) of a batch, by its kernels for many rows."""
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            self.workspace(), layout, backend="fa2"
        )
        dim, page = q.shape[2], kv[0].shape[1 if layout == "NHD" else 2]
        types = {"q_data_type": q.dtype, "kv_data_type": kv[0].dtype}
        wrapper.plan(*self.ints(batch.csr()), *heads, dim, page, **types, **said)
        return wrapper.run(q, kv, return_lse=True, **(run or {}))

    def masked(self, batch, q, mask):
        """The same under a mask. Its kernel that packs bits is not built ahead: they are packed here.
        Given packed ones, it looks for a request's at the byte that has the number of its first
        bit."""
        packed, at = np.zeros(mask.numel(), np.uint8), 0
        for rows, keys in zip(batch.qo_len, batch.kv_len):
            bits = mask[at : at + rows * keys].cpu().numpy()
            packed[at : at + -(-bits.size // 8)] = np.packbits(bits, bitorder="little")
            at += bits.size
        return self.prefill(batch, q, self.kv, packed_custom_mask=torch.tensor(packed).cuda())

    def ours(self, batch, q, attention=None, heads=HEADS, **said):
        attention = attention or self.attention
        attention.plan(*batch.csr(), heads, **said)
        result = attention.run(q, attention.pool.kv_cache(0), lse=True)
        torch.cuda.synchronize()
        attention.lane_error()
        return result

    def compare(self, name, ours, theirs, tolerance=2e-3):
        """@theirs: a function; it may lack its kernel if UNBUILT has the name."""
        with self.subTest(name):
            try:
                o, lse = theirs()
                torch.cuda.synchronize()
            except MissingJITCacheError:
                if name not in UNBUILT:
                    raise
                self.unjudged.append(name)
                return
            for got, wanted in ((ours[0], o), (ours[1], lse)):
                got, wanted = got.double().cpu().numpy(), wanted.double().cpu().numpy()
                np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
            self.judged.append(name)

    def masks_of(self, batch, causal=True, window_left=-1):
        """What rows see, as one array of bits for all requests."""
        masks = []
        for rows, keys in zip(batch.qo_len, batch.kv_len):
            place = np.arange(keys - rows, keys)[:, None]
            key = np.arange(keys)[None, :]
            sees = (key <= place) if causal else np.ones((rows, keys), bool)
            masks.append(sees & ((window_left < 0) | (key >= place - window_left)))
        return torch.tensor(np.concatenate([x.reshape(-1) for x in masks])).cuda()

    # ---- the features that both have ----

    def test_rows_causal_and_not_and_scales(self):
        for decode in (False, True):
            batch = Batch(self.draw, PAGES, PAGE, 7, 500, decode=decode)
            q = self.normal(batch.rows, HEADS, DIM)
            for name, said, run in (
                ("causal", {"causal": True}, {}),
                ("not causal", {}, {}),
                ("sm_scale", {"causal": True, "sm_scale": 0.3}, {}),
                ("k_scale and v_scale", {"causal": True}, {"k_scale": 0.5, "v_scale": 2.0}),
            ):
                self.compare(
                    f"{name}, {'decode' if decode else 'chunks'}",
                    self.ours(batch, q, **said, **run),
                    lambda: self.prefill(batch, q, self.kv, run=run, **said),
                )

    def test_decode_kernels(self):
        batch = Batch(self.draw, PAGES, PAGE, 9, 400, decode=True)
        q = self.normal(batch.rows, HEADS, DIM)

        def theirs(tensor_cores):
            wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
                self.workspace(), "NHD", use_tensor_cores=tensor_cores
            )
            _, *arrays = self.ints(batch.csr())
            types = {"q_data_type": torch.float16, "kv_data_type": torch.float16}
            wrapper.plan(*arrays, HEADS, HEADS_KV, DIM, PAGE, **types)
            return wrapper.run(q, self.kv, return_lse=True)

        for cores in (False, True):
            self.compare(f"decode, tensor cores {cores}", self.ours(batch, q), lambda: theirs(cores))

    def test_groups_and_pages(self):
        for page, heads, heads_kv in ((1, 4, 4), (5, 12, 4), (64, 16, 1), (16, 28, 4)):
            pool, kv = self.make_pool(page, heads_kv)
            batch = Batch(self.draw, PAGES, page, 4, min(PAGES // 4, 60) * page)
            q = self.normal(batch.rows, heads, DIM)
            self.compare(
                f"pages of {page}, heads {heads}/{heads_kv}",
                self.ours(batch, q, attnd.BatchAttention(pool), heads, causal=True),
                lambda: self.prefill(batch, q, kv, heads=(heads, heads_kv), causal=True),
            )

    def test_custom_masks(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 300)
        q = self.normal(batch.rows, HEADS, DIM)
        bits = sum(rows * keys for rows, keys in zip(batch.qo_len, batch.kv_len))
        mask = torch.tensor(self.draw.random(bits) < 0.7).cuda() | self.diagonal(batch)
        self.compare(
            "custom mask",
            self.ours(batch, q, custom_mask=mask),
            lambda: self.masked(batch, q, mask),
        )

    def diagonal(self, batch):
        """Each row sees its own key: the two differ in what they say of rows that see none."""
        return self.masks_of(batch, True, 0)

    def test_windows(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 600)
        q = self.normal(batch.rows, HEADS, DIM)
        for window in (0, 17, 128):
            ours = self.ours(batch, q, causal=True, window_left=window)
            self.compare(
                f"window {window}", ours,
                lambda: self.prefill(batch, q, self.kv, causal=True, window_left=window),
            )  # fmt: skip
            mask = self.masks_of(batch, True, window)
            self.compare(
                f"window {window} as a mask", ours,
                lambda: self.masked(batch, q, mask),
            )  # fmt: skip

    def test_scores_and_positions(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 400)
        q = self.normal(batch.rows, HEADS, DIM)
        for name, said in (
            ("soft cap", {"logits_soft_cap": 5.0}),
            ("ALiBi", {"pos_encoding_mode": "ALIBI"}),
            ("RoPE", {"pos_encoding_mode": "ROPE_LLAMA", "rope_theta": 1e4, "rope_scale": 1.0}),
        ):
            self.compare(
                name, self.ours(batch, q, causal=True, **said),
                lambda: self.prefill(batch, q, self.kv, causal=True, **said),
            )  # fmt: skip

    def test_sinks(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 400)
        q, sinks = self.normal(batch.rows, HEADS, DIM), torch.randn(HEADS, device="cuda")

        def theirs():
            wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
                self.workspace(), "NHD", backend="fa2", q_data_type=torch.float16,
                kv_data_type=torch.float16, head_dim_qk=DIM, head_dim_vo=DIM, window_left=-1,
            )  # fmt: skip
            types = {"q_data_type": torch.float16, "kv_data_type": torch.float16}
            arrays = self.ints(batch.csr())
            wrapper.plan(*arrays, HEADS, HEADS_KV, DIM, PAGE, causal=True, **types)
            return wrapper.run(q, self.kv, sinks, DIM**-0.5, return_lse=True)

        self.compare("sinks", self.ours(batch, q, causal=True, sinks=sinks), theirs)

    def test_other_types_and_dimensions(self):
        for dtype, dim in (("float8_e4m3fn", 128), ("float8_e5m2", 128), ("float16", 64)):
            pool, kv = self.make_pool(dim=dim, dtype=dtype)
            batch = Batch(self.draw, PAGES, PAGE, 5, 300)
            q = self.normal(batch.rows, HEADS, dim)
            self.compare(
                f"{dtype}, head dimension {dim}",
                self.ours(batch, q, attnd.BatchAttention(pool), causal=True),
                lambda: self.prefill(batch, q, kv, causal=True), 2e-2 if "8" in dtype[:6] else 2e-3,
            )  # fmt: skip

    def test_layouts_and_ragged_keys(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 300)
        q = self.normal(batch.rows, HEADS, DIM)
        ours = self.ours(batch, q, causal=True)
        kv = tuple(x.permute(0, 2, 1, 3).contiguous() for x in self.kv)
        self.compare(
            "HND", ours, lambda: self.prefill(batch, q, kv, "HND", causal=True)
        )  # fmt: skip

        def ragged():
            wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
                self.workspace(), "NHD", backend="fa2"
            )
            starts = np.concatenate([[0], np.cumsum(batch.kv_len)]).astype(np.int32)
            arrays = self.ints((batch.csr()[0], starts))
            types = {"q_data_type": torch.float16, "kv_data_type": torch.float16}
            wrapper.plan(*arrays, HEADS, HEADS_KV, DIM, causal=True, **types)
            k, v = (
                torch.cat([
                    x[pages].reshape(-1, HEADS_KV, DIM)[:n]
                    for pages, n in zip(batch.pages, batch.kv_len)
                ])
                for x in self.kv
            )  # fmt: skip
            return wrapper.run(q, k, v, return_lse=True)

        self.compare("ragged keys", ours, ragged)

    def test_levels(self):
        """A prefix of whole pages: two levels are one list of pages."""
        batch = Batch(self.draw, PAGES - 6, PAGE, 6, 150)
        prefix = [PAGES - 1 - i for i in range(6)]
        whole = Batch(self.draw, PAGES, PAGE, 1, 10)
        whole.pages = [prefix + pages for pages in batch.pages]
        whole.kv_len = [6 * PAGE + n for n in batch.kv_len]
        whole.qo_len, whole.rows = batch.qo_len, batch.rows
        q = self.normal(batch.rows, HEADS, DIM)
        shared = (
            np.array([0, batch.rows], np.int32), np.array([0, 6], np.int32),
            np.array(prefix, np.int32), np.array([PAGE], np.int32),
        )  # fmt: skip
        levels = [list(pair) for pair in zip(shared, batch.csr())]

        def ours(**said):
            self.attention.plan(*levels, HEADS, causal=True, **said)
            result = self.attention.run(q, self.pool.kv_cache(0), lse=True)
            torch.cuda.synchronize()
            self.attention.lane_error()
            return result

        def cascade():
            wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, self.workspace(), "NHD")
            arrays = [self.ints(level) for level in levels]
            types = {"q_data_type": torch.float16, "kv_data_type": torch.float16}
            wrapper.plan(*arrays, HEADS, HEADS_KV, DIM, PAGE, causal=True, **types)
            return wrapper.run(q, self.kv), ours()[1]  # it gives no lse

        self.compare("two levels, its cascade", ours(), cascade)
        self.compare(
            "two levels, as one list", ours(),
            lambda: self.prefill(whole, q, self.kv, causal=True),
        )  # fmt: skip
        for window in (40, 100):
            mask = self.masks_of(whole, True, window)
            self.compare(
                f"two levels with a window of {window}, as one list and a mask",
                ours(window_left=window),
                lambda: self.masked(whole, q, mask),
            )

    def test_states_are_merged(self):
        batch = Batch(self.draw, PAGES, PAGE, 5, 300)
        q, parts = self.normal(batch.rows, HEADS, DIM), []
        half = torch.tensor(self.draw.random(self.diagonal(batch).numel()) < 0.5).cuda()
        for mask in (half, ~half):
            parts += self.ours(batch, q, custom_mask=mask)
        o, lse = self.attention.merge_state(*parts)
        self.compare("merged states", (o, lse), lambda: flashinfer.merge_state(*parts))

    def test_append(self):
        batch = Batch(self.draw, PAGES, PAGE, 6, 200)
        k, v = (self.normal(batch.rows, HEADS_KV, DIM) for _ in range(2))
        theirs = tuple(x.clone() for x in self.kv)
        self.attention.plan(*batch.csr(), HEADS, causal=True)
        self.attention.append(k, v, self.pool.kv_cache(0))
        q = self.normal(batch.rows, HEADS, DIM)
        self.attention.run(q, self.pool.kv_cache(0), lse=True)  # behind the append
        torch.cuda.synchronize()
        self.attention.lane_error()

        def append():
            _, kv, indices, last = self.ints(batch.csr())
            # Its own function of these two compiles itself, which not every machine can.
            places = self.ints((
                np.repeat(np.arange(len(batch.qo_len)), batch.qo_len),
                np.concatenate([np.arange(n - m, n) for m, n in zip(batch.qo_len, batch.kv_len)]),
            ))  # fmt: skip
            flashinfer.append_paged_kv_cache(k, v, *places, theirs, indices, kv, last)
            return theirs

        self.compare("append", self.kv, append, 0)


if __name__ == "__main__":
    unittest.main()
