"""attnd as an attention backend of SGLang: --attention-backend attnd.

The entry point `sglang.srt.plugins` of this package calls register() in every process of SGLang.

SGLang's pools hold [token, head, dim] a layer and its tables name tokens, so a page is one token.
The service is found by $ATTND_SOCKET and must run with --trust: the pools come from cudaMalloc. It
takes decoder attention in fp16 and bf16, with windows, soft caps and sinks where the worker has
them; --disable-cuda-graph is needed, because the hooks with which SGLang captures its graphs are
not there, and --disable-hybrid-swa-memory, because all layers share one page table.
"""

import numpy
import torch
from sglang.srt.arg_groups.choices import ATTENTION_BACKEND_CHOICES, add_attention_backend_choices
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc

from ._layers import Layers, identity
from .session import Session


def csr_of_tokens(req_to_token, req_pool_indices, seq_lens, query_lens):
    """Tables of single tokens as CSR arrays."""
    rows, lengths = req_pool_indices.tolist(), [int(n) for n in seq_lens]
    tables = [req_to_token[row, :length] for row, length in zip(rows, lengths)]
    indices = torch.cat(tables).int().cpu().numpy() if tables else numpy.empty(0, numpy.int32)

    def starts(counts):
        return numpy.concatenate([[0], numpy.cumsum(counts)]).astype(numpy.int32)

    return (
        starts([int(n) for n in query_lens]),
        starts(lengths),
        indices,
        numpy.ones(len(lengths), numpy.int32),
    )


class AttndAttnBackend(AttentionBackend):
    def __init__(self, model_runner, session=None):
        super().__init__()
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.num_layers = model_runner.model_config.num_hidden_layers
        self._session, self._layers, self._csr = session, None, None
        self._begun_csr, self._known = None, {}  # the batch's; what each layer's keys are

    def init_forward_metadata(self, forward_batch):
        """The batch's page table. The first layer begins it: it tells the number of heads."""
        queries = forward_batch.extend_seq_lens
        if forward_batch.forward_mode.is_decode():
            queries = [1] * len(forward_batch.seq_lens)
        elif queries is None:
            raise NotImplementedError(f"attnd has no {forward_batch.forward_mode.name} batches")
        self._csr = csr_of_tokens(
            self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices,
            forward_batch.seq_lens, queries,
        )  # fmt: skip

    def _begun(self, layer, keys):
        """Layers over the pool's buffers; anew when it has made others, also where they were."""
        if self._layers is not None and self._known[layer.layer_id] != identity(keys):
            self._layers, self._csr = None, self._begun_csr
        if self._layers is None:
            pool = self.token_to_kv_pool
            if hasattr(pool, "translate_loc_from_full_to_swa"):
                raise NotImplementedError("attnd needs --disable-hybrid-swa-memory")
            numbers = list(getattr(pool, "model_layer_ids", range(self.num_layers)))
            self._known = {i: identity(pool.get_key_buffer(i)) for i in numbers}
            self._number = {number: index for index, number in enumerate(numbers)}
            self._session = self._session or Session(name="sglang")
            self._layers = Layers(
                self._session,
                [(pool.get_key_buffer(i)[:, None], pool.get_value_buffer(i)[:, None])
                 for i in numbers],
                layer.tp_q_head_num,
            )  # fmt: skip
        if self._csr is not None:
            self._layers.begin(self._csr)
            self._begun_csr, self._csr = self._csr, None
        return self._layers

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
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)  # waits for pages from host memory
        if save_kv_cache and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc.for_batch(forward_batch), k, v)
        out = q.new_empty(len(q), layer.tp_q_head_num * layer.v_head_dim)
        layers = self._begun(layer, keys)
        window = layer.sliding_window_size  # keys before the row's own, as FlashInfer counts
        layers.run(
            self._number[layer.layer_id], q, out, sinks, causal=True, sm_scale=layer.scaling,
            logits_soft_cap=layer.logit_cap, window_left=-1 if window is None else max(window, -1),
        )  # fmt: skip
        return out

    forward_decode = forward_extend


def register():
    """Make the backend known to SGLang as "attnd", and to its command line."""
    register_attention_backend("attnd")(AttndAttnBackend)
    if "attnd" not in ATTENTION_BACKEND_CHOICES:
        add_attention_backend_choices(["attnd"])
