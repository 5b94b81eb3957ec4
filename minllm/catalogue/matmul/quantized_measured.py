"""The measured GEMMs of quantised weights, beside PyTorch's: each format, number of rows and variant.

x is quantised before the measurement, for minllm's kernels and for the peers; only tensor_core_gemv quantises its row of x itself. A weight
repeats the rows of a smaller one, which is faster to quantise and to multiply.
"""

import functools
import itertools
from dataclasses import replace

from minllm.catalogue.launch import MICROSECONDS, Measured, describes
from minllm.catalogue.matmul.products import product
from minllm.catalogue.matmul.quantized import quantized_product, weight_of
from minllm.catalogue.noise import WithoutContents
from minllm.catalogue.rows import BFLOAT16
from minllm.weights.formats import WEIGHT_FORMATS

DISTINCT_ROWS = 256  # a weight repeats them
READING_LIMITS = 256  # rows of x; beyond, arithmetic limits the product in every format, and bytes say nothing of it
SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))  # the four matrices of a layer of an 8B model, outputs x inputs
LABELS = {
    "int4/32": "int4 in groups of 32", "int4/128": "int4 in groups of 128", "nf4/nested": "nf4", "int4/32_minimums": "Q4_1",
    "int8_groups": "Q8_0",
}  # fmt: skip
PEERS = {
    "bfloat16": ("cuBLAS",), "fp8": ("_scaled_mm, per tensor", "_scaled_mm, per row"), "int8": ("_int_mm",),
    "int4/128": ("_weight_int4pack_mm",),
}  # fmt: skip
OF_THE_RECORD = (28672, 4096)
RECORDED = {  # format -> rows of x -> the variant that engines choose for the matrix OF_THE_RECORD
    "bfloat16": dict.fromkeys((1, 16, 64, 256, 2048), "chosen"),
    **dict.fromkeys(("fp8", "int8"), {1: "tensor_core_gemv", 16: "flat", 64: "flat", 256: "wgmma", 2048: "wgmma"}),
    "int4/128": {1: "tensor_core_gemv", 16: "tensor_core_gemv", **dict.fromkeys((64, 256, 2048), "wgmma")},
    "nf4/nested": {1: "tensor_core_gemv", 16: "tensor_core_gemv", 64: "wgmma"},
    "int4/32": {1: "tensor_core_gemv"},
    "int8_groups": {1: "gemv"},
    "fp8_block": {1: "gemv"},
}  # fmt: skip
VARIANTS = {  # format -> rows of x -> variants to measure for tuning
    "bfloat16": {rows: ("chosen",) for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 2048)},
    **dict.fromkeys(("fp8", "int8"), {
        1: ("gemv", "flat", "wgmma", "tensor_core_gemv"), **dict.fromkeys((2, 4, 8, 16, 32), ("flat",)),
        **dict.fromkeys((64, 128, 256), ("flat", "wgmma")), 2048: ("wgmma",),
    }),
    "fp8_block": {
        1: ("gemv",), **dict.fromkeys((2, 8), ("gemv", "wgmma")), **dict.fromkeys((16, 256), ("wgmma",)),
        **dict.fromkeys((64, 2048), ("wgmma", "widened")),
    },
    "int4/128": {
        1: ("gemv", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("tensor_core_gemv",)),
        **dict.fromkeys((8, 16), ("tensor_core_gemv", "wgmma")), **dict.fromkeys((32, 64, 128), ("wgmma",)),
        **dict.fromkeys((256, 2048), ("widened", "wgmma")),
    },
    "int4/32": {
        1: ("gemv", "int4_naive", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("tensor_core_gemv",)),
        **dict.fromkeys((8, 16), ("tensor_core_gemv", "wgmma")), **dict.fromkeys((32, 64, 128, 256, 2048), ("wgmma",)),
    },
    "nf4/nested": {
        1: ("gemv", "wgmma", "tensor_core_gemv"), **dict.fromkeys((2, 4), ("tensor_core_gemv",)), 8: ("gemv", "tensor_core_gemv", "wgmma"),
        16: ("tensor_core_gemv", "wgmma"), **dict.fromkeys((32, 64, 128), ("wgmma",)), **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
    "int4/32_minimums": {
        1: ("tensor_core_gemv",), **dict.fromkeys((2, 4, 8, 16), ("tensor_core_gemv", "wgmma")), **dict.fromkeys((32, 64, 128), ("wgmma",)),
        **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
    "int8_groups": {
        1: ("gemv",), 2: ("gemv", "wgmma"), **dict.fromkeys((4, 8, 16, 32, 64, 128), ("wgmma",)),
        **dict.fromkeys((256, 2048), ("wgmma", "widened")),
    },
}  # fmt: skip


@describes
def chosen_product(m, n, k, dtype=BFLOAT16):
    """x @ weight.T of plain weights by the variant that engines choose."""
    kernels, of_any_variant = WEIGHT_FORMATS[dtype.name].kernels, product("naive", m, n, k, dtype)

    def call(ops, x, weight, out):
        kernels.variants[kernels.choose(x, weight)](x, weight, out, None, ops.stream)

    return replace(of_any_variant, call=call)


@functools.cache
def weight_bytes(form, n, k):
    """The bytes of a weight's arrays."""
    return sum(one.nbytes for one in weight_of(WithoutContents(), form, n, k) if one is not None)


def row(form, variant, m, n, k):
    """The row of the product of x [m, k] and a weight [n, k]; form: one of quantized.py's, or "bfloat16"."""
    if form == "bfloat16":
        launch, of_weight = chosen_product(m, n, k), n * k * BFLOAT16.itemsize
    else:
        launch, of_weight = quantized_product(variant, form, m, n, k, distinct=DISTINCT_ROWS), weight_bytes(form, n, k)
    moved = of_weight + m * (k + n) * BFLOAT16.itemsize
    return Measured(
        launch, variant, f"{m} row{'' if m == 1 else 's'} x {n}x{k}, {LABELS.get(form, form)}", benchmark="matmul, quantised",
        stage="quantised", unit=MICROSECONDS, work=moved if m <= READING_LIMITS else 0, set_bytes=moved, peers=PEERS.get(form, ()),
        sample=16,
    )  # fmt: skip


def measured():
    """The largest GEMM of a layer by the chosen variants; then, for tuning, all four by all variants, and large square GEMMs in 8 bits."""
    recorded = {(form, variant, m, *OF_THE_RECORD) for form, by_rows in RECORDED.items() for m, variant in by_rows.items()}
    sizes = [
        (form, variant, m, n, k)
        for form, by_rows in VARIANTS.items() for m, variants in by_rows.items() for (n, k), variant in itertools.product(SHAPES, variants)
    ]  # fmt: skip
    sizes += [(form, "wgmma", 8192, 8192, 8192) for form in ("fp8", "int8", "fp8_block")]
    for size in sizes:
        yield replace(row(*size), for_tuning=size not in recorded)
