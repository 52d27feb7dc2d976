"""What attnd is measured beside, where it is there: FlashInfer's ways, cuDNN and FlashAttention-2
by PyTorch, FlashAttention-3 and FlashAttention-4 by their own packages.

Each is a Way. Those that want K and V contiguous get a copy, which is not timed; they take batches
of equal requests only.
"""

import dataclasses
import statistics
import typing

import judge
from device import LAYERS

SAMPLES = 3  # by which the fastest is chosen
SEED = 7  # of the rows that are judged


@dataclasses.dataclass
class Way:
    name: str
    call: typing.Callable  # of a layer
    result: typing.Callable  # o as [rows, heads_q, dim_vo]


@dataclasses.dataclass
class Buffers:
    """What FlashInfer's planner takes."""

    q: list
    o: list
    k: list
    v: list


def equal_requests(case):
    """(rows, tokens) of every request if they are all alike and see all that is before them."""
    alike = set(case.batch.requests)
    plain = not (case.batch.tree or case.batch.window or case.shape.latent)
    return next(iter(alike)) if len(alike) == 1 and plain else None


class Contiguous:
    """q, K and V of a batch of equal requests as [batch, tokens, heads, dim]."""

    def __init__(self, case, device):
        self.rows, self.tokens = equal_requests(case)
        count = len(case.batch.requests)
        self.q = device.q.view(count, self.rows, *device.q.shape[1:])
        self.k, self.v = (
            [self.copy(device, plane) for plane in planes] for planes in (device.k, device.v)
        )

    def copy(self, device, plane):
        return device.torch.stack(
            [plane[pages].flatten(0, 1)[: self.tokens] for pages in device.pages]
        ).contiguous()


class Others:
    """The peers that this process has."""

    def __init__(self, torch, device, peers, with_fa4):
        self.torch, self.device, self.left_out = torch, device, {}
        self.flashinfer = self.found("flashinfer", lambda: import_flashinfer(peers))
        self.fa3 = self.found("FA3", import_fa3)
        self.fa4 = self.found("FA4", import_fa4) if with_fa4 else None

    def found(self, name, importing):
        try:
            return importing()
        except Exception as error:  # whatever it fails with, it is not there
            self.left_out[name] = f"{type(error).__name__}: {error}".split("\n")[0]
            return None

    def fastest(self, case, batch):
        """The fastest Way whose rows are right, or None; what was left out, in words."""
        timed, why, layer = [], {}, LAYERS - 1
        for name, make in self.makers(case, batch).items():
            try:
                way = make()
                timed.append((self.time_us(way.call), name, way))
            except Exception as error:  # not built, or not for this shape
                why[name] = str(error).split("\n")[0][:200] or repr(error)
        for _, name, way in sorted(timed, key=lambda found: found[0]):
            try:
                self.device.poison(self.device.o_peer)
                way.call(layer)
                self.device.wait()
                judge.check(case, self.device, layer, way.result(), SEED)
                return way, why
            except ValueError as wrong:
                why[name] = str(wrong)
        return None, why

    def time_us(self, call):
        for layer in range(LAYERS):
            call(layer)
        return statistics.median(
            self.device.sample_us(call, i % LAYERS) for i in range(SAMPLES)
        )  # fmt: skip

    def makers(self, case, batch):
        """{name: a function that makes a Way}."""
        found = {}
        if self.flashinfer and not case.shape.latent:
            found["FlashInfer"] = lambda: self.of_flashinfer(case, batch)
        if self.fa3 and not (case.batch.tree or case.batch.window or case.shape.latent):
            found["FA3"] = lambda: self.of_fa3(case, batch)
        if equal_requests(case) and case.shape.type != "fp8":
            for name in "CUDNN_ATTENTION", "FLASH_ATTENTION":
                found[name] = lambda name=name: self.of_torch(case, name)
            if self.fa4:
                found["FA4"] = lambda: self.of_fa4(case)
        return found

    # ---- each ----

    def of_flashinfer(self, case, batch):
        import flashinfer_way

        torch, device, options = self.torch, self.device, {}
        if case.batch.tree:
            bits, starts = judge.packed_mask_of(case)
            options["mask"] = torch.from_numpy(bits).cuda(), starts
        if case.batch.window:
            options["window_left"] = case.batch.window - 1
        buffers = Buffers([device.q] * LAYERS, [device.o_peer] * LAYERS, device.k, device.v)
        planner = flashinfer_way.Planner(torch, self.flashinfer, batch, buffers, **options)
        chosen = flashinfer_way.FlashInferAttention(planner, self.time_us)
        return Way(f"FlashInfer {chosen.name}", chosen.attend, lambda: device.o_peer)

    def of_torch(self, case, name):
        torch = self.torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        attend = torch.nn.functional.scaled_dot_product_attention
        of = Contiguous(case, self.device)
        q, k, v = (
            [x.transpose(1, 2) for x in planes] for planes in ([of.q] * LAYERS, of.k, of.v)
        )  # fmt: skip
        options = {"enable_gqa": True, "is_causal": of.rows == of.tokens}
        if 1 < of.rows < of.tokens:
            options = {"enable_gqa": True, "attn_mask": causal_lower_right(of.rows, of.tokens)}
        backend, last = getattr(SDPBackend, name), [None]

        def call(layer):
            with sdpa_kernel(backend):
                last[0] = attend(q[layer], k[layer], v[layer], **options)

        words = {"CUDNN_ATTENTION": "cuDNN", "FLASH_ATTENTION": "FA2 of PyTorch"}
        return Way(words[name], call, lambda: last[0].transpose(1, 2).flatten(0, 1))

    def of_fa3(self, case, batch):
        torch, device = self.torch, self.device
        rows = {rows for rows, _ in case.batch.requests}
        if len(rows) != 1:
            raise ValueError("it takes requests of equal rows")
        longest = max(batch.counts)
        table = torch.tensor(
            [pages + [0] * (longest - len(pages)) for pages in batch.pages], dtype=torch.int32
        ).cuda()
        lengths = torch.tensor(batch.tokens, dtype=torch.int32).cuda()
        q, last = device.q.view(len(batch.pages), rows.pop(), *device.q.shape[1:]), [None]

        def call(layer):
            last[0] = self.fa3(
                q, device.k[layer], device.v[layer], cache_seqlens=lengths, page_table=table,
                causal=True,
            )  # fmt: skip

        return Way("FA3", call, lambda: last[0].flatten(0, 1))

    def of_fa4(self, case):
        of, last = Contiguous(case, self.device), [None]

        def call(layer):
            last[0] = self.fa4(of.q, of.k[layer], of.v[layer], causal=True)

        def result():
            o = last[0][0] if isinstance(last[0], tuple) else last[0]
            return o.flatten(0, 1)

        return Way("FA4", call, result)


def import_flashinfer(peers):
    import flashinfer_way

    return flashinfer_way.import_flashinfer(peers)


def import_fa3():
    from flash_attn_interface import flash_attn_with_kvcache

    return flash_attn_with_kvcache


def import_fa4():
    from flash_attn.cute import flash_attn_func

    return flash_attn_func
