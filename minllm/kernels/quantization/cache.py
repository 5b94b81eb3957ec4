"""A quantised cache of keys or values: codes, scales, and the format that defines them.

It takes the place of a plain cache array as the key_cache or value_cache of one layer: `shape` is the shape of the plain array.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.quantization.formats import KvFormat
from minllm.kernels.quantization.reference import dequantize_by_channel, dequantize_reference, quantize_by_channel, quantize_reference
from minllm.runtime.array_protocol import Array


@dataclass(frozen=True)
class QuantizedCache:
    """Keys, or values, of one layer, in NumPy or on a device.

    codes: uint8 [num_blocks, kv_heads, block_size, code_bytes].
    scales: for integer formats float16 [num_blocks, kv_heads, block_size, groups, 2], pairs (scale, zero); for floats float32 [kv_heads].
    Unlike in a plain cache, the tokens of one head are contiguous: a kernel reads a block head by head, and memory moves in lines of
    128 bytes, which the few bytes of one head and token do not fill.
    smoothing: float32 [3, kv_heads, head_dim] or None for keys, None for values. The cached key is (key - smoothing[0]) * smoothing[1], and
    a query is multiplied by smoothing[2] = 1 / smoothing[1], so their dot products are unchanged, except for a constant shared by all
    keys, which softmax cancels (engine/build/calibration.py). Kernels that read the cache ignore it.
    by_channel: for keys of a format that quantises them by channel; scales are then float16 [num_blocks, kv_heads,
    block_size // token_group, head_dim, 2], a pair per channel for each group of token_group tokens, and smoothing is None, because
    scales per channel have the same effect.
    """

    codes: Array
    scales: Array
    format: KvFormat
    smoothing: Array | None = None
    by_channel: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(num_blocks, block_size, kv_heads, head_dim), the shape of the plain array."""
        num_blocks, kv_heads, block_size, _ = self.codes.shape
        return num_blocks, block_size, kv_heads, self.format.head_dim

    @property
    def ndim(self) -> int:
        """Number of axes of `shape`."""
        return 4

    @property
    def dtype(self) -> str:
        """The format's name, in place of a plain array's dtype."""
        return self.format.name

    def check_values(self, value_cache: "QuantizedCache") -> None:
        """Raise KernelArgumentError unless these are keys, and value_cache holds values in the same format."""
        check_same_format(self, value_cache)
        by_channel, wanted = (self.by_channel, value_cache.by_channel), (self.format.keys_by_channel, False)
        if by_channel != wanted:
            raise KernelArgumentError(f"keys and values by channel: {by_channel}; a cache in {self.dtype} must have {wanted}")

    def read(self, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Dequantise: float32 [..., kv_heads, head_dim], still smoothed (NumPy caches only).

        take: selects blocks and tokens from an array [num_blocks, block_size, kv_heads, ...], of codes and scales alike.
        """
        if self.by_channel:
            return self._read_by_channel(take)
        scales = self.scales if self.format.is_float else take(self.scales.swapaxes(1, 2))
        return dequantize_reference(take(self.codes.swapaxes(1, 2)), scales, self.format)

    def _read_by_channel(self, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """`read` for keys by channel: selects token indices first, because scales are stored per group."""
        blocks, _, block_size = self.codes.shape[:3]
        block = take(np.broadcast_to(np.arange(blocks)[:, None], (blocks, block_size)))
        token = take(np.broadcast_to(np.arange(block_size), (blocks, block_size)))
        return dequantize_by_channel(self.codes[block, :, token], self.scales[block, :, token // self.format.token_group])

    def put_groups(self, slots: np.ndarray, x: np.ndarray) -> None:
        """Quantise whole groups x [groups, token_group, kv_heads, head_dim] by channel; write each from its slot on (NumPy caches)."""
        block, token = np.divmod(slots, self.codes.shape[2])
        codes, pairs = quantize_by_channel(x.swapaxes(1, 2), self.format)  # [groups, kv_heads, token_group, code_bytes]
        self.scales[block, :, token // self.format.token_group] = pairs
        for i in range(self.format.token_group):
            self.codes[block, :, token + i] = codes[:, :, i]

    def smoothed(self, x: np.ndarray) -> np.ndarray:
        """x [tokens, kv_heads, head_dim] as cached but before quantisation, float32 (NumPy caches only)."""
        x = x.astype(np.float32)
        return x if self.smoothing is None else (x - self.smoothing[0]) * self.smoothing[1]

    def put(self, slots: np.ndarray, x: np.ndarray) -> None:
        """Quantise x [tokens, kv_heads, head_dim] and write it at `slots`, block * block_size + offset (NumPy caches only)."""
        codes, scales = quantize_reference(self.smoothed(x), self.format, self.scales if self.format.is_float else None)
        at = np.divmod(slots, self.codes.shape[2])
        self.codes.swapaxes(1, 2)[at] = codes
        if not self.format.is_float:
            self.scales.swapaxes(1, 2)[at] = scales


def is_quantized(cache: object) -> bool:
    """Whether a key_cache or value_cache is quantised."""
    return isinstance(cache, QuantizedCache)


def allocate(
    kv_format: KvFormat, num_blocks: int, block_size: int, kv_heads: int, zeros: Callable, array: Callable, by_channel: bool = False
) -> QuantizedCache:
    """An empty QuantizedCache; scales of float formats start at 1.

    zeros(shape, dtype), array(host_array): create arrays on the machine. by_channel: for keys of a format that quantises them by channel.
    Raises the errors of `arrays_by_block`.
    """
    found = arrays_by_block(kv_format, num_blocks, block_size, kv_heads)
    return from_arrays(kv_format, [zeros(shape, dtype) for shape, dtype in found], array, by_channel)


def arrays_by_block(kv_format: KvFormat, num_blocks: int, block_size: int, kv_heads: int) -> list[tuple[tuple[int, ...], Any]]:
    """(shape, dtype) of the arrays with an entry per block: codes, and scales of integer formats.

    They are the same for keys and values. Raises KernelArgumentError unless block_size is a multiple of the format's token_group.
    """
    group = kv_format.token_group
    if block_size % group:
        raise KernelArgumentError(f"{kv_format.name} has groups of {group} tokens; a block of {block_size} must be a multiple of that")
    codes = (num_blocks, kv_heads, block_size, kv_format.code_bytes), np.uint8
    scales = (num_blocks, kv_heads, block_size, kv_format.groups, 2), np.float16
    return [codes] if kv_format.is_float else [codes, scales]


def from_arrays(kv_format: KvFormat, arrays: list[Any], array: Callable, by_channel: bool = False) -> QuantizedCache:
    """A cache made of arrays with the shapes of `arrays_by_block`; see `allocate` for the rest.

    Keys by channel need as many scales as other keys, because a group has as many tokens as it otherwise has channels: a reshape suffices.
    """
    if kv_format.is_float:
        num_blocks, kv_heads, *_ = arrays[0].shape
        return QuantizedCache(arrays[0], array(np.ones(kv_heads, np.float32)), kv_format)
    codes, scales = arrays
    if by_channel:
        num_blocks, kv_heads, block_size, *_ = codes.shape
        scales = scales.reshape(num_blocks, kv_heads, block_size // kv_format.token_group, kv_format.head_dim, 2)
    return QuantizedCache(codes, scales, kv_format, by_channel=by_channel)


def check_same_format(key_cache: Any, value_cache: Any) -> None:
    """Raise KernelArgumentError unless both caches are plain, or both are quantised in the same format."""
    formats = [cache.format if is_quantized(cache) else None for cache in (key_cache, value_cache)]
    if formats[0] != formats[1]:
        words = [f"{found.name} in groups of {found.group_size}" if found else "not quantised" for found in formats]
        raise KernelArgumentError(f"the key_cache is {words[0]} and the value_cache {words[1]}; they must have one format")
