"""The table of weight formats: LLM(), costs, the memory budget and `minllm plan` look up formats here by name.

A quantised format holds the layers' matrices; embeddings, head and norms stay in 16 bits. So do activations, except in the GEMMs of int8
and fp8, which quantise them token by token. A plan takes the rate of a GPU's 8-bit instructions for these two formats, and the 16-bit rate
for 4-bit weights, which are widened before they are multiplied. A GPU without bfloat16 computes in float16.

int4 has groups of 32 inputs, int4_g64 and int4_g128 of 64 and 128; formats with _zeros also store a zero point per group.
"""

from typing import Any

from numpy.typing import DTypeLike

from minllm.kernels.quantization.groups import NF4_BLOCK
from minllm.weights.format import WeightFormat
from minllm.weights.linear import Linear
from minllm.weights.plain import PlainFormat
from minllm.weights.quantized import Fp8BlockFormat, Fp8Format, Int4Format, Int8Format, Nf4Format

SIXTEEN_BITS = ("bf16_tflops", "fp16_tflops")
FP8_SINCE = (8, 9)  # the first compute capability that converts to and from fp8


def int4_format(name: str, group_size: int, has_zeros: bool = False) -> Int4Format:
    """int4 in groups of this size, each with a float16 scale and, if has_zeros, a zero point of one byte."""
    return Int4Format(name, 0.5, SIXTEEN_BITS, has_zeros=has_zeros, group_size=group_size, group_bytes=3 if has_zeros else 2)


WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "float32": PlainFormat("float32", 4, ("fp32_tflops",), itemsize=4),
    "float16": PlainFormat("float16", 2, ("fp16_tflops",)),
    "bfloat16": PlainFormat("bfloat16", 2, SIXTEEN_BITS),
    "fp8": Fp8Format("fp8", 1, ("fp8_tflops", *SIXTEEN_BITS), row_bytes=4, since=FP8_SINCE),
    "fp8_block": Fp8BlockFormat("fp8_block", 1, ("fp8_tflops", *SIXTEEN_BITS), row_bytes=4, since=FP8_SINCE),
    "int8": Int8Format("int8", 1, ("int8_tops", *SIXTEEN_BITS), row_bytes=4),
    "int4": int4_format("int4", 32),
    "int4_g64": int4_format("int4_g64", 64),
    "int4_g128": int4_format("int4_g128", 128),
    "int4_zeros": int4_format("int4_zeros", 32, has_zeros=True),
    "int4_g64_zeros": int4_format("int4_g64_zeros", 64, has_zeros=True),
    "int4_g128_zeros": int4_format("int4_g128_zeros", 128, has_zeros=True),
    "nf4": Nf4Format("nf4", 0.5, SIXTEEN_BITS, row_bytes=8, group_size=NF4_BLOCK, group_bytes=1),
}


def plain_format(dtype: DTypeLike) -> WeightFormat:
    """The format of weights that are not quantised. dtype: NumPy's dtype of the activations, or its name."""
    return WEIGHT_FORMATS[str(dtype)]


def quantizations() -> tuple[str, ...]:
    """The names that LLM(quantization=) accepts."""
    return tuple(name for name, one in WEIGHT_FORMATS.items() if one.is_option)


def plain_linear(weight: Any, bias: Any = None) -> Linear:
    """A Linear of a plain weight [outputs, inputs] that is already an array of the machine."""
    return Linear(weight, bias, plain_format(weight.dtype), tuple(weight.shape))
