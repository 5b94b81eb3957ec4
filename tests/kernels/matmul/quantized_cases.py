"""Cases of W8A8 and W4A16 on Hopper's tensor cores, for the simulator and the GPU, and the allowed errors."""

import re
from typing import NamedTuple

import numpy as np

from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized import fp8_block_wgmma, tensor_core
from minllm.kernels.matmul.quantized.mixed_input.int4 import gated_int4_gemm, int4_gemm
from minllm.kernels.matmul.quantized.mixed_input.int8 import gated_int8_group_gemm, int8_group_gemm
from minllm.kernels.matmul.quantized.mixed_input.nf4 import gated_nf4_gemm, nf4_gemm
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.kernels.matmul.quantized.row_groups import RowGroups
from minllm.kernels.matmul.quantized.rows import QuantizedRows
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.fp8 import E4M3
from minllm.weights.fp8_block import quantize_row_groups
from minllm.weights.int8_groups import Int8GroupWeight
from minllm.weights.nf4 import quantize_blocks
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, assert_close, poisoned, random

PRODUCTS_OF_MIXED_INPUT = {
    "int4": (int4_gemm, gated_int4_gemm), "nf4": (nf4_gemm, gated_nf4_gemm),
    "int8": (int8_group_gemm, gated_int8_group_gemm),
}  # fmt: skip
DTYPE_OF = {"int8": "int8", "fp8": "float8_e4m3fn"}
SLACK = {"int8": 1e-6, "fp8": 1e-5}  # error of float32 sums and scales, relative to the largest result
# Hopper adds 32 products of e4m3 per step and keeps some 14 bits of the sum: up to 2^-14 of it is lost per step, and partial sums are about
# half as large as the largest result.
LOST_PER_STEP_ON_DEVICE = 2.0**-15


class CodesCase(NamedTuple):
    """A call with rows and a weight of k codes and out [m, n], by wgmma or flat; tiling None: chosen by shape."""

    name: str
    m: int
    n: int
    k: int
    out: np.dtype
    tiling: WgmmaTiling | FlatWgmmaTiling | None
    gated: bool = False
    flat: bool = False


CASES = [
    CodesCase("fp8", 67, 72, 208, BFLOAT16, WgmmaTiling(1, 64, 2)),
    CodesCase("int8", 130, 65, 144, FLOAT16, WgmmaTiling(1, 64, 2, 2)),  # rows of out that TMA cannot store
    CodesCase("int8", 65, 136, 400, FLOAT32, WgmmaTiling(2, 96, 3, 2, early=True)),
    CodesCase("fp8", 1, 96, 16, FLOAT32, WgmmaTiling(1, 128, 2)),
    CodesCase("int8", 63, 72, 272, BFLOAT16, WgmmaTiling(1, 128, 2), gated=True),
    CodesCase("fp8", 129, 65, 144, FLOAT16, WgmmaTiling(2, 128, 2, early=True), gated=True),
    CodesCase("fp8", 9, 136, 528, BFLOAT16, FlatWgmmaTiling(1, 3, 2), flat=True),
    CodesCase("int8", 40, 65, 400, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2), flat=True),  # padded to 48 rows: int8 has no wgmma of 40
    CodesCase("int8", 3, 72, 144, FLOAT32, FlatWgmmaTiling(1, 2, 4), flat=True),  # one block has no step of K
    CodesCase("fp8", 17, 65, 272, FLOAT16, FlatWgmmaTiling(1, 2, 2), gated=True, flat=True),
    CodesCase("int8", 64, 64, 128, BFLOAT16, FlatWgmmaTiling(2, 2, 1, 2), gated=True, flat=True),
]
LARGE_CASES = [
    CodesCase(name, m, n, k, BFLOAT16, None, gated, flat)
    for name in ("fp8", "int8")
    for m, n, k, gated, flat in (
        (1, 4099, 4112, False, True), (17, 28672, 528, False, True), (255, 1003, 4112, False, True), (33, 3000, 2064, True, True),
        (77, 1003, 4112, False, False), (257, 2056, 4112, False, False), (1111, 3001, 528, False, False), (300, 1000, 2064, True, False),
    )
]  # fmt: skip


def check_codes(case, device, lost_per_step=0.0):
    """Check that the result is within one rounding and the error of the sums of the float64 result of the codes.

    lost_per_step: the error of a sum of e4m3 per 32 products, relative to the largest result.
    """
    slack = SLACK[case.name] + (case.k / 32 * lost_per_step if case.name == "fp8" else 0)
    found, dtype = WEIGHT_FORMATS[case.name], DTYPE_OF[case.name]
    x = found.encode(random((case.m, case.k), FLOAT32, 0))
    weight = found.encode(random(((2 if case.gated else 1) * case.n, case.k), FLOAT32, 1, 0.1))
    bias = None if case.gated else random((case.n,), BFLOAT16, 2)
    out, run = poisoned(device, (case.m, case.n), case.out), tensor_core.run_flat if case.flat else tensor_core.run_wgmma
    rows = QuantizedRows(device.array(x.codes.view(np.uint8)), device.array(x.scales))
    on_device = type(weight)(*map(device.array, weight))
    expected = found.dequantize(x).astype(np.float64) @ found.dequantize(weight).astype(np.float64).T
    if case.gated:
        tensor_core.make_gated_gemm(run, dtype)(rows, on_device, out.array, tiling=case.tiling)
        gate, up = expected[:, : case.n], expected[:, case.n :]
        expected = gate / (1 + np.exp(-gate)) * up
    else:
        tensor_core.make_gemm(run, dtype)(rows, on_device, out.array, device.array(bias), tiling=case.tiling)
        expected = expected + bias.astype(np.float64)
    assert_close(out.result(), expected, case.out, slack=slack)


class BlockCase(NamedTuple):
    """A call with rows and a weight in fp8 with scales in blocks, and out [m, n]; tiling None: chosen by shape."""

    m: int
    n: int
    k: int
    out: np.dtype
    tiling: WgmmaTiling | None
    gated: bool = False


BLOCK_CASES = [
    BlockCase(70, 256, 400, BFLOAT16, WgmmaTiling(1, 128, 2)),  # the last group is incomplete
    BlockCase(130, 384, 256, FLOAT32, WgmmaTiling(2, 192, 2, 2, 3)),
    BlockCase(9, 128, 144, FLOAT16, None),
    BlockCase(67, 256, 272, BFLOAT16, WgmmaTiling(1, 128, 2), gated=True),
]
LARGE_BLOCK_CASES = [
    BlockCase(m, n, k, BFLOAT16, None, gated)
    for m, n, k, gated in ((9, 4096, 4096, False), (300, 6144, 2064, False), (1111, 3072, 4096, False), (200, 1024, 2048, True))
]


def sums_on_device(x, weight):
    """Return x [M, K] @ weight [N, K].T of e4m3 numbers as Hopper adds them.

    32 products and the sum so far are truncated 13 bits behind the leading bit of the largest of them (DeepSeek-AI 2024, "DeepSeek-V3
    Technical Report", section 3.5.2, "some 14 bits").
    """
    total = np.zeros((len(x), len(weight)))
    for first in range(0, x.shape[1], 32):
        products = x[:, None, first : first + 32] * weight[None, :, first : first + 32]
        terms = np.concatenate([products, total[..., None]], axis=2)
        step = np.ldexp(1.0, np.frexp(np.abs(terms).max(axis=2, keepdims=True))[1] - 14)
        total = (np.trunc(terms / step) * step).sum(axis=2)
    return total


def check_blocks(case, device, lost_per_step=0.0):
    """Check that the result is within one rounding and the error of the sums of the float64 result of the codes.

    lost_per_step: the error of a sum of e4m3 per 32 products, relative to the largest result; 0: exact. The tensor cores sum 128 products
    at a time. float32 outputs show all of the error, so they are allowed twice the error of `sums_on_device`.
    """
    found, outputs = WEIGHT_FORMATS["fp8_block"], (2 if case.gated else 1) * case.n
    codes, scales = quantize_row_groups(random((case.m, case.k), FLOAT32, 0))
    deviations = np.linspace(0.1, 2, outputs, dtype=np.float32)[:, None]  # so that the scales of blocks differ
    weight = found.encode(random((outputs, case.k), FLOAT32, 1, 0.1) * deviations)
    bias = None if case.gated else random((case.n,), BFLOAT16, 2)
    out, rows = poisoned(device, (case.m, case.n), case.out), RowGroups(device.array(codes), device.array(scales))
    on_device = type(weight)(*map(device.array, weight))
    x = codes.view(E4M3).astype(np.float64)
    x_scales, scales_of_outputs = scales.astype(np.float64), np.repeat(weight.scales.astype(np.float64), 128, axis=0)[:outputs]

    def scaled(product):
        """Return the sum over groups of `product` of the group's codes, times the group's scales."""
        groups, values = range(0, case.k, 128), weight.codes.view(E4M3).astype(np.float64)
        sums = (product(x[:, i : i + 128], values[:, i : i + 128]) for i in groups)
        return sum(one * x_scales[:, i, None] * scales_of_outputs[:, i] for i, one in enumerate(sums))

    expected, slack = scaled(lambda left, right: left @ right.T), 1e-5 + 4 * lost_per_step
    if lost_per_step and case.out == FLOAT32:
        slack = 2 * np.abs(scaled(sums_on_device) - expected).max() / np.abs(expected).max()
    if case.gated:
        fp8_block_wgmma.gated_fp8_block_wgmma(rows, on_device, out.array, tiling=case.tiling)
        gate, up = expected[:, : case.n], expected[:, case.n :]
        expected = gate / (1 + np.exp(-gate)) * up
    else:
        fp8_block_wgmma.fp8_block_wgmma(rows, on_device, out.array, device.array(bias), tiling=case.tiling)
        expected = expected + bias.astype(np.float64)
    assert_close(out.result(), expected, case.out, slack=slack)


class WeightOnlyCase(NamedTuple):
    """A call with x [m, k], a weight in the format `name` and out [m, n]; tiling None: chosen by shape."""

    name: str
    m: int
    n: int
    k: int
    dtype: np.dtype
    tiling: MixedInputTiling | None
    gated: bool = False


MIXED_INPUT_CASES = [
    WeightOnlyCase("int4_g128", 20, 72, 256, BFLOAT16, MixedInputTiling(1, 16, 2)),  # two chunks of x
    WeightOnlyCase("int4_zeros", 9, 144, 96, FLOAT16, MixedInputTiling(2, 16, 3)),  # half a step at the end
    WeightOnlyCase("int4_g64", 3, 88, 320, BFLOAT16, MixedInputTiling(1, 8, 2, splits=2)),  # two and three steps
    WeightOnlyCase("int4_g128_zeros", 11, 80, 256, BFLOAT16, MixedInputTiling(2, 16, 2, splits=4), gated=True),
    WeightOnlyCase("int4", 7, 40, 64, FLOAT16, MixedInputTiling(1, 8, 2), gated=True),  # a single step
    WeightOnlyCase("int4, minimums", 5, 72, 96, BFLOAT16, MixedInputTiling(1, 8, 2)),
    WeightOnlyCase("int4, minimums", 8, 40, 128, FLOAT16, MixedInputTiling(1, 8, 2, splits=2), gated=True),
    WeightOnlyCase("nf4", 11, 80, 192, BFLOAT16, MixedInputTiling(1, 16, 2)),
    WeightOnlyCase("nf4, not nested", 6, 136, 320, FLOAT16, MixedInputTiling(2, 8, 2, splits=2)),
    WeightOnlyCase("nf4", 9, 48, 64, FLOAT16, MixedInputTiling(1, 16, 2), gated=True),
    WeightOnlyCase("int8 in groups", 10, 72, 160, BFLOAT16, MixedInputTiling(1, 16, 2)),
    WeightOnlyCase("int8 in groups", 3, 136, 96, FLOAT16, MixedInputTiling(2, 8, 2, splits=2), gated=True),
    WeightOnlyCase("int4_g128", 20, 72, 640, BFLOAT16, MixedInputTiling(2, 16, 4, k_groups=2)),  # ten steps, two chunks of x
    WeightOnlyCase("int4_zeros", 9, 144, 608, FLOAT16, MixedInputTiling(2, 16, 6, k_groups=2)),  # five steps each, the last one half
    WeightOnlyCase("int4_g64", 3, 88, 704, BFLOAT16, MixedInputTiling(2, 8, 4, splits=2, k_groups=2)),  # five and six steps
    WeightOnlyCase("int4_g128_zeros", 11, 80, 384, FLOAT16, MixedInputTiling(2, 16, 4, splits=2, k_groups=2), gated=True),
    WeightOnlyCase("int4, minimums", 7, 40, 64, BFLOAT16, MixedInputTiling(2, 8, 4, k_groups=2), gated=True),  # one warpgroup has no step
    WeightOnlyCase("nf4", 11, 80, 320, BFLOAT16, MixedInputTiling(2, 16, 4, splits=3, k_groups=2)),  # one, two and two steps
    WeightOnlyCase("nf4, not nested", 6, 40, 576, FLOAT16, MixedInputTiling(2, 8, 4, k_groups=2), gated=True),
    WeightOnlyCase("int8 in groups", 10, 136, 672, BFLOAT16, MixedInputTiling(2, 16, 4, k_groups=2)),
    # Persistent: blocks of one to three tiles, the last ones with few rows of x and of weight.
    WeightOnlyCase("int4_g128", 40, 264, 384, BFLOAT16, MixedInputTiling(2, 32, 4, batches=2)),
    WeightOnlyCase("int4_zeros", 20, 144, 96, FLOAT16, MixedInputTiling(1, 16, 3, batches=1)),  # two steps per tile
    WeightOnlyCase("int4, minimums", 37, 80, 96, FLOAT16, MixedInputTiling(2, 16, 3, batches=1), gated=True),
    WeightOnlyCase("int4_g128_zeros", 40, 144, 256, BFLOAT16, MixedInputTiling(2, 64, 3, batches=2), gated=True),
    WeightOnlyCase("nf4", 20, 272, 192, BFLOAT16, MixedInputTiling(2, 16, 2, batches=1)),
    WeightOnlyCase("nf4, not nested", 17, 144, 64, FLOAT16, MixedInputTiling(2, 16, 2, batches=1), gated=True),
    WeightOnlyCase("int8 in groups", 33, 136, 160, BFLOAT16, MixedInputTiling(1, 32, 2, batches=2)),
    WeightOnlyCase("int8 in groups", 20, 136, 96, FLOAT16, MixedInputTiling(2, 16, 2, batches=1), gated=True),
]
LARGE_MIXED_INPUT_CASES = [
    WeightOnlyCase(name, m, n, k, dtype, None, gated)
    for name in ("int4_g128", "int4_zeros", "int4, minimums", "nf4", "nf4, not nested", "int8 in groups")
    for m, n, k, dtype, gated in (
        (13, 4096, 14336, BFLOAT16, False), (65, 4096, 4096, BFLOAT16, False), (130, 1008, 2176, FLOAT16, False),
        (256, 6144, 4096, BFLOAT16, False), (300, 3008, 2048, BFLOAT16, True), (1111, 2064, 1152, BFLOAT16, False),
    )
] + [
    WeightOnlyCase(name, m, n, k, BFLOAT16, MixedInputTiling(2, 256, stages, splits, k_groups), gated)
    for name, deep in (("int4_g128", 6), ("nf4", 4), ("int8 in groups", 6))
    for m, n, k, stages, splits, k_groups, gated in (
        (256, 6144, 4096, 4, 2, 1, False), (256, 6144, 4096, deep, 1, 2, False), (256, 4096, 4096, deep, 2, 2, False),
        (250, 4112, 14464, deep, 2, 2, False), (131, 2000, 2176, deep, 2, 2, True), (300, 6144, 4224, 4, 1, 2, False),
    )
]  # fmt: skip


def weight_of(case):
    """Return the numbers of a case's weight; for a gated case, gate and up."""
    return random(((2 if case.gated else 1) * case.n, case.k), FLOAT32, 1, 0.1)


def check_product(case, device, weight, numbers, plain, gated):
    """Check the result against the float64 result with the weights `numbers`.

    It is within one rounding and the error of float32 sums.
    """
    x = random((case.m, case.k), case.dtype, 0)
    bias, out = None if case.gated else random((case.n,), case.dtype, 2), poisoned(device, (case.m, case.n), case.dtype)
    expected = x.astype(np.float64) @ numbers.astype(np.float64).T
    on_device = type(weight)(*(None if one is None else device.array(one) for one in weight))
    if case.gated:
        gated(device.array(x), on_device, out.array, tiling=case.tiling)
        gate, up = expected[:, : case.n], expected[:, case.n :]
        expected = gate / (1 + np.exp(-gate)) * up
    else:
        plain(device.array(x), on_device, out.array, device.array(bias), tiling=case.tiling)
        expected = expected + bias.astype(np.float64)
    assert_close(out.result(), expected, case.dtype, slack=2e-5)


LARGE = 1 << 20  # numbers of a weight


def nf4_weight(case):
    """Return a case's weight in NF4, with or without double quantisation."""
    matrix = weight_of(case)
    weight = WEIGHT_FORMATS["nf4"].encode(matrix)
    if matrix.size > LARGE:  # a GPU adds offsets with fused multiply-adds, and one of so many absmax would be rounded to another number
        weight = weight._replace(offsets=np.zeros_like(weight.offsets))
    return weight if case.name == "nf4" else weight._replace(absmax=quantize_blocks(matrix)[1].T.copy(), nested=None)


def rounded(values, dtype):
    """Return the values rounded to a 16-bit dtype, as float32."""
    return values.astype(dtype).astype(FLOAT32)


def mixed_input_weight(case):
    """Return (weight, its dequantised numbers rounded to x's dtype); scales, minimums and tables are rounded first."""
    matrix = weight_of(case)
    if case.name == "int8 in groups":
        codes, scales = np.random.default_rng(3).integers(-128, 128, matrix.shape, np.int8), np.abs(matrix[:, ::32]).astype(FLOAT16) / 64
        weight = Int8GroupWeight(codes, np.ascontiguousarray(scales.T))
        groups = codes.reshape(*scales.shape, -1) * rounded(scales, case.dtype)[..., None]
        return weight, rounded(groups.reshape(matrix.shape), case.dtype)
    if case.name.startswith("nf4"):
        found, weight = WEIGHT_FORMATS["nf4"], nf4_weight(case)
        absmax = found.dequantize(weight._replace(table=np.ones_like(weight.table)))
        entries = found.dequantize(weight._replace(table=rounded(weight.table, case.dtype))) / absmax
        return weight, rounded(rounded(entries, case.dtype) * rounded(absmax, case.dtype), case.dtype)
    found = WEIGHT_FORMATS[case.name.removesuffix(", minimums")]
    weight = found.encode(matrix)
    if case.name.endswith("minimums"):
        weight = weight._replace(minimums=(-7.3 * weight.scales).astype(FLOAT16))
    floats = {name: rounded(getattr(weight, name), case.dtype) for name in ("scales", "minimums") if getattr(weight, name) is not None}
    return weight, rounded(found.dequantize(weight._replace(**floats)), case.dtype)


def check_mixed_input(case, device):
    """Check a case against the weights as the mixed-input kernel rounds them."""
    weight, numbers = mixed_input_weight(case)
    plain, gated = PRODUCTS_OF_MIXED_INPUT[re.split("[_, ]", case.name)[0]]
    check_product(case, device, weight, numbers, plain, gated)
