"""The table of weight formats: LLM(), costs, the memory budget and `minllm plan` find a format here, by its name.

A quantised format holds the layers' matrices; embeddings, head, norms and activations stay in 16 bits. If a GPU has no instructions for
a format (fp8 before Ada, int8 on Volta, int4 anywhere here), weights are widened to 16 bits on the way in: they take fewer bytes, and
multiply at the 16-bit rate. A GPU without bfloat16 computes in float16.
"""

from typing import Any

from minllm.weights.format import WeightFormat
from minllm.weights.linear import Linear
from minllm.weights.plain import PlainFormat
from minllm.weights.planned import PlannedFormat

SIXTEEN_BITS = ("bf16_tflops", "fp16_tflops")

WEIGHT_FORMATS: dict[str, WeightFormat] = {
    "float32": PlainFormat("float32", 4, ("fp32_tflops",), itemsize=4),
    "float16": PlainFormat("float16", 2, ("fp16_tflops",)),
    "bfloat16": PlainFormat("bfloat16", 2, SIXTEEN_BITS),
    "float8": PlannedFormat("float8", 1, ("fp8_tflops", *SIXTEEN_BITS)),
    "int8": PlannedFormat("int8", 1, ("int8_tops", *SIXTEEN_BITS)),
    "int4": PlannedFormat("int4", 0.5, SIXTEEN_BITS),
}


def plain_format(dtype: Any) -> WeightFormat:
    """The format of weights as they are: NumPy's dtype of the activations, or its name."""
    return WEIGHT_FORMATS[str(dtype)]


def quantizations() -> tuple[str, ...]:
    """The names that LLM(quantization=) takes."""
    return tuple(name for name, one in WEIGHT_FORMATS.items() if one.is_option)


def plain_linear(weight: Any, bias: Any = None) -> Linear:
    """A Linear of an array [outputs, inputs] that a machine already has."""
    return Linear(weight, bias, plain_format(weight.dtype), tuple(weight.shape))
