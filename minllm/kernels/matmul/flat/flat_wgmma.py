"""Flat matrix product of Hopper: the copy engine streams weights through a ring in shared memory, and wgmma multiplies them from there.

    out[m, n] = sum over k of x[m, k] * weight[n, k]  (+ bias[n])          M <= 256, x and weight bfloat16 or float16

A block owns 64 rows of weight for each of its warpgroups. One thread, the producer, has the copy engine fetch tiles of 64 columns, as far
ahead as the ring has stages; the warpgroups multiply m64nNk16, N being the rows of x (tokens) padded to a multiple of 8. A stage costs one
copy of weight, one of x (as many rows as there are: absent_rows.py), and four wgmma, so that nothing but memory's speed is left to wait
for.

Where a matrix has few rows, `splits` blocks of a cluster divide K: each leaves its sums in shared memory, and all read each other's there,
always in the same order. With many tokens tiles of x cost as much of L2's bandwidth as weights do; then `sharers` blocks of a cluster each
fetch a part of x's tile, for all of them (multicast).

The kernel starts before its predecessor has ended (programmatic dependent launch): the first ring of weights, which nobody writes, is
then on its way while x is still being computed.

Source: PTX ISA, "cp.async.bulk.tensor", "wgmma.mma_async", "mapa"; K. Hong et al., "FlashDecoding++", section 4.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import make_keep_sums, make_write
from minllm.kernels.matmul.flat.wgmma_tiling import LINE_BYTES, TILE_K, WARPGROUP, WARPGROUP_ROWS, FlatWgmmaTiling
from minllm.runtime.kernel import kernel
from minllm.tiles.shared import make_clear_rows

WGMMA_DTYPES = {"bfloat16": "bf16", "float16": "f16"}


def make_produce(tokens: int, tiling: FlatWgmmaTiling, gated: bool):
    """The device functions of the producer, one thread: fill the ring with weights, then with x, then keep it full."""
    stages, stage_bytes, rows = tiling.stages, tiling.stage_bytes(tokens), tiling.rows
    box_rows = rows // 2 if gated else rows
    sharers, part_bytes, all_sharers = tiling.sharers, tokens // tiling.sharers * LINE_BYTES, (1 << tiling.sharers) - 1

    @cuda.jit(device=True, forceinline=True)
    def fetch_weight(weight_map, tile, full, step, row, second_row, m):
        """Columns of one step of `rows` rows: neighbours, or half of them of the gate and half of what it gates."""
        ptx.mbarrier_arrive_expect_tx(full, (rows + (m if sharers == 1 else tokens)) * LINE_BYTES)
        ptx.cp_async_bulk_tensor_2d_shared_global(tile, weight_map, step * TILE_K, row, full)
        if gated:
            ptx.cp_async_bulk_tensor_2d_shared_global(tile + box_rows * LINE_BYTES, weight_map, step * TILE_K, second_row, full)

    @cuda.jit(device=True, forceinline=True)
    def begin(weight_map, ring, full, empty, first_step, steps, row, second_row, m):
        """Make the barriers and start the first copies of weights, which no kernel writes."""
        for stage in range(stages):
            ptx.mbarrier_init(full + 8 * stage, 1)
            ptx.mbarrier_init(empty + 8 * stage, tiling.warpgroups * sharers)
        ptx.fence_mbarrier_init()
        for step in range(min(steps, stages)):
            fetch_weight(weight_map, ring + step * stage_bytes, full + 8 * step, first_step + step, row, second_row, m)

    @cuda.jit(device=True, forceinline=True)
    def fetch_x(x_map, tile, full, step, split, sharer):
        """Columns of one step of all tokens: each of the blocks that share them fetches its part, for all."""
        if sharers == 1:
            ptx.cp_async_bulk_tensor_2d_shared_global(tile, x_map, step * TILE_K, 0, full)
        else:
            part, mask = uint32(tile + sharer * part_bytes), all_sharers << (split * sharers)
            first = int32(sharer * (tokens // sharers))
            ptx.cp_async_bulk_tensor_2d_shared_global_multicast(part, x_map, step * TILE_K, first, full, mask)

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, full, empty, first_step, steps, row, second_row, m, split, sharer):
        """x for the first stages once it is written, and then both for every stage that has become empty."""
        ptx.griddepcontrol_wait()
        x_tile = uint32(ring + rows * LINE_BYTES)
        for step in range(min(steps, stages)):
            fetch_x(x_map, x_tile + step * stage_bytes, full + 8 * step, first_step + step, split, sharer)
        stage, phase = uint32(0), uint32(0)
        step = int32(stages)
        while step < steps:
            ptx.mbarrier_wait_parity(empty + 8 * stage, phase)
            fetch_weight(weight_map, ring + stage * stage_bytes, full + 8 * stage, first_step + step, row, second_row, m)
            fetch_x(x_map, x_tile + stage * stage_bytes, full + 8 * stage, first_step + step, split, sharer)
            stage, step = uint32(stage + 1), int32(step + 1)
            if stage == stages:
                stage, phase = uint32(0), uint32(phase ^ 1)

    return begin, produce


def make_consume(tokens: int, tiling: FlatWgmmaTiling, dtype: str):
    """The device function of a consumer, a warpgroup: the sums of 64 rows of weight for all tokens, left in shared memory."""
    stages, stage_bytes, rows = tiling.stages, tiling.stage_bytes(tokens), tiling.rows
    totals, consumers, sharers = tokens // 2, tiling.warpgroups * WARPGROUP, tiling.sharers
    keep_sums, clear_rows = make_keep_sums(rows, tokens // 8), make_clear_rows(stages, stage_bytes, LINE_BYTES, consumers, 4)
    wgmma = ptx.make_wgmma(tokens, WGMMA_DTYPES[dtype])

    @cuda.jit(device=True, forceinline=True)
    def multiply(total, weight_ring, x_ring, stage):
        """total += the product of a stage's tiles: weight takes the 64-row side, x the side that is a multiple of 8."""
        weight, x = ptx.advance_descriptor(weight_ring, stage * stage_bytes), ptx.advance_descriptor(x_ring, stage * stage_bytes)
        ptx.wgmma_fence()
        for step in range(TILE_K // 16):
            wgmma(total, ptx.advance_descriptor(weight, 32 * step), ptx.advance_descriptor(x, 32 * step), 1)
        ptx.wgmma_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def release(empty, stage, split, thread):
        """A consumer is done with a stage: it tells the producers of all blocks that fetch a part of its x."""
        number = thread & 127
        if sharers == 1:
            if number == 0:
                ptx.mbarrier_arrive(empty + 8 * stage)
        elif number < sharers:
            ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(empty + 8 * stage, split * sharers + number))

    @cuda.jit(device=True, forceinline=True)
    def consume(sums, sums_at, ring, full, empty, steps, m, split, thread):
        """sums[sums_at + token * (rows + PADDING) + row] of this block's part of K."""
        consumer, warp, lane = thread >> 7, thread >> 5, thread & 31
        weight_ring = ptx.matrix_descriptor(ring + consumer * WARPGROUP_ROWS * LINE_BYTES, 16, 8 * LINE_BYTES, 128)
        x_ring = ptx.matrix_descriptor(ring + rows * LINE_BYTES, 16, 8 * LINE_BYTES, 128)
        total = cuda.local.array(totals, float32)
        for i in range(totals):
            total[i] = 0.0
        if sharers == 1 and m < tokens:
            clear_rows(sums, 4 * sums_at + (rows + m) * LINE_BYTES, tokens - m, thread)
            ptx.bar_sync(1, consumers)
        stage, previous, phase = uint32(0), uint32(0), uint32(0)
        for step in range(steps):
            ptx.mbarrier_wait_parity(full + 8 * stage, phase)
            multiply(total, weight_ring, x_ring, stage)
            ptx.wgmma_wait_group_1()  # the products before these are done, these are under way
            if step > 0:
                release(empty, previous, split, thread)
            previous = stage
            stage = uint32(stage + 1)
            if stage == stages:
                stage, phase = uint32(0), uint32(phase ^ 1)
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(total, totals)
        ptx.bar_sync(1, consumers)  # all tiles have been multiplied: the sums may lie in their place
        keep_sums(total, 0, sums, sums_at, warp * 16, lane)

    return consume


def make_added(splits: int, sharers: int):
    """The device function that adds four neighbouring sums over the blocks of a cluster that divide K."""

    @cuda.jit(device=True, forceinline=True)
    def added(sums, start, place):
        if splits == 1:
            return ptx.load_float32(sums, start + place)
        address, sharer = ptx.shared_address(sums, start + place), ptx.cluster_ctarank() % uint32(sharers)
        a, b, c, d = float32(0.0), float32(0.0), float32(0.0), float32(0.0)
        for split in range(splits):
            e, f, g, h = ptx.ld_shared_cluster_v4_f32(ptx.mapa(address, split * sharers + sharer))
            a, b, c, d = a + e, b + f, c + g, d + h
        return a, b, c, d

    return added


@cuda.jit(device=True, forceinline=True)
def meet(blocks):
    """All threads of the block, or of the cluster if `blocks`, a constant, is more than 1."""
    if blocks > 1:
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
    else:
        cuda.syncthreads()


@functools.cache
def flat_wgmma_kernel(tokens: int, tiling: FlatWgmmaTiling, dtype: str, gated: bool, together: int):
    """The kernel for x and weight of `dtype` and up to `tokens` rows of x, a multiple of 8.

    gated: out = silu(gate) * up of the two halves of weight's rows. together: outputs stored at a time, as `stored_together` says.
    """
    tiling.check(tokens)
    stages, splits, sharers, consumers = tiling.stages, tiling.splits, tiling.sharers, tiling.warpgroups * WARPGROUP
    cluster = splits * sharers
    columns = tiling.rows // 2 if gated else tiling.rows
    ring_bytes = max(stages * tiling.stage_bytes(tokens), tiling.sums_bytes(tokens))
    begin, produce = make_produce(tokens, tiling, gated)
    consume = make_consume(tokens, tiling, dtype)
    write = make_write(tiling.rows, splits * consumers, dtype, gated, together, make_added(splits, sharers))

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def matmul_flat_wgmma_kernel(x_map, weight_map, bias, out, k_steps):
        """x [M, K] in boxes [tokens, 64], weight [N, K] in boxes [rows, 64] (gated: half the rows), out [M, N] or [M, N / 2]."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread = int32(cuda.threadIdx.x)
        start = ptx.shared_address(memory, 0)
        ring = uint32((start + uint32(1023)) & uint32(0xFFFFFC00))
        full = uint32(ring + ring_bytes)
        empty = uint32(full + 8 * stages)
        rank = int32(cuda.blockIdx.x % cluster)
        split, sharer = rank // sharers, rank % sharers
        tile = int32(cuda.blockIdx.x // cluster * sharers + sharer)
        first_step = int32(k_steps * split // splits)
        steps = int32(k_steps * (split + 1) // splits - first_step)
        column, m = int32(tile * columns), int32(out.shape[0])
        second_row = int32(column + out.shape[1])
        if thread == consumers:
            begin(weight_map, ring, full, empty, first_step, steps, column, second_row, m)
        meet(sharers)
        sums_at = uint32((ring - start) >> uint32(2))
        if thread < consumers:
            consume(memory, sums_at, ring, full, empty, steps, m, split, thread)
        elif thread == consumers:
            produce(x_map, weight_map, ring, full, empty, first_step, steps, column, second_row, m, split, sharer)
        meet(cluster)
        if thread < consumers:
            write(bias, out, memory, sums_at, 0, m, column, split * consumers + thread)
        if splits > 1:  # a block's shared memory has to stay while others may read it
            meet(splits)

    return matmul_flat_wgmma_kernel
