"""Sizes of the models whose layers are measured. Only sizes: what a model has beside (norms of q
and k, biases, windows) is left out for all ways alike."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Sizes:
    hidden: int
    heads_q: int
    heads_kv: int
    head_dim: int
    ffn: int

    @property
    def qkv(self):
        """Columns of the QKV product."""
        return (self.heads_q + 2 * self.heads_kv) * self.head_dim


# "/8" is one of eight ranks of a model that is split by heads and by columns of the FFN.
MODELS = {
    "llama-8b": Sizes(4096, 32, 8, 128, 14336),
    "llama-70b/8": Sizes(8192, 8, 1, 128, 3584),
    "qwen2-7b": Sizes(3584, 28, 4, 128, 18944),
    "qwen3-0.6b": Sizes(1024, 16, 8, 128, 3072),
    "gemma-2-9b": Sizes(3584, 16, 8, 256, 14336),
}
DEFAULT_MODEL = "llama-8b"
GRID_MODELS = ("llama-8b", "llama-70b/8", "qwen2-7b", "qwen3-0.6b")
