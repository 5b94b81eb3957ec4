"""Number formats of weights and cached keys, and how fast a GPU multiplies them.

A quantised format holds the layers' matrices; embeddings, head, norms and activations stay in 16 bits. Where a GPU has no instructions
for a format (fp8 before Ada, int8 on Volta, int4 anywhere here), weights are widened to 16 bits on the way in: they take fewer bytes, and
multiply at the 16-bit rate. A GPU without bfloat16 computes in float16.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.formats import CHUNK_BITS, CODE_BITS, INT4_GROUP, PAIR_BYTES, TOKEN_GROUP, default_window, kv_format
from minllm.machine.hardware import Gpu


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
KV_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
# Name here -> name in kernels/quantization/formats.py.
QUANTIZED_KV = {"float8": "fp8_e4m3", "int8": "int8", "int4": "int4", "kivi_int4": "kivi_int4"}
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp8": "float8", "fp8_e4m3": "float8", "fp8_e5m2": "float8"}


def format_name(name: str, option: str, formats: Iterable[str] = WEIGHT_FORMATS) -> str:
    """The full name of one of `formats` that a user typed. InvalidOptionError names `option` and what is allowed."""
    full = SHORT.get(name.lower(), name.lower())
    if full not in formats:
        allowed = ", ".join([*formats, *SHORT])
        raise InvalidOptionError(f"{option} {name} is not allowed: it is one of {allowed}.")
    return full


def kv_itemsize(name: str, head_dim: int) -> int | Fraction:
    """Bytes that a cached number takes, its part of the scales included: exactly, so that bytes of whole tokens stay whole.

    int8 with a scale and a zero of 2 bytes for each head of 128 takes 132 / 128. Raises KernelArgumentError where the format needs another
    head_dim.
    """
    if name in KV_ITEMSIZES:
        return KV_ITEMSIZES[name]
    return Fraction(kv_format(QUANTIZED_KV[name], head_dim).bytes_per_head, head_dim)


def kv_window(name: str, given: int | None) -> int:
    """Tokens of the residual window of a cache in the format of this name: what was given, or the format's own for None.

    Raises InvalidOptionError for a window that is not whole groups, or that the format cannot have or do without.
    """
    window = default_window(QUANTIZED_KV.get(name, name)) if given is None else given
    if window < 0 or window % TOKEN_GROUP or (window and name not in QUANTIZED_KV) or (not window and default_window(name)):
        raise InvalidOptionError(
            f"kv-window {window} is not allowed with {name}: it is a multiple of {TOKEN_GROUP} tokens, 0 for numbers that are kept as they "
            "are anyway, and not 0 for keys by channel."
        )
    return window


def kv_format_tables() -> dict[str, dict]:
    """What kv_itemsize knows, for code that is not Python: bits of a code, bytes of a group's scale and zero, sizes of groups to try,
    and what a head's size must be a multiple of. Formats that need a residual window are left out."""
    tables = {name: dict(bits=8 * size, scale_bytes=0, groups=(), multiple=1) for name, size in KV_ITEMSIZES.items()}
    for name, full in QUANTIZED_KV.items():
        if default_window(full):
            continue
        groups = (INT4_GROUP,) if full == "int4" else ()
        scale_bytes = PAIR_BYTES if full.startswith("int") else 0
        tables[name] = dict(bits=CODE_BITS[full], scale_bytes=scale_bytes, groups=groups, multiple=CHUNK_BITS // CODE_BITS[full])
    return tables


def best_rate(gpu: Gpu, weights: str) -> tuple[float, str]:
    """(TFLOP/s, where from) that `gpu` multiplies weights of this format at: measured where it was, else the data sheet's."""
    for rate in WEIGHT_FORMATS[weights].rates:
        if getattr(gpu, rate) is not None:
            break
    measured = gpu.measured_bf16_tflops if rate in SIXTEEN_BITS else None
    name = rate.split("_")[0]
    return (measured, f"{name}, measured cuBLAS") if measured else (getattr(gpu, rate), f"{name}, data sheet")
