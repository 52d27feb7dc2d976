"""attnd as an attention backend of vLLM's v1 engine: --attention-backend CUSTOM.

The entry point `vllm.general_plugins` of this package calls register(). The service is found by
$ATTND_SOCKET and must run with --trust: vLLM's KV cache comes from cudaMalloc. Written for vLLM
0.33.0 and 0.25.1, whose backends say the form of the cache themselves.

A step is planned on the GPU from vLLM's own tensors (query_start_loc, seq_lens, block_table), by
the first layer of each kind; nothing comes to the host, and whole steps go into CUDA graphs, of
uniform batches and of mixed ones. K and V are stored by vLLM's kernel. Where the service executes
what streams launch (attnd --execute service), lengths come to the host, and attention runs between
pieces of graphs.

Taken: decoder attention of fp16 and bf16; caches of the same type, or of fp8 with scales of
tensors; windows, soft caps, sinks, slopes of ALiBi, layers that share a cache, drafts. Refused by
name when the engine starts: MLA, encoders and cross attention, non-causal attention, other
quantised caches, quantised output, scales that are found while it runs (calculate_kv_scales), dual
batch overlap, sleep mode, decode and prefill context parallelism.
"""

import functools
from dataclasses import dataclass

import torch
from vllm.v1.attention.backend import (
    AttentionBackend, AttentionCGSupport, AttentionImpl, AttentionMetadataBuilder, AttentionType,
)  # fmt: skip

from ._layers import identity
from ._steps import by_engine, layers_over
from .session import Session

_session = None
_FP8 = {"fp8": "float8_e4m3fn", "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}


def register():
    """Make the backend known to vLLM as CUSTOM."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    register_backend(AttentionBackendEnum.CUSTOM, "attnd.vllm.AttndBackend")


def session():
    """The process's session: one for all groups of layers."""
    global _session
    if _session is None or _session.left() or _session.closed:  # left: in a child of fork()
        _session = Session(name="vllm")
    return _session


def planes(kv_cache, head_size):
    """K and V of vLLM's cache, each [block, token, head, dim]. The cache is [block, head, token,
    2 * dim], or in 0.25.1 [block, 2, token, head, dim]."""
    if kv_cache.dim() == 5:
        return kv_cache.unbind(1)
    return kv_cache.transpose(1, 2).split(head_size, dim=-1)


def store(key, value, k, v, slots, kv_cache_dtype, k_scale, v_scale):
    """vLLM's kernel in torch, for the host. Padding has slot -1; it goes to block 0, which vLLM
    keeps as its null block."""
    kind = _FP8.get(kv_cache_dtype)
    slots = slots.clamp(min=0)
    at = slots // k.shape[1], slots % k.shape[1]
    for plane, new, scale in (k, key, k_scale), (v, value, v_scale):
        new = new[: len(slots)]
        if kind is None:
            plane[at] = new
        else:
            kind = getattr(torch, kind) if isinstance(kind, str) else kind
            plane.view(kind)[at] = (new.float() / scale).to(kind)


@functools.cache
def slopes_of(slopes):
    """A tensor of them: the same for all layers, so that they attend in one way."""
    return torch.tensor(slopes, dtype=torch.float32)


class AttndBackend(AttentionBackend):
    forward_includes_kv_cache_update = False
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16", *_FP8]

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return AttndImpl

    @staticmethod
    def get_builder_cls():
        return AttndMetadataBuilder

    @staticmethod
    def get_kv_cache_shape(
        num_blocks, block_size, num_kv_heads, head_size, cache_dtype_str="auto"
    ):  # of 0.25.1, and contiguous
        return num_blocks, 2, block_size, num_kv_heads, head_size

    @classmethod
    def get_supported_head_sizes(cls):
        return list(range(16, 257, 16))

    @classmethod
    def supports_attn_type(cls, attn_type):
        return attn_type == AttentionType.DECODER

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_sliding_window(cls):
        return True


@dataclass
class AttndMetadata:
    """One pass of a group of layers, and which of them a layer is."""

    step: object
    number: dict
    causal: bool
    arrays: tuple


class AttndMetadataBuilder(AttentionMetadataBuilder[AttndMetadata]):
    supports_update_block_table = True

    @classmethod
    def get_cudagraph_support(cls, vllm_config, kv_cache_spec):
        return AttentionCGSupport.ALWAYS if by_engine(session()) else AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        parallel, model = vllm_config.parallel_config, vllm_config.model_config
        for owner, name, most in (
            (parallel, "enable_dbo", 0), (parallel, "decode_context_parallel_size", 1),
            (parallel, "prefill_context_parallel_size", 1), (model, "enable_sleep_mode", 0),
        ):  # fmt: skip
            if int(getattr(owner, name, 0)) > most:
                raise NotImplementedError(f"attnd has no {name} yet")
        self._layers = self._caches = None
        self._number = {name: i for i, name in enumerate(layer_names)}

    def _planned(self):
        """Layers over the caches that the engine has bound; anew when it has bound others."""
        context = self.vllm_config.compilation_config.static_forward_context
        layers = [context[name] for name in self.layer_names]
        caches = [x.kv_cache.data_ptr() for x in layers], identity(layers[0].kv_cache)
        if caches != self._caches:
            self._layers, self._caches = None, caches
            self._layers = self._layers_of(layers)
        return self._layers

    def _layers_of(self, layers):
        config, impl = self.vllm_config, layers[0].impl
        scheduler, graphs = config.scheduler_config, config.compilation_config
        kind, options = _FP8.get(impl.kv_cache_dtype), {}
        if kind:
            options = scales_of(layers, impl.num_kv_heads)
        return layers_over(
            session(), [planes(x.kv_cache, impl.head_size) for x in layers], impl.num_heads,
            dtype=str(config.model_config.dtype).removeprefix("torch."), kv_dtype=kind,
            requests=scheduler.max_num_seqs, rows=scheduler.max_num_batched_tokens,
            sizes=[*(graphs.cudagraph_capture_sizes or ()), scheduler.max_num_batched_tokens],
            keys=config.model_config.max_model_len, **options,
        )  # fmt: skip

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        if not isinstance(common.causal, bool):
            raise NotImplementedError("attnd plans one causality for the whole batch")
        requests = common.num_reqs
        return self._metadata(
            common.causal, common.query_start_loc[: requests + 1], common.seq_lens[:requests],
            common.block_table_tensor[:requests],
        )  # fmt: skip

    def update_block_table(self, metadata, blk_table, slot_mapping):
        return self._metadata(metadata.causal, *metadata.arrays[:2], blk_table)

    def _metadata(self, causal, *arrays):
        return AttndMetadata(self._planned().begin(*arrays), self._number, causal, arrays)


def scales_of(layers, num_kv_heads):
    """plan()'s options of what fp8 caches hold: numbers, or a table where layers differ."""
    if any(getattr(x, "calculate_kv_scales", False) for x in layers):
        raise NotImplementedError("attnd has no calculate_kv_scales: scales are read at the start")
    scales = [(x._k_scale_float, x._v_scale_float) for x in layers]
    if len(set(scales)) == 1:
        return dict(zip(("k_scale", "v_scale"), scales[0]))
    table = torch.tensor(scales)[:, :, None].expand(-1, -1, num_kv_heads).contiguous()
    return {"kv_scales": table.to(layers[0].kv_cache.device)}


class AttndImpl(AttentionImpl[AttndMetadata]):
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None,
        sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
        attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None,
    ):  # fmt: skip
        kinds = AttndBackend.supported_kv_cache_dtypes
        if attn_type != AttentionType.DECODER or kv_cache_dtype not in kinds:
            raise NotImplementedError(f"attnd takes no {attn_type} attention over {kv_cache_dtype}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks, self._way = sinks, {
            "sm_scale": self.scale, "logits_soft_cap": logits_soft_cap or None,
            "window_left": sliding_window - 1 if sliding_window else -1,
        }  # fmt: skip
        if alibi_slopes is not None:
            slopes = slopes_of(tuple(alibi_slopes))
            self._way |= {"pos_encoding_mode": "ALIBI", "alibi_slopes": slopes}

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        """K and V of the step's tokens, by one kernel."""
        put = store
        if kv_cache.is_cuda:
            from vllm._custom_ops import reshape_and_cache_flash as put
        put(
            key, value, *planes(kv_cache, self.head_size), slot_mapping, self.kv_cache_dtype,
            layer._k_scale, layer._v_scale,
        )  # fmt: skip

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
        output_block_scale=None,
    ):  # fmt: skip
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attnd quantises no output")
        if attn_metadata is None:  # a warm-up
            return output.fill_(0)
        number = attn_metadata.number[layer.layer_name]
        attn_metadata.step.run(
            number, query.view(-1, self.num_heads, self.head_size),
            output.view(-1, self.num_heads, self.head_size), self.sinks,
            causal=attn_metadata.causal, **self._way,
        )  # fmt: skip
        return output
