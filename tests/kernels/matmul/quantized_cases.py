"""Cases of W8A8 on Hopper's tensor cores, for the simulator and the GPU, and the allowed errors."""

from typing import NamedTuple

import numpy as np

from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized import fp8_block_wgmma, tensor_core
from minllm.kernels.matmul.quantized.row_groups import RowGroups
from minllm.kernels.matmul.quantized.rows import QuantizedRows
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.fp8 import E4M3
from minllm.weights.fp8_block import quantize_row_groups
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32, assert_close, poisoned, random

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
