"""A judge: attention in float32 by PyTorch, request by request, over vLLM's cache. Slow; --graphs
off."""

import torch
from attnd.vllm import AttndBackend, AttndImpl, planes
from vllm.v1.attention.backend import AttentionMetadataBuilder


def register():
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "judge.Reference")


class Reference(AttndBackend):
    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder


class Builder(AttentionMetadataBuilder):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        """[(first row, end, tokens, pages)] of requests."""
        common = common_attn_metadata
        starts = common.query_start_loc_cpu[: common.num_reqs + 1].tolist()
        lengths = common.seq_lens[: common.num_reqs].tolist()
        return list(zip(starts, starts[1:], lengths, common.block_table_tensor))


class Impl(AttndImpl):
    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
        output_block_scale=None,
    ):  # fmt: skip
        if attn_metadata is None:
            return output.fill_(0)
        query, out = (x.view(-1, self.num_heads, self.head_size) for x in (query, output))
        group = self.num_heads // self.num_kv_heads
        for first, end, tokens, pages in attn_metadata:
            if end == first:
                continue
            k, v = (
                x[pages[: -(-tokens // x.shape[1])].long()].flatten(0, 1)[:tokens].float()
                for x in planes(kv_cache, self.head_size)
            )
            k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
            q = query[first:end].float().transpose(0, 1)
            at = torch.arange(tokens - (end - first), tokens, device=q.device)
            hidden = torch.arange(tokens, device=q.device) > at[:, None]
            scores = (q @ k.transpose(1, 2) * self.scale).masked_fill_(hidden, -torch.inf)
            out[first:end] = (scores.softmax(-1) @ v).transpose(0, 1).to(out.dtype)
        return output
