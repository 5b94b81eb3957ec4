"""W8A8 on Hopper's tensor cores: the 16-bit GEMM kernels with fp8 or int8 wgmma, and scales in the epilogue.

    out[m, n] = (sum over k of x_code[m, k] * code[n, k]) * x_scale[m] * scale[n]  (+ bias[n])
    gated:  out[m, n] = silu(gate[m, n]) * up[m, n]         gate and up: such sums with the first and the second half of weight's rows

Two codes lie where a 16-bit number would, so tiles, TMA, pipelines and the order of tiles are those of wgmma/wgmma.py, and for up to 256
rows those of flat/flat_wgmma.py. A wgmma is 32 deep instead of 16 in the same time, and half the bytes are loaded. Sums of int8 are exact
int32. Sums of fp8 are float32, but Hopper's tensor cores keep some 14 bits while they add, as in every fp8 GEMM without two-level
accumulation: on an H200 the errors are those of cuBLAS with fast accumulation (docs/quantised-weights.md). The equations in NumPy are
RowFormat.linear (weights/quantized.py).

Source: PTX ISA, "wgmma.mma_async"; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.5.2 (precision of fp8 accumulation).
"""

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import FLOAT32, HALF_DTYPES, MOST_ROWS_OF_FLAT, has_wgmma, padded_rows
from minllm.kernels.matmul.flat import wgmma_tiling as flat_tiling
from minllm.kernels.matmul.flat.flat_wgmma import launch_flat_matmul
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES
from minllm.kernels.matmul.wgmma import wgmma
from minllm.kernels.matmul.wgmma.tiling import WgmmaTiling
from minllm.kernels.quantization.decoder import Format
from minllm.runtime.kernel import check

PAIR = np.dtype(np.uint16)


def fits(x, weight) -> bool:
    """Whether TMA can load tiles of the codes of x and weight: their rows begin on multiples of 16 bytes."""
    return rows_begin_on(16, x.codes, weight.codes)


def check_codes(x, weight, out, bias, gated: bool) -> None:
    """Raise KernelArgumentError unless QuantizedRows x [M, K], codes [N, K], out [M, N], or gated [M, N / 2], and bias fit."""
    check_array("codes of x", x.codes, CODE_DTYPES, M=None, K=None)
    (m, k), n = x.codes.shape, (2 if gated else 1) * out.shape[-1]
    check_array("x_scales", x.scales, (FLOAT32,), M=m)
    check_array("codes", weight.codes, CODE_DTYPES, N=n, K=k)
    check_array("scales", weight.scales, (FLOAT32,), N=n)
    check_array("out", out, HALF_DTYPES if gated else FLOAT_DTYPES, M=m, N=out.shape[-1])
    if bias is not None:
        check_array("bias", bias, FLOAT_DTYPES, N=n)
    check(fits(x, weight), f"rows of {k} codes do not begin on multiples of 16 bytes, which TMA needs: widen them")
    check(has_wgmma(out), "products of codes by wgmma need a GPU of compute capability 9.0: widen the codes")


def run_wgmma(found: Format, x, weight, out, bias, stream, tiling: WgmmaTiling | None, gated: bool) -> None:
    """Check the arguments, and launch the GEMM for many rows of x."""
    check_codes(x, weight, out, bias, gated)
    if 0 not in out.shape:
        pairs, scales = (x.codes.view(PAIR), weight.codes.view(PAIR)), wgmma.Scales(found.codes.wgmma, x.scales, weight.scales)
        wgmma.run(*pairs, out, bias, None, stream, tiling, gated, scales)


def choose_flat_tiling(tokens: int, n: int, pairs: int, gated: bool) -> FlatWgmmaTiling:
    """Return the fastest of a dozen tilings on an H200, or one within 4 % of it.

    tokens: padded rows of x; pairs: pairs of codes per row. The tiling is that of 16-bit rows of this length, except that two
    blocks per SM replace cp.async, and middling weights take no split-K.
    """
    if 4096 < (2 * n if gated else n) <= 8192:
        return flat_tiling.deepest(1, tokens, 1)
    tiling = flat_tiling.choose_tiling(tokens, n, pairs, gated)
    return tiling if isinstance(tiling, FlatWgmmaTiling) else flat_tiling.deepest(1, tokens, 1, blocks=2)


def run_flat(found: Format, x, weight, out, bias, stream, tiling: FlatWgmmaTiling | None, gated: bool) -> None:
    """Check the arguments, and launch the flat GEMM for up to 256 rows of x."""
    check_codes(x, weight, out, bias, gated)
    (m, n), pairs = out.shape, (x.codes.view(PAIR), weight.codes.view(PAIR))
    check(m <= MOST_ROWS_OF_FLAT, f"flat multiplies up to {MOST_ROWS_OF_FLAT} rows of x, not {m}: choose wgmma")
    if 0 in out.shape:
        return
    tiling = tiling or choose_flat_tiling(padded_rows(m), n, pairs[0].shape[1], gated)
    half = out.dtype.name if out.dtype in HALF_DTYPES else "bfloat16"
    launch_flat_matmul(*pairs, (x.scales, weight.scales), out, bias, found.codes.wgmma, half, tiling, gated, stream)


def make_gemm(run, found: Format):
    """The launcher of a W8A8 GEMM; run: run_wgmma or run_flat; found: INT8 or FP8."""

    def gemm(x, weight, out, bias=None, stream=None, tiling: WgmmaTiling | FlatWgmmaTiling | None = None) -> None:
        """Write x @ weight.T + bias into `out` [M, N], float16, bfloat16 or float32.

        x: QuantizedRows [M, K]; weight: codes [N, K], scales [N]; bias [N] or None. `tiling` overrides the choice by shape. Raises
        KernelArgumentError if shapes or dtypes do not fit, if rows do not begin on multiples of 16 bytes, if there are too many rows, and
        on a GPU of another compute capability than 9.0.
        """
        run(found, x, weight, out, bias, stream, tiling, False)

    return gemm


def make_gated_gemm(run, found: Format):
    """The launcher of a W8A8 GEMM with gate and up; arguments as in make_gemm."""

    def gated_gemm(x, gate_up, out, stream=None, tiling: WgmmaTiling | FlatWgmmaTiling | None = None) -> None:
        """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I], float16 or bfloat16.

        x: QuantizedRows [M, K]; gate_up: codes [2 I, K], the gate's rows first, scales [2 I]. gate and up are not rounded before they are
        multiplied. Raises as the launcher of make_gemm does.
        """
        run(found, x, gate_up, out, None, stream, tiling, True)

    return gated_gemm
