"""What the launchers of mixed-input GEMM have in common: checks, tensor maps, the grid; any number of rows of x, compute capability 9.0."""

from typing import Any

import numpy as np

from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.flat.output import stored_together
from minllm.kernels.matmul.quantized.arguments import CODE_DTYPES, GROUP_DTYPES, check_out
from minllm.kernels.matmul.quantized.mixed_input.kernel import mixed_input_kernel
from minllm.kernels.matmul.quantized.mixed_input.scales import ScaleMaps
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling, choose_tiling
from minllm.kernels.quantization.decoder import STEP, Format, TileDecoder
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check, launch
from minllm.runtime.tensor_map import tensor_map

SIMULATED_SMS = 2  # few, so that persistent blocks compute several tiles


def scale_arrays(weight) -> list:
    """Return the arrays [groups, N] that TMA loads with the codes: scales or absmax, and zeros or minimums, if the weight has them."""
    found = (getattr(weight, name, None) for name in ("scales", "absmax", "zeros", "minimums"))
    return [array for array in found if array is not None]


def scales_fit(x, weight, gated: bool) -> bool:
    """Whether TMA can load the scales, and a step of 64 inputs consists of whole groups, or is a part of one group."""
    arrays, rows = scale_arrays(weight), weight.codes.shape[0]
    groups = (x.shape[1] // array.shape[0] for array in arrays)
    # A tile that TMA loads begins at a multiple of 16 bytes, that of the half with `up` too.
    begins = all(rows // (2 if gated else 1) * array.dtype.itemsize % 16 == 0 for array in arrays)
    known = all(array.dtype in GROUP_DTYPES and array.shape[1] == rows for array in arrays)
    return begins and known and all(group == 32 or group % STEP == 0 for group in groups) and rows_begin_on(16, *arrays)


def fits(x, weight, gated: bool = False) -> bool:
    """Whether the kernel supports these arrays, on a GPU with wgmma.

    Rows of 16 bits; rows of x, codes and scales, and gated also the halves of rows of scales, are whole 16 bytes; groups of 32 or
    multiples of 64.
    """
    return x.dtype in HALF_DTYPES and rows_begin_on(16, x, weight.codes) and scales_fit(x, weight, gated)


def check_arrays(x, weight, out, bias, gated: bool) -> None:
    """Raise KernelArgumentError unless x [M, K], a weight [N, K], out [M, N], or gated [M, N / 2], and bias fit."""
    (m, k), n = x.shape, weight.codes.shape[0]
    check(
        fits(x, weight, gated),
        f"x is {x.dtype} {[m, k]} and the weight has codes {weight.codes.dtype} {list(weight.codes.shape)}; mixed-input GEMM takes float16 "
        "or bfloat16, groups of 32 or multiples of 64, and rows of whole 16 bytes, also of scales for the outputs (gate and up: for each): "
        "take the GEMV, or widen the weight",
    )
    check(has_wgmma(x), "mixed-input GEMM needs a GPU of compute capability 9.0: take the GEMV, or widen the weight")
    check_out(x, out, bias, n, gated)


def scale_maps(decoder: TileDecoder, weight, rows: int) -> ScaleMaps:
    """Return the tensor maps of a weight's scales, in boxes of a step's groups and `rows` rows of weight."""
    maps = [
        tensor_map(array, (one.groups, rows), swizzle=0, promotion=128)
        for array, one in zip(scale_arrays(weight), decoder.scales, strict=True)
    ]
    return ScaleMaps(*(*maps, None, None)[:2])


def map_of_out(tiling: MixedInputTiling, out, gated: bool):
    """Return the tensor map with which a persistent kernel stores out, or None for a kernel of one tile per block."""
    if not tiling.batches:
        return None
    tokens, columns = tiling.store_box(gated)
    return tensor_map(out, (tokens, columns), swizzle=2 * columns)


def blocks_of(tiling: MixedInputTiling, x, n: int) -> int:
    """Return the number of blocks for a weight of n rows: of a persistent kernel as many as run at a time, else `splits` per tile."""
    tiles, sms = ceil_div(n, tiling.rows) * ceil_div(x.shape[0], tiling.tokens), SIMULATED_SMS if isinstance(x, np.ndarray) else sms_here()
    return min(tiles, sms * tiling.blocks) if tiling.batches else tiles * tiling.splits


def run(found: Format, x, weight, out, bias, stream, tiling: MixedInputTiling | None, gated: bool) -> None:
    """Check the arguments and launch."""
    check_arrays(x, weight, out, bias, gated)
    (m, k), n = x.shape, weight.codes.shape[0]
    if 0 in out.shape:
        return
    assert found.tiles is not None
    decoder, steps = found.tiles(x.dtype.name, *found.kind(weight, k)), ceil_div(k, STEP)
    code_bytes = decoder.code_bytes
    check_array("codes", weight.codes, CODE_DTYPES, N=n, bytes=k * code_bytes // STEP)
    copied = out.dtype == x.dtype and rows_begin_on(16, out)
    tiling = tiling or choose_tiling(m, out.shape[1], k, gated, decoder.row_bytes, decoder.table.bytes, copied)
    tiling.check(decoder.row_bytes, decoder.table.bytes)
    whole = f"{tiling}: TMA stores outputs of x's dtype, {x.dtype}, in rows that begin on multiples of 16 bytes; out is {out.dtype}"
    check(copied or not tiling.batches, f"{whole} {list(out.shape)}")
    check(tiling.splits <= steps, f"{tiling}: x has {k} columns, {steps} steps of {STEP}, which must be as many as the splits")
    chosen = mixed_input_kernel(tiling, decoder, x.dtype.name, gated, stored_together(out, x.dtype))
    x_map = tensor_map(x, (tiling.tokens, STEP), promotion=128)
    rows = tiling.columns(gated)  # per box of codes
    weight_map = tensor_map(weight.codes.view("uint16"), (rows, code_bytes // 2), swizzle=code_bytes, promotion=128)
    arguments = (
        x_map,
        weight_map,
        scale_maps(decoder, weight, rows),
        map_of_out(tiling, out, gated),
        found.tile_arrays(weight),
        bias,
        out,
        steps,
    )
    blocks, cluster = blocks_of(tiling, x, n), (tiling.splits, 1, 1) if tiling.splits > 1 else None
    launch(chosen, blocks, tiling.threads, arguments, stream, tiling.shared_bytes(decoder.row_bytes), cluster)


def make_gemm(found: Format) -> Any:
    """The launcher of a GEMM with weights of one format."""

    def gemm(x, weight, out, bias=None, stream=None, tiling: MixedInputTiling | None = None) -> None:
        """Write x @ weight.T + bias into `out` [M, N].

        x [M, K], float16 or bfloat16; weight: the format's NamedTuple [N, K]; out and bias [N] have x's dtype or float32. `tiling`
        overrides the choice by shape. Raises KernelArgumentError for anything else (see `fits`), and on a GPU of another compute capability
        than 9.0.
        """
        run(found, x, weight, out, bias, stream, tiling, False)

    return gemm


def make_gated_gemm(found: Format) -> Any:
    """The launcher of a GEMM with gate and up, for weights of one format."""

    def gated_gemm(x, gate_up, out, stream=None, tiling: MixedInputTiling | None = None) -> None:
        """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I], in x's dtype.

        gate_up: the format's NamedTuple [2 I, K], the gate's rows first. Raises as the launcher of make_gemm does.
        """
        run(found, x, gate_up, out, None, stream, tiling, True)

    return gated_gemm
