"""Fp8 GEMM on Hopper with two-level accumulation: one scale per 1 x 128 of x and per 128 x 128 of weight (W8A8).

    out[m, n] = sum over groups g of 128 inputs of
                (sum over k in g of x_code[m, k] * code[n, k]) * x_scale[m, g] * scale[n / 128, g]  (+ bias[n])
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

This is the GEMM of wgmma/wgmma.py; its step along K is 128 bytes, one group. Here the tensor cores sum one step at a time, keeping some
14 bits, and threads multiply the result by its scales and add it to their own float32 sums: the second level. Both levels take registers,
so a tile has at most 192 columns. While one consumer adds, the other's wgmma runs: 64 x 192 x 128 take an SM's tensor cores some 390
cycles, and a lane adds with 96 instructions. The scales of the next step are loaded during the wgmma of this one.

2 M N K FLOPs on N K + M K bytes of codes, and 4 M K / 128 bytes of scales of x. Every block of 128 outputs must be whole (see `fits`).

Source: DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2 (tiles and blocks), and figure 7b (promotion to CUDA cores).
"""

import numpy as np
from numba import cuda, int32, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import FLOAT32, HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.wgmma import wgmma
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling, choose_tiling
from minllm.runtime.device import current_device
from minllm.runtime.kernel import check
from minllm.tiles.unrolled import unrolled

BLOCK, COLUMNS, DTYPE = 128, 64, "float8_e4m3fn"  # outputs that share a scale; columns of a tile that always lie in one block
TILINGS = (WgmmaTiling(2, 192, 4, 2, 3), WgmmaTiling(2, 192, 4, 1, 3), WgmmaTiling(2, 128, 6, 1, 1), WgmmaTiling(1, 128, 6, 1, 1))
GATED_TILINGS = (WgmmaTiling(2, 128, 6, 2, 1), WgmmaTiling(2, 128, 6, 1, 1), WgmmaTiling(1, 128, 6, 1, 1))
PAIR = np.dtype(np.uint16)


def make_promotion(tiling: WgmmaTiling, gated: bool):
    """(parts, load, add): scales per row that a lane loads; device functions that load its scales of a step, and add the scaled step."""
    parts, registers = tiling.tile_n // COLUMNS, COLUMNS // 2

    @cuda.jit(device=True, forceinline=True)
    def load(output, row, column, step, of_rows, of_columns):
        """of_rows[0 : 2] = scales of rows g and g + 8 of the lane's warp, of_columns[i] of the i-th 64 columns; any past the edges."""
        last_row, last_block = int32(output.x_scales.shape[0] - 1), int32(output.scales.shape[0] - 1)
        group = uint32(min(int32(step), int32(output.scales.shape[1] - 1)))
        for i in range(2):
            of_rows[i] = output.x_scales[uint32(min(int32(row + 8 * i), last_row)), group]
        for i in range(parts):
            first = int32(column + i * COLUMNS)
            if gated and i >= parts // 2:
                first = int32(output.array.shape[1] + column + (i - parts // 2) * COLUMNS)
            of_columns[i] = output.scales[uint32(min(first // BLOCK, last_block)), group]

    @cuda.jit(device=True, forceinline=True)
    def add_part(part, sums, of_step, of_rows, of_columns):
        low, high = of_rows[0] * of_columns[part], of_rows[1] * of_columns[part]
        for i in range(registers * part, registers * (part + 1), 4):
            sums[i], sums[i + 1] = sums[i] + low * of_step[i], sums[i + 1] + low * of_step[i + 1]
            sums[i + 2], sums[i + 3] = sums[i + 2] + high * of_step[i + 2], sums[i + 3] + high * of_step[i + 3]

    return parts, load, unrolled(add_part, parts)


def fits(weight) -> bool:
    """Whether an Fp8BlockWeight is supported: rows aligned to 16 bytes, 128 outputs in every block."""
    return rows_begin_on(16, weight.codes) and weight.scales.shape[0] * BLOCK == weight.codes.shape[0]


def run(x, weight, out, bias, stream, tiling: WgmmaTiling | None, gated: bool) -> None:
    """Check the arguments and launch."""
    check_array("codes of x", x.codes, (np.dtype(np.uint8),), M=None, K=None)
    (m, k), n, groups = x.codes.shape, (2 if gated else 1) * out.shape[-1], weight.scales.shape[1]
    check_array("x_scales", x.scales, (FLOAT32,), M=m, groups=groups)
    check_array("codes", weight.codes, (np.dtype(np.uint8),), N=n, K=k)
    check_array("out", out, HALF_DTYPES if gated else FLOAT_DTYPES, M=m, N=out.shape[-1])
    if bias is not None:
        check_array("bias", bias, FLOAT_DTYPES, N=n)
    check(
        fits(weight) and rows_begin_on(16, x.codes),
        f"codes are {[n, k]} in {weight.scales.shape[0]} blocks of outputs; wgmma takes rows of whole 16 bytes, and blocks of {BLOCK} "
        "outputs without a remainder: widen them",
    )
    check(has_wgmma(out), "products of codes by wgmma need a GPU of compute capability 9.0: widen the codes")
    allowed = GATED_TILINGS if gated else TILINGS
    sms = wgmma.SIMULATED_SMS if isinstance(out, np.ndarray) else current_device().sm_count
    tiling = tiling or choose_tiling(m, out.shape[1], gated, sms, allowed)
    fitting = tiling.tile_n <= 192 and tiling.tile_n % COLUMNS == 0 and not tiling.early
    check(fitting, f"{tiling}: 64, 128 or 192 columns, and no early start")
    if 0 not in out.shape:
        scales = wgmma.Scales(DTYPE, x.scales, weight.scales, make_promotion)
        wgmma.run(x.codes.view(PAIR), weight.codes.view(PAIR), out, bias, None, stream, tiling, gated, scales)


def fp8_block_wgmma(x, weight, out, bias=None, stream=None, tiling: WgmmaTiling | None = None) -> None:
    """Write x @ weight.T + bias into `out` [M, N], float16, bfloat16 or float32.

    x: RowGroups [M, K]; weight: an Fp8BlockWeight [N, K]; bias [N] or None. `tiling` overrides the choice by shape. Raises
    KernelArgumentError for anything else (see `fits`), and on a GPU of another compute capability than 9.0.
    """
    run(x, weight, out, bias, stream, tiling, False)


def gated_fp8_block_wgmma(x, gate_up, out, stream=None, tiling: WgmmaTiling | None = None) -> None:
    """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I], float16 or bfloat16.

    x: RowGroups [M, K]; gate_up: an Fp8BlockWeight [2 I, K], the gate's rows first. Raises as fp8_block_wgmma does.
    """
    run(x, gate_up, out, None, stream, tiling, True)
