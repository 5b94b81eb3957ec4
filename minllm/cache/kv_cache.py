"""The KV cache: the keys and values of all tokens that the model has seen, so that each is computed once.

Two arrays a layer, `[num_blocks, block_size, kv_heads, head_dim]`. Bytes a token: 2 * layers * kv_heads * head_dim * itemsize, for
Llama-3.2-1B in bf16 2 * 16 * 8 * 64 * 2 = 32 KiB. Which block belongs to whom is a policy's business
(`policy.CachePolicy`).
"""

from dataclasses import dataclass

import numpy as np

from minllm.ops.protocol import LayerCache


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What fixes the size of a cache apart from its number of blocks."""

    num_layers: int
    block_size: int  # tokens
    kv_heads: int
    head_dim: int
    dtype: np.dtype

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers, keys and values together."""
        return 2 * self.num_layers * self.block_size * self.kv_heads * self.head_dim * np.dtype(self.dtype).itemsize


class KVCache:
    """Keys and values of all layers, allocated once through `ops.zeros`.

    Zeros rather than whatever was in memory: a masked position is multiplied by an exact 0 in the softmax, and 0 * NaN would be NaN.
    """

    def __init__(self, ops, shape: CacheShape, num_blocks: int):
        self.shape = shape
        self.num_blocks = num_blocks
        array_shape = (num_blocks, shape.block_size, shape.kv_heads, shape.head_dim)
        self.layers = [
            LayerCache(key=ops.zeros(array_shape, shape.dtype), value=ops.zeros(array_shape, shape.dtype)) for _ in range(shape.num_layers)
        ]

    def copy_blocks(self, ops, copies: list[tuple[int, int]]) -> None:
        """Copies blocks, (source, destination) one after the other, in every layer."""
        for layer in self.layers:
            for array in (layer.key, layer.value):
                ops.copy_blocks(array, copies)

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.shape.block_size

    @property
    def num_tokens(self) -> int:
        """How many tokens fit the whole cache."""
        return self.num_blocks * self.shape.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache takes."""
        return self.num_blocks * self.shape.bytes_per_block
