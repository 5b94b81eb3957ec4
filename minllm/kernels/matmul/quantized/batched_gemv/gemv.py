"""The batched GEMV: up to sixteen rows of x times int4 or NF4 weights, on Hopper's tensor cores.

    out = x @ weight.T + bias          gated: silu(x @ gate.T) * (x @ up.T)

2 M N K FLOPs on N K / 2 bytes of codes: memory-bound, like the GEMV of one row (tensor_core_gemv/), which loads codes in the same way.
There each block holds all of x in shared memory; here the blocks of a cluster divide K, and x, and add their sums.

    tiling.py                      how the work is divided
    kernel.py                      which warp multiplies what, and when it is loaded
    x.py                           x as operand B; quantization/decoder.py: codes as operand A
    loads.py, multiply_step.py     loads from HBM to registers; one step of mma.sync
    sums.py, outputs.py            sums sent to the block that writes them; the outputs

Source: Frantar et al. 2024, "MARLIN"; PTX ISA, "mma", "barrier.cluster".
"""

import functools
import math

import numpy as np

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array, rows_begin_on
from minllm.kernels.matmul.arguments import HALF_DTYPES, has_wgmma
from minllm.kernels.matmul.quantized.arguments import MOST_CODE_BYTES, UINT8, check_out
from minllm.kernels.matmul.quantized.batched_gemv.kernel import batched_gemv_kernel, dynamic_bytes
from minllm.kernels.matmul.quantized.batched_gemv.outputs import GATED, PLAIN
from minllm.kernels.matmul.quantized.batched_gemv.tiling import INPUTS, BatchedGemvTiling
from minllm.kernels.matmul.quantized.row_pairs import PAIRS
from minllm.kernels.quantization.decoder import Format
from minllm.kernels.quantization.int4 import INT4
from minllm.runtime.device import SHARED_BYTES_PER_BLOCK, is_assumed, sms_here
from minllm.runtime.kernel import check, launch

MOST_ROWS = 16


def fits(found: Format, x, weight) -> bool:
    """Whether the kernel supports these arrays on this GPU, which must be Hopper.

    Up to 16 rows of 16 bits, K % 128 == 0, aligned to 16 bytes; groups that the format supports; a block's part of x fits in shared memory.
    """
    m, k = x.shape
    aligned = 1 <= m <= MOST_ROWS and x.dtype in HALF_DTYPES and k % INPUTS == 0 and rows_begin_on(16, x, weight.codes)
    if not aligned or not has_wgmma(weight.codes) or not found.takes(k, weight) or math.prod(weight.codes.shape) >= MOST_CODE_BYTES:
        return False
    return choose_tiling(m, weight.codes.shape[0], k).shared_bytes(k // INPUTS) <= SHARED_BYTES_PER_BLOCK


def check_fits(found: Format, x, weight) -> None:
    """Raise KernelArgumentError unless x and weight fit (see `fits`)."""
    check_array("x", x, FLOAT_DTYPES, M=None, K=None)
    groups = ", groups of 32, 64 or multiples of 128" if found is INT4 else ""
    check(
        fits(found, x, weight),
        f"x is {x.dtype} {list(x.shape)}, codes are {list(weight.codes.shape)}; the batched GEMV over {found.name} takes up to {MOST_ROWS} "
        f"rows of float16 or bfloat16 of a multiple of {INPUTS} inputs, rows that begin on multiples of 16 bytes{groups}, and compute "
        "capability 9.0: take gemv, or widen the weight",
    )
    check_array("codes", weight.codes, (UINT8,), N=None, bytes=x.shape[1] // 2)


@functools.cache  # each launch calls it three times: to choose the kernel, to check the arrays, and to run it
def choose_tiling(m: int, n: int, k: int) -> BatchedGemvTiling:
    """Return the fastest of some twenty tilings for the weights of an 8B model on an H100, or one within 5 % of it.

    n: rows of weight. Eight blocks divide K, and a warp's share is four steps. Long rows take blocks of 16 warps, one per SM, which keep
    fewer copies of x. A large weight has many tiles: with up to eight tokens it takes clusters of four blocks, with more one block of 12
    warps per SM.
    """
    steps, tokens = k // INPUTS, 8 if m <= 8 else MOST_ROWS
    cluster = next((one for one in (8, 4, 2) if steps >= one), 1)
    splits = next((one for one in (1, 2, 4) if steps <= 4 * cluster * one), 8)
    warps, blocks = (16, 1) if splits >= 4 else (8, 2)
    if splits == 1 and cluster == 8 and n > 8192:
        if tokens == 8:
            cluster, splits = 4, 2
        else:
            warps, blocks = 12, 1
    return BatchedGemvTiling(warps, splits, cluster, min(4, ceil_div(steps, cluster * splits)), tokens, blocks)


def run(found: Format, x, weight, bias, out, outputs, pairs: int, stream, tiling) -> None:
    """Check the tiling and launch."""
    n, (m, k) = weight.codes.shape[0], x.shape
    tiling = BatchedGemvTiling(*(tiling or choose_tiling(m, n, k)))
    tiling.check()
    check(m <= tiling.tokens, f"{tiling} for {m} rows of x")
    needed = tiling.shared_bytes(k // INPUTS)
    check(needed <= SHARED_BYTES_PER_BLOCK, f"{tiling}: {needed} bytes of shared memory; a block has {SHARED_BYTES_PER_BLOCK}")
    assert found.batched is not None
    decoder = found.batched(x.dtype.name, tiling.threads, *found.kind(weight, k))
    kernel = batched_gemv_kernel(tiling, decoder, outputs, x.dtype.name, k)
    shared_bytes, arguments = dynamic_bytes(tiling, k // INPUTS, decoder.groups), (x, found.arrays(weight), bias, out, n, pairs)
    wanted = ceil_div(ceil_div(pairs, PAIRS), tiling.tiles)
    clusters = min(wanted, clusters_at_a_time(kernel, tiling, arguments, shared_bytes))
    launch(kernel, clusters * tiling.cluster, tiling.threads, arguments, stream, shared_bytes, (tiling.cluster, 1, 1))


def clusters_at_a_time(kernel, tiling: BatchedGemvTiling, arguments, shared_bytes: int) -> int:
    """Return how many clusters can run at a time: one more would wait until another has ended.

    In the simulator and a dry run the number follows from the SMs alone.
    """
    if isinstance(arguments[0], np.ndarray) or is_assumed():
        return max(1, sms_here() * tiling.blocks // tiling.cluster)
    return kernel[tiling.cluster, tiling.threads, None, shared_bytes, (tiling.cluster, 1, 1)].clusters_at_a_time(*arguments)


def make_gemv(found: Format):
    """The launcher of out = x @ weight.T + bias."""

    def batched_gemv(x, weight, out, bias=None, stream=None, tiling=None) -> None:
        """Write x @ weight.T + bias into `out` [M, N].

        x [M, K], M <= 16, float16 or bfloat16; weight [N, K] in the launcher's format; out and bias [N] have x's dtype or float32.
        `tiling` overrides the choice by shape. Raises KernelArgumentError for anything else (see `fits`).
        """
        check_fits(found, x, weight)
        n = weight.codes.shape[0]
        check_out(x, out, bias, n, False)
        if n:
            run(found, x, weight, bias, out, PLAIN, ceil_div(n, 2 * PAIRS) * PAIRS, stream, tiling)

    return batched_gemv


def make_gated_gemv(found: Format):
    """The launcher of out = silu(gate) * up."""

    def gated_batched_gemv(x, gate_up, out, stream=None, tiling=None) -> None:
        """Write silu(x @ gate.T) * (x @ up.T) into `out` [M, I]; gate_up: a weight [2 I, K], the gate's rows first.

        gate and up are not rounded before they are multiplied. Raises as batched_gemv does.
        """
        check_fits(found, x, gate_up)
        rows = gate_up.codes.shape[0]
        check(rows % 2 == 0, f"gate_up has {rows} rows; the gate's and as many of up are an even number")
        check_out(x, out, None, rows, True)
        if out.shape[1]:
            run(found, x, gate_up, None, out, GATED, out.shape[1], stream, tiling)

    return gated_batched_gemv
