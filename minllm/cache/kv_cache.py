"""The KV cache: keys and values of all tokens that the model has seen.

It has two arrays per layer, `[num_blocks, block_size, kv_heads, head_dim]`: 2 * layers * kv_heads * head_dim * itemsize bytes per token,
for Llama-3.2-1B in bf16 2 * 16 * 8 * 64 * 2 = 32 KiB. A policy assigns blocks to sequences (`policy.CachePolicy`).

A quantised cache (kernels/quantization) has blocks of codes and scales instead; with a residual window it also keeps the newest tokens
unquantised (residual_window.py). Layers with a sliding window may have arrays of their own, of fewer blocks (window_blocks.py).

The arrays of all layers are parts of one array `[2 * layers, num_blocks, ...]`, keys and values alternating (in a quantised cache one array
of codes and one of scales). So one launch copies a block in every layer; with separate arrays this would take 2 * layers launches.
"""

from dataclasses import dataclass, replace

import numpy as np

from minllm.cache.residual_window import WindowRoom
from minllm.cache.window_blocks import WindowBlocks
from minllm.kernels.attention.residual_window.reference import ring_blocks
from minllm.kernels.kv.copy_rounds import in_rounds
from minllm.kernels.quantization.cache import arrays_by_block, from_arrays
from minllm.kernels.quantization.formats import KvFormat
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.ops.batch import LayerCache, RecentCache


@dataclass(frozen=True, slots=True)
class SlidingLayers:
    """The layers with a sliding window, by their numbers, whose memory is in local blocks (window_blocks.py)."""

    window: int  # tokens
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The shape of a cache except for its number of blocks. format: None stores values unquantised, in `dtype`."""

    num_layers: int
    block_size: int  # tokens
    kv_heads: int
    head_dim: int
    dtype: np.dtype
    format: KvFormat | None = None
    residual_window: int = 0  # number of newest tokens that stay unquantised
    context_ranks: int = 1  # number of ranks that share each context (parallel/context_parallel.py)
    sliding: SlidingLayers | None = None  # None: all layers keep the whole context

    @property
    def tokens_per_entry(self) -> int:
        """Tokens per entry of a block table: one block on every rank that shares the context."""
        return self.block_size * self.context_ranks

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block over all layers that keep the whole context, keys and values together."""
        return (self.num_layers - len(self.local_layers)) * self._bytes_per_layer

    @property
    def bytes_per_local_block(self) -> int:
        """Bytes of one local block over all layers with local blocks."""
        return len(self.local_layers) * self._bytes_per_layer

    @property
    def local_layers(self) -> tuple[int, ...]:
        """The numbers of the layers with local blocks."""
        return () if self.sliding is None else self.sliding.layers

    @property
    def _bytes_per_layer(self) -> int:
        return 2 * self.block_size * self.kv_heads * self.bytes_per_head

    @property
    def bytes_per_head(self) -> int:
        """Bytes of one KV head of one token, keys or values: for a quantised cache, codes and their scales."""
        return self.head_dim * np.dtype(self.dtype).itemsize if self.format is None else self.format.bytes_per_head


class KVCache:
    """Keys and values of all layers, allocated once through `ops.zeros`.

    The memory must be zeros, not uninitialised: attention multiplies values at masked positions by 0, and 0 * NaN would be NaN.
    """

    def __init__(self, ops, shape: CacheShape, num_blocks: int, room: WindowRoom | None = None, num_local: int = 0):
        """room: for the residual windows; None if the shape has none. num_local: local blocks, for a shape with sliding layers."""
        self.shape, self.num_blocks, self.room, self.num_local = shape, num_blocks, room, num_local
        whole = shape.num_layers - len(shape.local_layers)
        if shape.format is None:
            block = (shape.block_size, shape.kv_heads, shape.head_dim)
            self.arrays = [ops.zeros((2 * whole, num_blocks, *block), shape.dtype)]
        else:
            found = arrays_by_block(shape.format, num_blocks, shape.block_size, shape.kv_heads)
            self.arrays = [ops.zeros((2 * whole, *one), dtype) for one, dtype in found]  # each [2 * layers, num_blocks, ...]
        self.layers = [LayerCache(self._half(ops, 2 * i), self._half(ops, 2 * i + 1)) for i in range(whole)]
        if shape.sliding is not None:
            self._make_local_layers(ops)

        if room is not None:
            self._make_windows(ops, room)

    def _half(self, ops, number: int):
        """The keys or the values of one layer: part `number` of the arrays."""
        parts, form = [array[number] for array in self.arrays], self.shape.format
        return parts[0] if form is None else from_arrays(form, parts, ops.array, by_channel=form.keys_by_channel and number % 2 == 0)

    def _make_local_layers(self, ops) -> None:
        """Allocate the local blocks, and put their layers among the others."""
        shape, numbers = self.shape, self.shape.local_layers
        block = (shape.block_size, shape.kv_heads, shape.head_dim)
        self.local = ops.zeros((2 * len(numbers), self.num_local, *block), shape.dtype)  # [2 * layers, num_local, ...]
        self.local_of = ops.zeros((self.num_blocks,), np.int32)
        for i, number in enumerate(numbers):
            self.layers.insert(number, LayerCache(self.local[2 * i], self.local[2 * i + 1], local_of=self.local_of))

    def place_windows(self, ops, windows: WindowBlocks, copies: list[tuple[int, int]]) -> None:
        """Copy local blocks as `copy_blocks` does, and tell the device which block has which local block."""
        for together in in_rounds(copies):
            ops.copy_blocks_of_layers(self.local, ops.array(np.array(together, np.int32)))
        if len(changes := windows.changes()):
            ops.write_words(self.local_of, ops.array(changes))
            windows.forget_changes()

    def _make_windows(self, ops, room: WindowRoom) -> None:
        """Allocate the rings of every layer, as parts of one array, and scratch memory for all layers."""
        shape, group = self.shape, (TOKEN_GROUP, self.shape.kv_heads, self.shape.head_dim)
        blocks = room.rings * ring_blocks(shape.residual_window)
        self.rings = ops.zeros((2 * shape.num_layers, blocks, *group), shape.dtype)
        scratch = (ops.zeros((room.scratch_blocks, *group), shape.dtype), ops.zeros((room.scratch_blocks, *group), shape.dtype))
        for i, layer in enumerate(self.layers):
            layer.recent = RecentCache(shape.residual_window, (self.rings[2 * i], self.rings[2 * i + 1]), scratch)

    def calibrate(self, smoothing: np.ndarray, scales: np.ndarray | None, ops) -> None:
        """Set a quantised cache's calibration, before anything is written: see engine/build/calibration.py.

        smoothing: float32 [layers, 3, kv_heads, head_dim], for keys. scales: float32 [layers, 2, kv_heads], for keys and values of an fp8
        cache, else None.
        """
        for i, layer in enumerate(self.layers):
            found = {} if scales is None else dict(scales=ops.array(scales[i, 0]))
            layer.key = replace(layer.key, smoothing=ops.array(smoothing[i]), **found)
            if scales is not None:
                layer.value = replace(layer.value, scales=ops.array(scales[i, 1]))

    def copy_blocks(self, ops, copies: list[tuple[int, int]]) -> None:
        """Copy blocks in every layer; `copies`, pairs (source, destination), take effect in order."""
        for together in in_rounds(copies):
            pairs = ops.array(np.array(together, np.int32))
            for array in self.arrays:
                ops.copy_blocks_of_layers(array, pairs)

    def copy_rings(self, ops, copies: list[tuple[int, int]]) -> None:
        """Copy rings in every layer; `copies`, pairs (source, destination), take effect in order."""
        size = ring_blocks(self.shape.residual_window)
        for together in in_rounds(copies):
            pairs = [(source * size + i, destination * size + i) for source, destination in together for i in range(size)]
            ops.copy_blocks_of_layers(self.rings, ops.array(np.array(pairs, np.int32)))

    @property
    def block_size(self) -> int:
        """Tokens per entry of a block table."""
        return self.shape.tokens_per_entry

    @property
    def num_tokens(self) -> int:
        """The number of tokens that fit the whole cache."""
        return self.num_blocks * self.shape.tokens_per_entry

    @property
    def num_bytes(self) -> int:
        """Bytes of the cache, including its residual windows."""
        windows = self.room.bytes(self.shape) if self.room else self.num_local * self.shape.bytes_per_local_block
        return self.num_blocks * self.shape.bytes_per_block + windows
