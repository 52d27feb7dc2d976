"""attnd as an attention backend of vLLM's v1 engine: --attention-backend CUSTOM.

The entry point `vllm.general_plugins` of this package calls register(). The service is found by
$ATTND_SOCKET and must run with --trust: vLLM's KV cache comes from cudaMalloc. A step is planned
once for all layers that attend alike; K and V are stored by vLLM's slots. It takes decoder
attention in fp16 and bf16, with windows, soft caps and sinks where the worker has them, and refuses
the rest by name. CUDA graphs of whole steps are not supported here: vLLM then runs attention
between pieces of them.
"""

from dataclasses import dataclass

from vllm.v1.attention.backend import (
    AttentionBackend, AttentionImpl, AttentionMetadataBuilder, AttentionType,
)  # fmt: skip

from ._layers import Layers, csr_of_blocks, identity
from .session import Session

_session = None


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
    """K and V of vLLM's cache [block, head, token, 2 * dim], as [block, token, head, dim]."""
    return tuple(kv_cache.transpose(1, 2).split(head_size, dim=-1))


class AttndBackend(AttentionBackend):
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return AttndImpl

    @staticmethod
    def get_builder_cls():
        return AttndMetadataBuilder

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

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls):
        return False  # the plan is made of the host's query lengths


@dataclass
class AttndMetadata:
    """One step's: its batch over all layers, and which of them a layer is."""

    layers: Layers
    number: dict
    causal: bool


class AttndMetadataBuilder(AttentionMetadataBuilder[AttndMetadata]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.layer_names, self.vllm_config, self.spec = (
            list(layer_names),
            vllm_config,
            kv_cache_spec,
        )
        self._layers = self._cache = None

    def _planned(self):
        """Layers over the caches that the engine has bound; anew when it has bound others."""
        context = self.vllm_config.compilation_config.static_forward_context
        caches = [context[name].kv_cache for name in self.layer_names]
        at = [identity(x) for x in caches]
        if at != self._cache:
            heads = context[self.layer_names[0]].impl.num_heads
            of = [planes(x, self.spec.head_size) for x in caches]
            self._layers, self._cache = Layers(session(), of, heads), at
        return self._layers

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common, layers = common_attn_metadata, self._planned()
        if not isinstance(common.causal, bool):
            raise NotImplementedError("attnd plans one causality for the whole batch")
        layers.begin(
            csr_of_blocks(
                common.query_start_loc_cpu[: common.num_reqs + 1], common.seq_lens[:
                common.num_reqs], common.block_table_tensor[: common.num_reqs],
                self.spec.block_size, ),
        )  # fmt: skip
        number = {name: i for i, name in enumerate(self.layer_names)}
        return AttndMetadata(layers, number, common.causal)


class AttndImpl(AttentionImpl[AttndMetadata]):
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None,
        sliding_window=None, kv_cache_dtype="auto", logits_soft_cap=None,
        attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None,
    ):  # fmt: skip
        for name, value in (
            ("alibi_slopes", alibi_slopes),
            ("kv_sharing_target_layer_name", kv_sharing_target_layer_name),
        ):  # fmt: skip
            if value:
                raise NotImplementedError(f"attnd has no {name} yet")
        if attn_type != AttentionType.DECODER or kv_cache_dtype not in (
            "auto",
            "float16",
            "bfloat16",
        ):
            raise NotImplementedError(f"attnd takes no {attn_type} attention over {kv_cache_dtype}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.sinks, self._way = sinks, {
            "sm_scale": self.scale, "logits_soft_cap": logits_soft_cap,
            "window_left": sliding_window - 1 if sliding_window else -1,
        }  # fmt: skip

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        """Padding has slot -1. It goes to block 0, which vLLM keeps as its null block."""
        slots = slot_mapping.clamp(min=0)
        for plane, new in zip(planes(kv_cache, self.head_size), (key, value)):
            at = slots // plane.shape[1], slots % plane.shape[1]
            plane[at] = new[: len(slots)].to(plane.dtype)

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None,
        output_block_scale=None,
    ):  # fmt: skip
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("attnd quantises no output")
        if attn_metadata is not None:  # else it is a warm-up
            number = attn_metadata.number[layer.layer_name]
            attn_metadata.layers.run(
                number, query, output, self.sinks, causal=attn_metadata.causal, **self._way
            )
        return output
