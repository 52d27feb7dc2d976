"""attnd as an attention backend of SGLang: --attention-backend attnd.

The entry point `sglang.srt.plugins` of this package calls register() in every process of SGLang.
Written for SGLang 0.5.23 and 0.5.15. The service is found by $ATTND_SOCKET and must run with
--trust: SGLang's pools come from cudaMalloc.

A batch is planned on the GPU, from SGLang's lengths and its table of tokens, whose pages are
gathered for the batch by one kernel; decodes and chains of drafts that are verified go into CUDA
graphs. Where the service executes what streams launch (attnd --execute service), lengths and tables
come to the host, and --disable-cuda-graph is needed.

Taken: decoder attention of fp16 and bf16, over pools of the same type or of fp8 with scales of
tensors; pages of any size, prompts in chunks, the radix cache, mixed batches; windows, soft caps,
sinks. Refused by name: MLA, cross attention and encoders, attention in chunks, trees of drafts,
pools with a table of their own for windows (--disable-hybrid-swa-memory gives one for all), fused
writers of K and V.
"""

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from ._layers import identity
from ._steps import by_engine, layers_over
from .session import Session

try:
    from sglang.srt.arg_groups.choices import (
        ATTENTION_BACKEND_CHOICES, add_attention_backend_choices,
    )  # fmt: skip
except ImportError:  # 0.5.15
    from sglang.srt.server_args import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices

_FP8 = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}


def slots_of(forward_batch):
    """Where the batch's new K and V go."""
    if hasattr(KVWriteLoc, "for_batch"):
        return KVWriteLoc.for_batch(forward_batch)
    return KVWriteLoc(forward_batch.out_cache_loc)  # 0.5.15


def new_rows(forward_batch):
    """How many rows each request has: a number, or a tensor."""
    mode = forward_batch.forward_mode
    if mode.is_decode_or_idle():
        return 1
    if mode.is_target_verify():
        spec = forward_batch.spec_info
        if getattr(spec, "topk", 1) not in (None, 1):
            raise NotImplementedError("attnd has no trees of drafts: --speculative-eagle-topk 1")
        return spec.draft_token_num
    if forward_batch.extend_seq_lens is None:
        raise NotImplementedError(f"attnd has no {mode.name} batches")
    return forward_batch.extend_seq_lens


def arrays_of(forward_batch, req_to_token, page_size, pages):
    """A batch as the service plans it: where rows begin, lengths, and the table of its pages, of
    which so many are read; int32."""
    requests, new = forward_batch.batch_size, new_rows(forward_batch)
    lengths = forward_batch.seq_lens[:requests].int()
    starts = torch.zeros(requests + 1, dtype=torch.int32, device=lengths.device)
    if isinstance(new, int):
        torch.arange(0, requests * new + 1, new, dtype=torch.int32, out=starts)
        lengths += new if forward_batch.forward_mode.is_target_verify() else 0
    else:
        torch.cumsum(new[:requests], 0, dtype=torch.int32, out=starts[1:])
    tokens = req_to_token[:, : pages * page_size : page_size]
    table = tokens[forward_batch.req_pool_indices[:requests].long()]
    return starts, lengths, table // page_size if page_size > 1 else table


class Places:
    """Where graphs find the arrays of a batch."""

    def __init__(self, requests, pages, device):
        self.requests, shapes = requests, ((requests + 1,), (requests,), (requests, pages))
        self._arrays = [torch.zeros(x, dtype=torch.int32, device=device) for x in shapes]

    def fill(self, arrays):
        """Return: the places of a batch, which @arrays are copied to."""
        found = [place[: len(x)] for place, x in zip(self._arrays, arrays)]
        for place, x in zip(found, arrays):
            (place[:, : x.shape[1]] if x.dim() > 1 else place).copy_(x)
        return found


class AttndAttnBackend(AttentionBackend):
    def __init__(self, model_runner, session=None):
        super().__init__()
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.num_layers = model_runner.model_config.num_hidden_layers
        self._said = getattr(model_runner, "server_args", None)
        self._session, self._layers, self._known = session, None, {}
        self._places = []  # of graphs
        self._arrays = self._step = None  # the batch's; what attends
        self.page_size = getattr(self.token_to_kv_pool, "page_size", 1)
        if hasattr(self.token_to_kv_pool, "translate_loc_from_full_to_swa"):
            raise NotImplementedError("attnd needs --disable-hybrid-swa-memory")

    def _service(self):
        self._session = self._session or Session(name="sglang")
        return self._session

    # ---- batches ----

    def _pages(self, forward_batch, pages):
        """How many pages the batch's longest request has, as far as the host knows."""
        lengths = getattr(forward_batch, "seq_lens_cpu", None)
        if lengths is None or not len(lengths):
            return pages
        new = new_rows(forward_batch) if forward_batch.forward_mode.is_target_verify() else 0
        return min(pages, -(-(int(lengths.max()) + new) // self.page_size))

    def _begin(self, forward_batch, pages, places=None):
        table = self.req_to_token_pool.req_to_token
        arrays = arrays_of(forward_batch, table, self.page_size, max(1, pages))
        self._arrays = arrays if places is None else places.fill(arrays)
        self._step = self._layers.begin(*self._arrays) if self._layers else None

    def _pages_most(self):
        return -(-self.req_to_token_pool.req_to_token.shape[1] // self.page_size)

    def init_forward_metadata(self, forward_batch):
        self._begin(forward_batch, self._pages(forward_batch, self._pages_most()))

    def init_cuda_graph_state(self, max_bs, max_num_tokens):
        if not by_engine(self._service()):
            raise NotImplementedError("attnd needs --disable-cuda-graph: the service executes")
        if not any(max_bs <= x.requests for x in self._places):  # graphs have those that there are
            device = self.req_to_token_pool.req_to_token.device
            self._places.append(Places(max_bs, self._pages_most(), device))

    def init_forward_metadata_out_graph(self, forward_batch, in_capture=False):
        requests, most = forward_batch.batch_size, self._pages_most()
        places = next((x for x in self._places if requests <= x.requests), None)
        if places is None:
            raise NotImplementedError(f"attnd has no graphs of {requests} requests here")
        pages = most if in_capture else self._pages(forward_batch, most)
        self._begin(forward_batch, pages, places)

    def get_cuda_graph_seq_len_fill_value(self):
        return 1

    # ---- layers ----

    def _planes(self, number):
        """K and V of a layer, [page, token, head, dim]."""
        pool = self.token_to_kv_pool
        found = pool.get_key_buffer(number), pool.get_value_buffer(number)
        return tuple(x.unflatten(0, (-1, self.page_size)) for x in found)

    def _begun(self, layer, q, keys):
        """The step over the pool's buffers; over others, also where they were, when there are."""
        if self._layers is not None and self._known[layer.layer_id] != identity(keys):
            self._layers = self._step = None
        if self._layers is None:
            pool, said = self.token_to_kv_pool, self._said
            numbers = list(getattr(pool, "model_layer_ids", range(self.num_layers)))
            self._known = {i: identity(pool.get_key_buffer(i)) for i in numbers}
            self._number = {number: index for index, number in enumerate(numbers)}
            chunk = max(getattr(said, "chunked_prefill_size", None) or 0, 256)
            most = self.req_to_token_pool.req_to_token.shape
            self._layers = layers_over(
                self._service(), [self._planes(i) for i in numbers], layer.tp_q_head_num,
                dtype=str(q.dtype).removeprefix("torch."), kv_dtype=_FP8.get(keys.dtype),
                requests=most[0], rows=chunk, sizes=(chunk,), keys=most[1],
            )  # fmt: skip
        if self._step is None:
            self._step = self._layers.begin(*self._arrays)
        return self._step

    def forward_extend(
        self, q, k, v, layer, forward_batch, save_kv_cache=True, sinks=None, **kwargs
    ):  # fmt: skip
        for name, value in (
            ("cross attention", layer.is_cross_attention),
            ("soft cap but tanh's", layer.logit_cap and layer.logit_capping_method != "tanh"),
            ("attention of encoders", layer.attn_type != AttentionType.DECODER),
            (f"position encoding {layer.pos_encoding_mode}", layer.pos_encoding_mode != "NONE"),
            ("attention in chunks", layer.use_irope),
            ("temperature by length", layer.xai_temperature_len > 0),
            *((name, not (value is None or value is False)) for name, value in kwargs.items()),
        ):  # fmt: skip
            if value:
                raise NotImplementedError(f"attnd has no {name} yet")
        # It waits for pages from host memory.
        keys, way = self.token_to_kv_pool.get_key_buffer(layer.layer_id), {}
        if keys.dtype in _FP8:
            way = {"k_scale": layer.k_scale_float or 1.0, "v_scale": layer.v_scale_float or 1.0}
        if save_kv_cache and k is not None:
            scales = (layer.k_scale, layer.v_scale) if way and layer.k_scale is not None else ()
            self.token_to_kv_pool.set_kv_buffer(layer, slots_of(forward_batch), k, v, *scales)
        out = q.new_empty(len(q), layer.tp_q_head_num * layer.v_head_dim)
        step, number = self._begun(layer, q, keys), self._number[layer.layer_id]
        window = layer.sliding_window_size  # keys before the row's own, as FlashInfer counts
        step.run(
            number, q.view(len(q), layer.tp_q_head_num, -1),
            out.view(len(q), layer.tp_q_head_num, -1), sinks, causal=True, sm_scale=layer.scaling,
            logits_soft_cap=layer.logit_cap or None,
            window_left=-1 if window is None else max(window, -1), **way,
        )  # fmt: skip
        return out

    forward_decode = forward_extend


def register():
    """Make the backend known to SGLang as "attnd", and to its command line."""
    register_attention_backend("attnd")(AttndAttnBackend)
    if "attnd" not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices(["attnd"])
