"""Every type of block against a transcription of ggml-quants.c, number by number in float64, and against gguf-py if it is installed."""

import struct

import numpy as np
import pytest

from minllm.models.gguf.block_types import BLOCK_TYPES, OTHER_TYPES

BLOCKS = 40
TYPES = {block_type.name: (number, block_type) for number, block_type in BLOCK_TYPES.items()}


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def signed(byte):
    return byte - 256 if byte > 127 else byte


def q8_0(b):
    return [half(b, 0) * signed(b[2 + i]) for i in range(32)]


def q4_0(b):
    low = [half(b, 0) * ((b[2 + j] & 0x0F) - 8) for j in range(16)]
    return low + [half(b, 0) * ((b[2 + j] >> 4) - 8) for j in range(16)]


def q4_1(b):
    low = [half(b, 0) * (b[4 + j] & 0x0F) + half(b, 2) for j in range(16)]
    return low + [half(b, 0) * (b[4 + j] >> 4) + half(b, 2) for j in range(16)]


def q5_0(b):
    high = struct.unpack_from("<I", b, 2)[0]
    low = [half(b, 0) * ((b[6 + j] & 0x0F | (high >> j << 4) & 0x10) - 16) for j in range(16)]
    return low + [half(b, 0) * ((b[6 + j] >> 4 | (high >> (j + 12)) & 0x10) - 16) for j in range(16)]


def q5_1(b):
    high = struct.unpack_from("<I", b, 4)[0]
    low = [half(b, 0) * (b[8 + j] & 0x0F | (high >> j << 4) & 0x10) + half(b, 2) for j in range(16)]
    return low + [half(b, 0) * (b[8 + j] >> 4 | (high >> (j + 12)) & 0x10) + half(b, 2) for j in range(16)]


def scale_and_minimum(j, q):
    """get_scale_min_k4."""
    if j < 4:
        return q[j] & 63, q[j + 4] & 63
    return q[j + 4] & 0xF | q[j - 4] >> 6 << 4, q[j + 4] >> 4 | q[j] >> 6 << 4


def q4_k(b):
    d, dmin, scales, q, y = half(b, 0), half(b, 2), b[4:16], 16, []
    for group in range(0, 8, 2):
        for shift in (0, 4):
            scale, minimum = scale_and_minimum(group + shift // 4, scales)
            y += [d * scale * (b[q + i] >> shift & 0xF) - dmin * minimum for i in range(32)]
        q += 32
    return y


def q5_k(b):
    d, dmin, scales, high, q, y = half(b, 0), half(b, 2), b[4:16], b[16:48], 48, []
    for group in range(0, 8, 2):
        for shift in (0, 4):
            number = group + shift // 4
            scale, minimum = scale_and_minimum(number, scales)
            for i in range(32):
                code = (b[q + i] >> shift & 0xF) + (16 if high[i] & 1 << number else 0)
                y.append(d * scale * code - dmin * minimum)
        q += 32
    return y


def q6_k(b):
    y, d = [0.0] * 256, half(b, 208)
    for n in range(2):
        low, high, scales = b[64 * n :], b[128 + 32 * n :], b[192 + 8 * n :]
        for i in range(32):
            codes = (
                (low[i] & 0xF | (high[i] >> 0 & 3) << 4) - 32,
                (low[i + 32] & 0xF | (high[i] >> 2 & 3) << 4) - 32,
                (low[i] >> 4 | (high[i] >> 4 & 3) << 4) - 32,
                (low[i + 32] >> 4 | (high[i] >> 6 & 3) << 4) - 32,
            )
            for k, code in enumerate(codes):
                y[128 * n + 32 * k + i] = d * signed(scales[i // 16 + 2 * k]) * code
    return y


LOOPS = {
    "F32": lambda b: [struct.unpack("<f", b)[0]],
    "F16": lambda b: [half(b, 0)],
    "BF16": lambda b: [struct.unpack("<f", bytes(2) + b)[0]],
    "Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}  # fmt: skip
SCALES_AT = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # bytes of float16 numbers; else (0,)


def random_blocks(name):
    """uint8 [blocks, bytes]: any bits, with scales of the size that real ones have."""
    _, block_type = TYPES[name]
    rng = np.random.default_rng(len(name))
    blocks = rng.integers(0, 256, (BLOCKS, block_type.bytes), dtype=np.uint8)
    if block_type.dtype is not None:
        return rng.standard_normal((BLOCKS, 1)).astype(block_type.dtype).view(np.uint8)
    for at in SCALES_AT.get(name, (0,)):
        blocks[:, at : at + 2] = rng.normal(0, 0.1, (BLOCKS, 1)).astype(np.float16).view(np.uint8)
    return blocks


def test_every_type_has_its_loop():
    assert set(LOOPS) == set(TYPES) and not set(BLOCK_TYPES) & set(OTHER_TYPES)


@pytest.mark.parametrize("name", LOOPS)
def test_numbers_are_those_of_ggmls_loops(name):
    blocks, block_type = random_blocks(name), TYPES[name][1]
    expected = np.array([LOOPS[name](block.tobytes()) for block in blocks])
    assert expected.shape == (BLOCKS, block_type.numbers)
    found = block_type.dequantize(blocks.reshape(-1)).astype(np.float64).reshape(BLOCKS, block_type.numbers)
    # Two roundings to float32 of terms no larger than the block's largest.
    assert (np.abs(found - expected) <= 2.0**-22 * np.abs(expected).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("name", LOOPS)
def test_numbers_are_those_of_gguf_py(name):
    """To the bit, also where a scale is NaN or infinite."""
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed")
    number, block_type = TYPES[name]
    any_bits = np.random.default_rng(5).integers(0, 256, (BLOCKS, block_type.bytes), dtype=np.uint8)
    for blocks in (random_blocks(name), any_bits):
        with np.errstate(all="ignore"):
            theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number)).reshape(-1)
        np.testing.assert_array_equal(block_type.dequantize(blocks.reshape(-1)).astype(np.float32), theirs)


def test_the_types_are_gguf_pys():
    constants = pytest.importorskip("gguf.constants", reason="gguf-py is not installed")
    names = {one.value: one.name for one in constants.GGMLQuantizationType}
    assert {number: block_type.name for number, block_type in BLOCK_TYPES.items()} | OTHER_TYPES == names
    for number, block_type in BLOCK_TYPES.items():
        assert constants.GGML_QUANT_SIZES[number] == (block_type.numbers, block_type.bytes)
