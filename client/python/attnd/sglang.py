"""attnd as an attention backend of SGLang: `register()` and then --attention-backend attnd.

SGLang's pools hold [token, head, dim] a layer and its tables name tokens, so a page is one token.
The service is found by $ATTND_SOCKET and must run with --trust: the pools come from cudaMalloc. It
takes decoder attention in fp16 and bf16; --disable-cuda-graph is needed, because the hooks with
which SGLang captures its graphs are not there.
"""

import numpy
import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend

from ._layers import Layers
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
        self._session, self._layers, self._csr, self._scale = session, None, None, None

    def init_forward_metadata(self, forward_batch):
        """The batch's page table. It is planned with the first layer, which tells heads and
        scale."""
        extend = forward_batch.extend_seq_lens
        queries = (
            [1] * len(forward_batch.seq_lens) if forward_batch.forward_mode.is_decode() else extend
        )
        self._csr = csr_of_tokens(
            self.req_to_token_pool.req_to_token, forward_batch.req_pool_indices,
            forward_batch.seq_lens, queries,
        )  # fmt: skip

    def _planned(self, layer):
        if (
            layer.sliding_window_size not in (None, -1)
            or layer.logit_cap
            or layer.is_cross_attention
        ):
            raise NotImplementedError(
                "attnd has no sliding window, soft cap or cross attention yet"
            )
        if layer.qk_head_dim != layer.v_head_dim:
            raise NotImplementedError("attnd takes equal head dimensions of K and V")
        if self._layers is None:
            pool = self.token_to_kv_pool
            caches = [
                (pool.get_key_buffer(i), pool.get_value_buffer(i)) for i in range(self.num_layers)
            ]
            self._session = self._session or Session(name="sglang")
            self._layers = Layers(
                self._session, [(k[:, None], v[:, None]) for k, v in caches], layer.tp_q_head_num
            )
        if self._csr is not None or layer.scaling != self._scale:
            self._scale = layer.scaling
            self._last = self._csr or self._last
            self._csr = None
            self._layers.plan(self._last, True, layer.scaling)
        return self._layers

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        if save_kv_cache and k is not None:
            from sglang.srt.mem_cache.memory_pool import KVWriteLoc

            self.token_to_kv_pool.set_kv_buffer(
                layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v
            )
        out = torch.empty_like(q)
        self._planned(layer).run(layer.layer_id, q, out)
        return out

    forward_decode = forward_extend


def register():
    """Make the backend known to SGLang as "attnd"."""
    register_attention_backend("attnd")(AttndAttnBackend)
