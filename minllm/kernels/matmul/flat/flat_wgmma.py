"""Flat GEMM for Hopper: TMA streams weights through a pipeline in shared memory, and wgmma multiplies them from there.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 256, x and weight bfloat16 or float16

A block owns 64 rows of weight for each of its warpgroups. One thread, the producer, loads tiles of 64 columns by TMA, as far ahead as the
pipeline has stages; the warpgroups multiply m64nNk16, N being the rows of x (tokens) padded to a multiple of 8. A stage costs one load of
weight, one of x (as many rows as there are: tiles/shared.py), and four wgmma, so memory bandwidth is the only limit left.

If a matrix has few rows, `splits` blocks of a cluster divide K (split-K): each leaves its sums in shared memory, where all blocks read
them, always in the same order. With many tokens, tiles of x cost as much of L2's bandwidth as weights do; then `sharers` blocks of a
cluster each load a part of x's tile for all of them (multicast).

The kernel starts before its predecessor has ended (programmatic dependent launch): the first ring of weights, which no kernel writes, is
then loaded while x is still being computed.

Source: PTX ISA, "cp.async.bulk.tensor", "wgmma.mma_async", "mapa"; K. Hong et al., "FlashDecoding++", section 4.
"""

import functools

import numpy as np
from numba import cuda, float32, int32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.arguments import padded_rows
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma, make_mainloop
from minllm.kernels.matmul.flat.output import make_write, stored_together
from minllm.kernels.matmul.flat.wgmma_tiling import TILE_K, FlatWgmmaTiling
from minllm.runtime.kernel import kernel
from minllm.tiles.warpgroup import THREADS, sync_blocks, wait_for_blocks


@functools.cache
def flat_wgmma_kernel(tokens: int, tiling: FlatWgmmaTiling, dtype: str, gated: bool, together: int, half: str):
    """The kernel for x and weight of `dtype` and up to `tokens` rows of x, a multiple of 8.

    dtype: bfloat16 or float16; or that of 8-bit codes, float8_e4m3fn or int8. gated: out = silu(gate) * up of the two halves of weight's
    rows. together: outputs stored at a time, as `stored_together` says. half: the dtype of 16-bit outputs.
    """
    splits, sharers, consumers = tiling.splits, tiling.sharers, tiling.warpgroups * THREADS
    cluster, columns = splits * sharers, tiling.rows // 2 if gated else tiling.rows
    tile_of_block, open, begin, consume, produce, added = make_mainloop(tokens, tiling, dtype, halves=gated)
    write = make_write(tiling.rows, splits * consumers, half, gated, together, added)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def matmul_flat_wgmma_kernel(x_map, weight_map, bias, x_scales, scales, out, k_steps):
        """x [M, K] in boxes [tokens, 64], weight [N, K] in boxes [rows, 64] (gated: half the rows), out [M, N] or [M, N / 2].

        8-bit codes come in pairs, K pairs for 2 K codes, with x_scales [M] and scales [N]; else None.
        """
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread = int32(cuda.threadIdx.x)
        column, m = int32(tile_of_block() * columns), int32(out.shape[0])
        share, ring, sums_at = open(memory, k_steps, column, int32(column + out.shape[1]), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(sharers)
        if thread < consumers:
            consume(memory, sums_at, ring, share, thread)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(cluster)
        if thread < consumers:
            if x_scales is not None:
                ptx.griddepcontrol_wait()  # the kernel that writes x also writes its scales
            write(bias, x_scales, scales, out, memory, sums_at, 0, m, column, share.split * consumers + thread)
        if splits > 1:  # a block must not exit while others may read its shared memory
            wait_for_blocks()

    return matmul_flat_wgmma_kernel


def launch_flat_matmul(x, weight, scales, out, bias, dtype: str, half: str, tiling: FlatWgmmaTiling, gated: bool, stream) -> None:
    """Launch for checked arrays; dtype, half: as in flat_wgmma_kernel; scales: those of x and weight, or None and None."""
    (m, n), columns = out.shape, tiling.rows // 2 if gated else tiling.rows  # columns of out per block
    tokens = padded_rows(m, tiling.sharers)  # each block that shares tiles of x loads whole groups of eight rows
    chosen = flat_wgmma_kernel(tokens, tiling, dtype, gated, stored_together(out, np.dtype(half)), half)
    launch_flat_wgmma(
        chosen, x, weight, (bias, *scales, out, ceil_div(x.shape[1], TILE_K)), tokens, tiling, ceil_div(n, columns), gated, stream
    )
