"""Number formats of weights and cached keys, and how fast a GPU multiplies them.

A quantised format holds the layers' matrices; embeddings, head, norms and activations stay in 16 bits. Where a GPU has no instructions
for a format (fp8 before Ada, int8 on Volta, int4 anywhere here), weights are widened to 16 bits on the way in: they take fewer bytes, and
multiply at the 16-bit rate. A GPU without bfloat16 computes in float16.
"""

from dataclasses import dataclass

from minllm.errors import InvalidOptionError
from minllm.hardware import Gpu


@dataclass(frozen=True)
class WeightFormat:
    """Bytes of a number in the layers' matrices and elsewhere, and the rates to look for, best first."""

    matrix_itemsize: float
    itemsize: int
    rates: tuple[str, ...]


SIXTEEN_BITS = ("bf16_tflops", "fp16_tflops")
WEIGHT_FORMATS = {
    "float32": WeightFormat(4, 4, ("fp32_tflops",)),
    "float16": WeightFormat(2, 2, ("fp16_tflops",)),
    "bfloat16": WeightFormat(2, 2, SIXTEEN_BITS),
    "float8": WeightFormat(1, 2, ("fp8_tflops", *SIXTEEN_BITS)),
    "int8": WeightFormat(1, 2, ("int8_tops", *SIXTEEN_BITS)),
    "int4": WeightFormat(0.5, 2, SIXTEEN_BITS),
}
KV_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8": 1, "int8": 1, "int4": 0.5}
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}


def format_name(name: str, option: str) -> str:
    """The full name of a format that a user typed. InvalidOptionError names `option` and what is allowed."""
    full = SHORT.get(name.lower(), name.lower())
    if full not in WEIGHT_FORMATS:
        allowed = ", ".join([*WEIGHT_FORMATS, *SHORT])
        raise InvalidOptionError(f"{option} {name} is not allowed: it is one of {allowed}.")
    return full


def best_rate(gpu: Gpu, weights: str) -> tuple[float, str]:
    """(TFLOP/s, where from) that `gpu` multiplies weights of this format at: measured where it was, else the data sheet's."""
    for rate in WEIGHT_FORMATS[weights].rates:
        if getattr(gpu, rate) is not None:
            break
    measured = gpu.measured_bf16_tflops if rate in SIXTEEN_BITS else None
    name = rate.split("_")[0]
    return (measured, f"{name}, measured cuBLAS") if measured else (getattr(gpu, rate), f"{name}, data sheet")
