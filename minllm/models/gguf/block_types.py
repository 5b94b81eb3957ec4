"""How GGUF stores the numbers of a tensor: plain, or quantised row by row in blocks that share their scales.

A block of `numbers` numbers takes `bytes` bytes. A file per type, or per two related ones, describes the layout. The sources are ggml's
ggml-common.h (the structs block_q8_0 ...) and ggml-quants.c (dequantize_row_q8_0 ...).
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from minllm.errors import UnsupportedModelError
from minllm.models.gguf.fp4 import dequantize_mxfp4, dequantize_nvfp4
from minllm.models.gguf.iq1 import dequantize_iq1_m, dequantize_iq1_s
from minllm.models.gguf.iq2 import dequantize_iq2_s, dequantize_iq2_xs, dequantize_iq2_xxs
from minllm.models.gguf.iq3 import dequantize_iq3_s, dequantize_iq3_xxs
from minllm.models.gguf.iq4 import dequantize_iq4_nl, dequantize_iq4_xs
from minllm.models.gguf.q2 import dequantize_q1_0, dequantize_q2_0
from minllm.models.gguf.q2_k import dequantize_q2_k, dequantize_q3_k
from minllm.models.gguf.q4 import Q4_0_BLOCK, Q4_1_BLOCK, dequantize_q4_0, dequantize_q4_1
from minllm.models.gguf.q4_k import dequantize_q4_k, dequantize_q5_k
from minllm.models.gguf.q5 import dequantize_q5_0, dequantize_q5_1
from minllm.models.gguf.q6_k import dequantize_q6_k
from minllm.models.gguf.q8_0 import BLOCK as Q8_0_BLOCK
from minllm.models.gguf.q8_0 import dequantize_q8_0
from minllm.models.gguf.ternary import dequantize_tq1_0, dequantize_tq2_0


class BlockType(NamedTuple):
    """One of ggml's types. numbers, bytes: per block. dequantize: from uint8 [blocks * bytes] to the numbers."""

    name: str
    numbers: int
    bytes: int
    dequantize: Callable[[np.ndarray], np.ndarray]
    dtype: np.dtype | None = None  # the dtype of numbers that are stored plain; None: the type is quantised
    block: np.dtype | None = None  # the structure of a block, for types with codes that kernels read


def _plain(name: str, dtype: np.dtype) -> BlockType:
    return BlockType(name, 1, dtype.itemsize, lambda data: data.view(dtype), dtype)


BLOCK_TYPES: dict[int, BlockType] = {  # ggml's number of the type -> the type
    0: _plain("F32", np.dtype("<f4")),
    1: _plain("F16", np.dtype("<f2")),
    2: BlockType("Q4_0", 32, 18, dequantize_q4_0, block=Q4_0_BLOCK),
    3: BlockType("Q4_1", 32, 20, dequantize_q4_1, block=Q4_1_BLOCK),
    6: BlockType("Q5_0", 32, 22, dequantize_q5_0),
    7: BlockType("Q5_1", 32, 24, dequantize_q5_1),
    8: BlockType("Q8_0", 32, 34, dequantize_q8_0, block=Q8_0_BLOCK),
    10: BlockType("Q2_K", 256, 84, dequantize_q2_k),
    11: BlockType("Q3_K", 256, 110, dequantize_q3_k),
    12: BlockType("Q4_K", 256, 144, dequantize_q4_k),
    13: BlockType("Q5_K", 256, 176, dequantize_q5_k),
    14: BlockType("Q6_K", 256, 210, dequantize_q6_k),
    16: BlockType("IQ2_XXS", 256, 66, dequantize_iq2_xxs),
    17: BlockType("IQ2_XS", 256, 74, dequantize_iq2_xs),
    18: BlockType("IQ3_XXS", 256, 98, dequantize_iq3_xxs),
    19: BlockType("IQ1_S", 256, 50, dequantize_iq1_s),
    20: BlockType("IQ4_NL", 32, 18, dequantize_iq4_nl),
    21: BlockType("IQ3_S", 256, 110, dequantize_iq3_s),
    22: BlockType("IQ2_S", 256, 82, dequantize_iq2_s),
    23: BlockType("IQ4_XS", 256, 136, dequantize_iq4_xs),
    29: BlockType("IQ1_M", 256, 56, dequantize_iq1_m),
    30: _plain("BF16", np.dtype(ml_dtypes.bfloat16)),
    34: BlockType("TQ1_0", 256, 54, dequantize_tq1_0),
    35: BlockType("TQ2_0", 256, 66, dequantize_tq2_0),
    39: BlockType("MXFP4", 32, 17, dequantize_mxfp4),
    40: BlockType("NVFP4", 64, 36, dequantize_nvfp4),
    41: BlockType("Q1_0", 128, 18, dequantize_q1_0),
    42: BlockType("Q2_0", 64, 18, dequantize_q2_0),
}
OTHER_TYPES = {9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"}  # types that minllm does not read


def refused_type(path: Path, tensor: str, kind: int) -> UnsupportedModelError:
    """The error for a tensor of a type that BLOCK_TYPES lacks; kind: ggml's number of the type."""
    known = ", ".join(block_type.name for block_type in BLOCK_TYPES.values())
    return UnsupportedModelError(
        f"{path}: tensor {tensor!r} is stored as {OTHER_TYPES.get(kind, f'type {kind}')}, and minllm reads {known}: take another file "
        "of the model, or convert it with llama.cpp's llama-quantize."
    )
