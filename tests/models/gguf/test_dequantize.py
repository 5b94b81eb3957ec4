"""Every type of block against a transcription of ggml-quants.c, number by number in float64, and against gguf-py if it is installed."""

import contextlib
import struct

import numpy as np
import pytest

from minllm.models.gguf.block_types import BLOCK_TYPES, OTHER_TYPES

BLOCKS = 40
NOT_IN_GGUF_PY = ("Q1_0", "Q2_0")
OF_CODEBOOKS = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S")  # compared with gguf-py alone
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


def crumbs(b):
    """The codes of two bits in 64 bytes, in the order of Q2_K, Q3_K and TQ2_0."""
    return [b[32 * half_block + j] >> shift & 3 for half_block in range(2) for shift in (0, 2, 4, 6) for j in range(32)]


def q2_k(b):
    d, dmin, codes = half(b, 80), half(b, 82), crumbs(b[16:80])
    return [d * (b[i // 16] & 0xF) * code - dmin * (b[i // 16] >> 4) for i, code in enumerate(codes)]


def q3_k(b):
    """The scales as in ggml: three words of the file become four, by masks."""
    low, middle, high = struct.unpack_from("<3I", b, 96)
    masks = 0x03030303, 0x0F0F0F0F
    words = [
        low & masks[1] | (high & masks[0]) << 4, middle & masks[1] | (high >> 2 & masks[0]) << 4,
        low >> 4 & masks[1] | (high >> 4 & masks[0]) << 4, middle >> 4 & masks[1] | (high >> 6 & masks[0]) << 4,
    ]  # fmt: skip
    scales = struct.pack("<4I", *words)
    less = [0 if b[i % 32] & 1 << i // 32 else 4 for i in range(256)]
    return [half(b, 108) * (scales[i // 16] - 32) * (code - less[i]) for i, code in enumerate(crumbs(b[32:96]))]


def nibbles(b):
    """The codes of four bits of a group: first those in the low halves of its bytes."""
    return [byte & 0xF for byte in b] + [byte >> 4 for byte in b]


IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def iq4_nl(b):
    return [half(b, 0) * IQ4[code] for code in nibbles(b[2:])]


def iq4_xs(b):
    y, high = [], struct.unpack_from("<H", b, 2)[0]
    for group in range(8):
        scale = b[4 + group // 2] >> 4 * (group % 2) & 0xF | (high >> 2 * group & 3) << 4
        y += [half(b, 0) * (scale - 32) * IQ4[code] for code in nibbles(b[8 + 16 * group : 24 + 16 * group])]
    return y


def e2m1(code):
    exponent, fraction = code >> 1 & 3, code & 1
    return (-1) ** (code >> 3) * (fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2 ** (exponent - 1))


def mxfp4(b):
    return [2.0 ** (b[0] - 127) * e2m1(code) for code in nibbles(b[1:])]


def nvfp4(b):
    scales = [0.0 if byte == 127 else fraction_of(byte & 127) for byte in b[:4]]
    return [scales[g] * e2m1(code) for g in range(4) for code in nibbles(b[4 + 8 * g : 12 + 8 * g])]


def fraction_of(e4m3):
    exponent, fraction = e4m3 >> 3, e4m3 & 7
    return fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)


def tq1_0(b):
    """Digits in base 3, most significant first, out of a byte that is a fraction of 256."""
    y = []
    for start, width, count in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        for digit in range(count):
            y += [half(b, 52) * ((b[start + j] * 3**digit % 256 * 3 >> 8) - 1) for j in range(width)]
    return y


LOOPS = {
    "F32": lambda b: [struct.unpack("<f", b)[0]],
    "F16": lambda b: [half(b, 0)],
    "BF16": lambda b: [struct.unpack("<f", bytes(2) + b)[0]],
    "Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
    "Q2_K": q2_k, "Q3_K": q3_k, "IQ4_NL": iq4_nl, "IQ4_XS": iq4_xs, "MXFP4": mxfp4, "NVFP4": nvfp4, "TQ1_0": tq1_0,
    "TQ2_0": lambda b: [half(b, 64) * (code - 1) for code in crumbs(b[:64])],
    "Q1_0": lambda b: [half(b, 0) * (1 if b[2 + i // 8] >> i % 8 & 1 else -1) for i in range(128)],
    "Q2_0": lambda b: [half(b, 0) * ((b[2 + i // 4] >> 2 * (i % 4) & 3) - 1) for i in range(64)],
}  # fmt: skip
SCALES_AT = {  # bytes of float16 numbers; else (0,)
    "Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,),
    "TQ1_0": (52,), "TQ2_0": (64,), "MXFP4": (), "NVFP4": (), "IQ1_M": (),
}  # fmt: skip


def random_blocks(name):
    """uint8 [blocks, bytes]: any bits, with scales of the size that real ones have."""
    _, block_type = TYPES[name]
    rng = np.random.default_rng(len(name))
    blocks = rng.integers(0, 256, (BLOCKS, block_type.bytes), dtype=np.uint8)
    if block_type.dtype is not None:
        return rng.standard_normal((BLOCKS, 1)).astype(block_type.dtype).view(np.uint8)
    for at in SCALES_AT.get(name, (0,)):
        blocks[:, at : at + 2] = rng.normal(0, 0.1, (BLOCKS, 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = rng.integers(110, 130, BLOCKS)
    return blocks


def test_every_type_has_its_loop():
    assert {*LOOPS, *OF_CODEBOOKS} == set(TYPES) and not set(BLOCK_TYPES) & set(OTHER_TYPES)


@pytest.mark.parametrize("name", LOOPS)
def test_numbers_are_those_of_ggmls_loops(name):
    blocks, block_type = random_blocks(name), TYPES[name][1]
    expected = np.array([LOOPS[name](block.tobytes()) for block in blocks])
    assert expected.shape == (BLOCKS, block_type.numbers)
    found = block_type.dequantize(blocks.reshape(-1)).astype(np.float64).reshape(BLOCKS, block_type.numbers)
    # Two roundings to float32 of terms no larger than the block's largest.
    assert (np.abs(found - expected) <= 2.0**-22 * np.abs(expected).max(axis=1, keepdims=True)).all()


@pytest.mark.parametrize("name", [name for name in TYPES if name not in NOT_IN_GGUF_PY])
def test_numbers_are_those_of_gguf_py(name):
    """To the bit, also where a scale is NaN or infinite, and of blocks that it quantises itself."""
    gguf = pytest.importorskip("gguf", reason="gguf-py is not installed")
    number, block_type = TYPES[name]
    rng = np.random.default_rng(5)
    trials = [random_blocks(name), rng.integers(0, 256, (BLOCKS, block_type.bytes), dtype=np.uint8)]
    with contextlib.suppress(NotImplementedError):  # it reads more types than it writes
        numbers = rng.standard_normal((BLOCKS, block_type.numbers)).astype(np.float32)
        trials.append(gguf.quants.quantize(numbers, gguf.GGMLQuantizationType(number)).view(np.uint8))
    for blocks in trials:
        with np.errstate(all="ignore"):
            theirs = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number)).reshape(-1)
        ours = block_type.dequantize(blocks.reshape(-1)).astype(np.float32)
        np.testing.assert_array_equal(ours, theirs)
        numbers = ~np.isnan(theirs)
        np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))  # zeros have signs


def test_the_types_are_gguf_pys():
    constants = pytest.importorskip("gguf.constants", reason="gguf-py is not installed")
    names = {one.value: one.name for one in constants.GGMLQuantizationType}
    assert {number: block_type.name for number, block_type in BLOCK_TYPES.items()} | OTHER_TYPES == names | {42: "Q2_0"}
    for number, block_type in BLOCK_TYPES.items():
        if number != 42:  # gguf-py 0.19 is older
            assert constants.GGML_QUANT_SIZES[number] == (block_type.numbers, block_type.bytes)
