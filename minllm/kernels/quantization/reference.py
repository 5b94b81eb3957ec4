"""Quantisation in NumPy: the equations, and the oracle of every kernel that reads or writes a quantised cache.

    integers    scale = (max - min) / (2^bits - 1)    zero = min    code = round((x - zero) / scale)    x' = code * scale + zero
    floats      code = float8(x / scale), clamped to the largest float8                                 x' = float(code) * scale

max and min are those of the group. scale and zero are rounded to float16 before the codes are computed, so that codes match the stored
scales; all else is float32. |x - x'| is at most half a step, plus the rounding error of zero, 2**-11 of it. A group of equal numbers has
scale 0 and codes 0. Numbers above 65504, float16's maximum, cannot be represented.

Two int4 codes share a byte, in an order that a kernel unpacks quickly: nibble n of a word of eight components (bits 4n to 4n + 3)
is component NIBBLE_ORDER[n], so that word >> 4i & 0x000F000F holds the neighbours 2i and 2i + 1 in its two halves, as a pair of 16-bit
floats needs them.

Keys by channel use the same equations on the transpose: a group is one channel of some tokens; packing is unchanged.

Sources: LMDeploy, "INT4/INT8 KV Cache" (asymmetric, by head and token); Liu et al. 2024, "KIVI", section 3.2 (by channel); the order of
nibbles is Marlin's idea (Frantar et al. 2024, "MARLIN", section 3.4).
"""

from dataclasses import replace

import ml_dtypes
import numpy as np

from minllm.kernels.quantization.formats import KvFormat

FLOAT8 = {"fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn), "fp8_e5m2": np.dtype(ml_dtypes.float8_e5m2)}
NIBBLE_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def quantize_reference(x: np.ndarray, kv_format: KvFormat, scales: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(codes, scales) for x [..., kv_heads, head_dim]: uint8 [..., kv_heads, code_bytes] and float16 [..., kv_heads, groups, 2].

    The pairs are (scale, zero). For float formats `scales`, float32 [kv_heads], must be given, and is returned.
    """
    if kv_format.is_float:
        return quantize_floats(x, FLOAT8[kv_format.name], scales), scales
    codes, pairs = quantize_groups(x, kv_format)
    return (pack_nibbles(codes) if kv_format.bits == 4 else codes), pairs


def dequantize_reference(codes: np.ndarray, scales: np.ndarray, kv_format: KvFormat) -> np.ndarray:
    """float32 [..., kv_heads, head_dim] from codes [..., kv_heads, code_bytes] and scales as `quantize_reference` makes them."""
    if kv_format.is_float:
        return codes.view(FLOAT8[kv_format.name]).astype(np.float32) * scales[:, None]
    codes = unpack_nibbles(codes) if kv_format.bits == 4 else codes
    by_group = codes.reshape(*codes.shape[:-1], kv_format.groups, kv_format.group_size).astype(np.float32)
    scale, zero = scales[..., :1].astype(np.float32), scales[..., 1:].astype(np.float32)  # [..., kv_heads, groups, 1]
    return (by_group * scale + zero).reshape(codes.shape)


def quantize_by_channel(x: np.ndarray, kv_format: KvFormat) -> tuple[np.ndarray, np.ndarray]:
    """(codes, pairs) of whole groups of keys, x [..., token_group, head_dim].

    codes: uint8 [..., token_group, code_bytes]. pairs: float16 [..., head_dim, 2], a (scale, zero) per channel.
    """
    channel_format = replace(kv_format, head_dim=kv_format.token_group, group_size=kv_format.token_group)
    codes, pairs = quantize_groups(x.swapaxes(-1, -2), channel_format)  # [..., head_dim, token_group] and [..., head_dim, 1, 2]
    return pack_nibbles(codes.swapaxes(-1, -2)), pairs[..., 0, :]


def dequantize_by_channel(codes: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Keys, float32 [..., head_dim], from codes [..., code_bytes] and the pairs [..., head_dim, 2] of each key's group."""
    pairs = pairs.astype(np.float32)
    return unpack_nibbles(codes) * pairs[..., 0] + pairs[..., 1]


def quantize_groups(x: np.ndarray, kv_format: KvFormat) -> tuple[np.ndarray, np.ndarray]:
    """(codes, pairs) of x [..., head_dim], one code per byte: uint8 [..., head_dim] and float16 [..., groups, 2]."""
    # exercise: quantization.quantize_groups
    by_group = x.reshape(*x.shape[:-1], kv_format.groups, kv_format.group_size).astype(np.float32)
    low, high = by_group.min(axis=-1), by_group.max(axis=-1)  # [..., groups]
    pairs = np.stack([(high - low) * np.float32(1 / kv_format.levels), low], axis=-1).astype(np.float16)
    scale, zero = pairs[..., :1].astype(np.float32), pairs[..., 1:].astype(np.float32)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    codes = np.clip(np.rint((by_group - zero) * inverse), 0, kv_format.levels).astype(np.uint8)
    return codes.reshape(x.shape), pairs
    # end exercise


def quantize_floats(x: np.ndarray, dtype: np.dtype, scales: np.ndarray) -> np.ndarray:
    """float8(x / scale) as bytes: x [..., kv_heads, head_dim], scales [kv_heads]; clamped to the largest float8, NaN stays NaN."""
    largest = float(ml_dtypes.finfo(dtype).max)
    scaled = x.astype(np.float32) * (np.float32(1) / scales)[:, None]
    return np.clip(scaled, -largest, largest).astype(dtype).view(np.uint8)


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Pack codes 0 to 15 from one per byte [..., n] to two per byte [..., n / 2], in NIBBLE_ORDER."""
    nibbles = np.take(codes.reshape(*codes.shape[:-1], codes.shape[-1] // 8, 8), NIBBLE_ORDER, axis=-1)  # [..., words, 8]
    return (nibbles[..., ::2] | nibbles[..., 1::2] << 4).reshape(*codes.shape[:-1], codes.shape[-1] // 2)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """The inverse of `pack_nibbles`: one code per byte."""
    pairs = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*packed.shape[:-1], packed.shape[-1] // 4, 8)  # [..., words, 8]
    codes = np.empty_like(pairs)
    codes[..., NIBBLE_ORDER] = pairs
    return codes.reshape(*packed.shape[:-1], 2 * packed.shape[-1])
