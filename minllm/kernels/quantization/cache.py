"""A quantised cache of keys or of values: the codes, their scales, and the format that says what they mean.

It stands wherever a plain cache array does, as the key_cache or the value_cache of one layer: `shape` is what the plain array's would be.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.errors import KernelArgumentError
from minllm.kernels.quantization.formats import KvFormat
from minllm.kernels.quantization.reference import dequantize_by_channel, dequantize_reference, quantize_by_channel, quantize_reference


@dataclass(frozen=True)
class QuantizedCache:
    """Keys, or values, of one layer, in NumPy or on a device.

    codes: uint8 [num_blocks, kv_heads, block_size, code_bytes]. scales: of integers float16 [num_blocks, kv_heads, block_size, groups, 2],
    pairs of scale and zero; of floats float32 [kv_heads]. A head's tokens lie side by side, other than in a plain cache: a kernel reads
    a block head by head, and memory moves in lines of 128 bytes, which a head's few bytes of one token do not fill.
    smoothing: of keys float32 [3, kv_heads, head_dim] or None, of values None. What is cached of a key is (key - smoothing[0]) *
    smoothing[1], and a query is multiplied by smoothing[2] = 1 / smoothing[1] before it meets them, so that their products are as before,
    but for a number that all keys share, which softmax does not see (engine/calibration.py). Kernels that read know nothing of it.
    by_channel: of keys whose format says so; then scales are float16 [num_blocks, kv_heads, block_size // token_group, head_dim, 2], pairs
    for each channel of the token_group tokens of a group, and smoothing is None, because a channel's own scale does as much.
    """

    codes: Any
    scales: Any
    format: KvFormat
    smoothing: Any = None
    by_channel: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(num_blocks, block_size, kv_heads, head_dim), as if nothing were quantised."""
        num_blocks, kv_heads, block_size, _ = self.codes.shape
        return num_blocks, block_size, kv_heads, self.format.head_dim

    @property
    def ndim(self) -> int:
        """Axes of `shape`."""
        return 4

    @property
    def dtype(self) -> str:
        """The format's name, where a plain array has its dtype."""
        return self.format.name

    def read(self, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """float32 [..., kv_heads, head_dim], smoothed as they are (NumPy caches only).

        take: picks blocks and tokens from an array [num_blocks, block_size, kv_heads, ...], of codes and scales alike.
        """
        if self.by_channel:
            return self._read_by_channel(take)
        scales = self.scales if self.format.is_float else take(self.scales.swapaxes(1, 2))
        return dequantize_reference(take(self.codes.swapaxes(1, 2)), scales, self.format)

    def _read_by_channel(self, take: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """`read` of keys by channel: takes the places of the tokens first, because a group has its scales once."""
        blocks, _, block_size = self.codes.shape[:3]
        block = take(np.broadcast_to(np.arange(blocks)[:, None], (blocks, block_size)))
        token = take(np.broadcast_to(np.arange(block_size), (blocks, block_size)))
        return dequantize_by_channel(self.codes[block, :, token], self.scales[block, :, token // self.format.token_group])

    def put_groups(self, slots: np.ndarray, x: np.ndarray) -> None:
        """Quantise whole groups x [groups, token_group, kv_heads, head_dim], by channel, and write each from its slot on (NumPy caches)."""
        block, token = np.divmod(slots, self.codes.shape[2])
        codes, pairs = quantize_by_channel(x.swapaxes(1, 2), self.format)  # [groups, kv_heads, token_group, code_bytes]
        self.scales[block, :, token // self.format.token_group] = pairs
        for i in range(self.format.token_group):
            self.codes[block, :, token + i] = codes[:, :, i]

    def smoothed(self, x: np.ndarray) -> np.ndarray:
        """x [tokens, kv_heads, head_dim] as it is cached but for the codes, float32 (NumPy caches only)."""
        x = x.astype(np.float32)
        return x if self.smoothing is None else (x - self.smoothing[0]) * self.smoothing[1]

    def put(self, slots: np.ndarray, x: np.ndarray) -> None:
        """Quantise x [tokens, kv_heads, head_dim] and write it at `slots`, block * block_size + offset (NumPy caches only)."""
        codes, scales = quantize_reference(self.smoothed(x), self.format, self.scales if self.format.is_float else None)
        at = np.divmod(slots, self.codes.shape[2])
        self.codes.swapaxes(1, 2)[at] = codes
        if not self.format.is_float:
            self.scales.swapaxes(1, 2)[at] = scales


def is_quantized(cache: Any) -> bool:
    """Whether a key_cache or value_cache is quantised."""
    return isinstance(cache, QuantizedCache)


def allocate(
    kv_format: KvFormat, num_blocks: int, block_size: int, kv_heads: int, zeros: Callable, array: Callable, by_channel: bool = False
) -> QuantizedCache:
    """An empty cache; zeros(shape, dtype) and array(host_array) make the machine's arrays. Scales of floats begin as 1.

    by_channel: for keys of a format that has them so. Raises as `arrays_by_block`.
    """
    found = arrays_by_block(kv_format, num_blocks, block_size, kv_heads)
    return from_arrays(kv_format, [zeros(shape, dtype) for shape, dtype in found], array, by_channel)


def arrays_by_block(kv_format: KvFormat, num_blocks: int, block_size: int, kv_heads: int) -> list[tuple[tuple[int, ...], Any]]:
    """(shape, dtype) of the arrays that have an entry for every block, of keys as of values: codes, and scales of integers.

    Raises KernelArgumentError where groups of tokens do not divide block_size.
    """
    group = kv_format.token_group
    if block_size % group:
        raise KernelArgumentError(f"{kv_format.name} has groups of {group} tokens; a block of {block_size} must be a multiple of that")
    codes = (num_blocks, kv_heads, block_size, kv_format.code_bytes), np.uint8
    scales = (num_blocks, kv_heads, block_size, kv_format.groups, 2), np.float16
    return [codes] if kv_format.is_float else [codes, scales]


def from_arrays(kv_format: KvFormat, arrays: list[Any], array: Callable, by_channel: bool = False) -> QuantizedCache:
    """A cache in arrays of the shapes that `arrays_by_block` gives; see `allocate` for the rest.

    Keys by channel have as many scales as others, because a group has as many tokens as channels elsewhere: the same array, seen otherwise.
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
    """Raise KernelArgumentError unless both caches are plain, or both are quantised in one format."""
    formats = [cache.format if is_quantized(cache) else None for cache in (key_cache, value_cache)]
    if formats[0] != formats[1]:
        words = [f"{found.name} in groups of {found.group_size}" if found else "not quantised" for found in formats]
        raise KernelArgumentError(f"the key_cache is {words[0]} and the value_cache {words[1]}; they must have one format")
