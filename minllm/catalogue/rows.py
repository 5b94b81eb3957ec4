"""Shared by launches over rows: dtypes, rows that fill the registers, rows quantised on the way out."""

import numpy as np

from minllm.catalogue.launch import FP8_TARGETS, TARGETS
from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.normalization.row import HELD, HELD_IN_SHORT_BLOCK, LONG_BLOCK, SHORT_BLOCK, THREADS
from minllm.kernels.vector import VECTOR_BYTES, vector_access
from minllm.weights.formats import WEIGHT_FORMATS

FLOAT32, FLOAT16, BFLOAT16 = FLOAT_DTYPES
DTYPES = (BFLOAT16, FLOAT32, FLOAT16)
CODES = {"int8": TARGETS, "fp8": FP8_TARGETS}  # the codes that kernels write, and where they can
UNIT = {FLOAT32: 1e-6, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}  # error of the scale of a row that is rounded before it is quantised


def longest_rows(dtype):
    """(vectors per thread, elements) of the longest rows with one vector per thread, and with as many as registers hold."""
    return [(pieces, pieces * THREADS * VECTOR_BYTES // dtype.itemsize) for pieces in (1, HELD * dtype.itemsize // VECTOR_BYTES)]


def longest_short_rows(dtype, held=None):
    """The same for blocks of few threads, which hold a vector in `held` registers, by default as float32."""
    width = vector_access(dtype)[0]
    most = HELD_IN_SHORT_BLOCK // (held or width)
    return [(1, SHORT_BLOCK * width), (most, most * LONG_BLOCK * width)]


def quantized(values, code):
    """The codes and scales of values [T, n], float32 or the dtype to which a kernel rounds them first."""
    rows = WEIGHT_FORMATS[code].codec.quantize(values)
    return dict(codes=rows.codes.view(np.uint8), scales=rows.scales)


def before_quantization(array, length):
    """The array as a kernel for rows of `length` computes with it: rows of whole vectors are not rounded before they are quantised."""
    return array.astype(np.float32) if is_whole(array.dtype, length) else array


def is_whole(dtype, length):
    """Whether rows of `length` are whole vectors."""
    return length * dtype.itemsize % VECTOR_BYTES == 0
