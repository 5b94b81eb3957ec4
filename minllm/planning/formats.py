"""The number formats of a plan: names, bytes per cached number, and FLOP/s with each weight format.

The formats of weights are those of weights/formats.py. The formats of a cache have the names and aliases of LLM(kv_cache_dtype=); plain
formats have the name of their dtype.
"""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.formats import ALIASES, CHUNK_BITS, CODE_BITS, KV_FORMATS, PAIR_BYTES, default_window, kv_format
from minllm.kernels.quantization.groups import FP8_BLOCK, INT4_GROUP, NESTED_BLOCK, TOKEN_GROUP
from minllm.machine.hardware import Gpu
from minllm.weights.formats import SIXTEEN_BITS, WEIGHT_FORMATS
from minllm.weights.quantized import TABLE_BYTES

PLAIN_ALIASES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
WEIGHT_ALIASES = {**PLAIN_ALIASES, "float8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}  # a plan counts both 8-bit floats in the same way
KV_ALIASES = {**PLAIN_ALIASES, **ALIASES, "float8": "fp8_e4m3"}
KV_ITEMSIZES = {"float32": 4, "float16": 2, "bfloat16": 2}
KV_NAMES = (*KV_ITEMSIZES, *KV_FORMATS)


def weight_format_name(name: str) -> str:
    """The full name of a weight format given for --dtype.

    Raises InvalidOptionError with the allowed names for any other.
    """
    return _full_name(name, "--dtype", WEIGHT_FORMATS, WEIGHT_ALIASES)


def kv_format_name(name: str) -> str:
    """The full name of a cache format given for --kv-dtype.

    Raises InvalidOptionError with the allowed names for any other.
    """
    return _full_name(name, "--kv-dtype", KV_NAMES, KV_ALIASES)


def _full_name(name: str, option: str, formats: Iterable[str], aliases: Mapping[str, str]) -> str:
    full = aliases.get(name.lower(), name.lower())
    if full not in formats:
        allowed = ", ".join([*formats, *aliases])
        raise InvalidOptionError(f"{option} {name} is not allowed: it is one of {allowed}.")
    return full


def kv_itemsize(name: str, head_dim: int) -> int | Fraction:
    """Bytes per cached number with its share of the scales, as an exact fraction so that bytes per token stay whole.

    int8 with a scale and a zero of 2 bytes each for a head of 128 takes 132 / 128. Raises KernelArgumentError if the format does not
    support head_dim.
    """
    name = kv_format_name(name)
    if name in KV_ITEMSIZES:
        return KV_ITEMSIZES[name]
    return Fraction(kv_format(name, head_dim).bytes_per_head, head_dim)


def kv_window(name: str, given: int | None) -> int:
    """Tokens of the residual window of a cache in this format: `given`, or the format's default for None.

    Raises InvalidOptionError unless the window is a multiple of TOKEN_GROUP, 0 for plain formats, and not 0 for keys by channel.
    """
    full = kv_format_name(name)
    window = default_window(full) if given is None else given
    if window < 0 or window % TOKEN_GROUP or (window and full in KV_ITEMSIZES) or (not window and default_window(full)):
        raise InvalidOptionError(
            f"kv-window {window} is not allowed with {name}: it is a multiple of {TOKEN_GROUP} tokens, 0 for numbers that are kept as they "
            "are anyway, and not 0 for keys by channel."
        )
    return window


def kv_format_tables() -> dict[str, dict]:
    """The data of kv_itemsize as plain tables, for code that is not Python.

    Per format: bits of a code, bytes of a group's scale and zero, group sizes to try, and the number that head_dim must be a multiple of.
    Formats that need a residual window are left out.
    """
    tables = {name: dict(bits=8 * size, scale_bytes=0, groups=(), multiple=1) for name, size in KV_ITEMSIZES.items()}
    for name in KV_FORMATS:
        if default_window(name):
            continue
        groups = (INT4_GROUP,) if name == "int4" else ()
        scale_bytes = PAIR_BYTES if name.startswith("int") else 0
        tables[name] = dict(bits=CODE_BITS[name], scale_bytes=scale_bytes, groups=groups, multiple=CHUNK_BITS // CODE_BITS[name])
    return tables


def weight_format_tables() -> dict[str, dict]:
    """The data of the weight formats as plain tables, for code that is not Python.

    Per format: the fields of WeightFormat listed in `names`; for NF4 also the number of groups that share a second-level scale, and the
    bytes of its tables; for fp8_block also the size of a block.
    """
    names = ("matrix_itemsize", "itemsize", "rates", "row_bytes", "group_size", "group_bytes")
    tables = {name: {field: getattr(one, field) for field in names} for name, one in WEIGHT_FORMATS.items()}
    tables["nf4"] |= dict(nested_size=NESTED_BLOCK, table_bytes=TABLE_BYTES)
    tables["fp8_block"] |= dict(block_size=FP8_BLOCK)
    return tables


def best_rate(gpu: Gpu, weights: str) -> tuple[float, str]:
    """(TFLOP/s, source) of GEMMs with weights of this format on `gpu`: measured if possible, else from the data sheet."""
    for rate in WEIGHT_FORMATS[weights].rates:
        if getattr(gpu, rate) is not None:
            break
    measured = gpu.measured_bf16_tflops if rate in SIXTEEN_BITS else None
    name = rate.split("_")[0]
    return (measured, f"{name}, measured cuBLAS") if measured else (getattr(gpu, rate), f"{name}, data sheet")
