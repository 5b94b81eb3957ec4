"""The tensor-core GEMV kernel: one row of x times a quantised weight, fused with the operations around it.

A tile is 16 rows of weight, eight pairs (outputs.py). `splits` warps of a block divide K: a warp takes every `splits`-th step of 64 bytes
of codes per row, so that the warps of a tile load neighbouring bytes. It keeps `unroll` steps in flight in registers: as soon as a step has
been multiplied, the next one is loaded into its registers, also across tiles. The sums of the warps are added in shared memory, and one
warp of a tile writes its outputs while the others multiply the next tile.

The first codes are loaded before x is written (dependent launch), and are in flight while a block prepares its own copy of x
(activations.py).
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64, uint8, uint32

from minllm import ptx
from minllm.kernels.arguments import ceil_div
from minllm.kernels.matmul.quantized.row_pairs import PAIRS
from minllm.kernels.matmul.quantized.tensor_core_gemv.operand import CODE_WORDS, Held, Operand, Rows, Sums
from minllm.kernels.matmul.quantized.tensor_core_gemv.outputs import Outputs
from minllm.kernels.quantization.decoder import LANE_BYTES, ROW_BYTES
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warp import ALL_LANES, WARP

TILE_ROWS = 2 * PAIRS


class TensorCoreGemvTiling(NamedTuple):
    """Blocks of `warps` warps, of which `splits` share a tile, with `unroll` steps in flight per warp.

    Registers suffice for `blocks` blocks per SM; at most `per_sm` are launched per SM.
    """

    warps: int
    splits: int
    unroll: int
    blocks: int
    per_sm: int

    @property
    def threads(self) -> int:
        """Threads per block."""
        return self.warps * WARP

    @property
    def tiles(self) -> int:
        """Tiles that a block computes at a time."""
        return self.warps // self.splits

    def padded_steps(self, steps: int) -> int:
        """Steps of K, rounded up so that each warp of a tile has a multiple of `unroll`."""
        return ceil_div(steps, self.splits * self.unroll) * self.splits * self.unroll


@functools.cache
def tensor_core_gemv_kernel(tiling: TensorCoreGemvTiling, operand: Operand, outputs: Outputs):
    """The kernel for an Operand, which fixes K and the dtype of x."""
    (warps, splits, unroll, _, _), words_of_a_group, group = tiling, operand.words, operand.group
    tiles_of_block, last_step, table_bytes, row_bytes = tiling.tiles, operand.steps - 1, operand.table.bytes, operand.row_bytes
    padded_steps, sum_type = tiling.padded_steps(operand.steps), operand.sum_type
    chunks, groups, is_padded = padded_steps // (splits * unroll), unroll // group, padded_steps > operand.steps
    code_words, scale_words, sums_of_block = unroll * CODE_WORDS, max(1, groups * words_of_a_group), warps * TILE_ROWS
    two_buffers, multiply, scale, rows_of = 2 * sums_of_block, operand.multiply, operand.scale, outputs.rows_of
    fill_table, decoder_of = operand.table.fill, operand.table.decoding

    @cuda.jit(device=True, forceinline=True)
    def rows_of_tile(tile, n):
        """Return the lane's Rows of a tile."""
        low, high = rows_of(int32(tile * PAIRS + (int32(cuda.threadIdx.x) >> 2 & 7)), n)
        return Rows(uint32(low), uint32(high))

    @cuda.jit(device=True, forceinline=True)
    def codes_of(rows, first):
        """Return byte offsets of a lane's codes of step `first` in its rows; 64 bits, to which later steps add constants."""
        own = uint32(uint32(first) * uint32(ROW_BYTES) + (uint32(cuda.threadIdx.x) & uint32(3)) * uint32(LANE_BYTES))
        return Rows(int64(rows.low) * row_bytes + int64(own), int64(rows.high) * row_bytes + int64(own))

    @cuda.jit(device=True, forceinline=True)
    def load_row(codes, place, held, at):
        """held[at : at + 4] = a lane's codes of one step of one row."""
        one, two, three, four = ptx.load_128_streaming(codes, place)
        held[at], held[at + 1], held[at + 2], held[at + 3] = one, two, three, four

    @cuda.jit(device=True, forceinline=True)
    def load_codes(u, weight, places, first, held):
        """Load the codes of a warp's u-th step from `first` on, or of the row's last step if that is past the end."""
        behind = u * splits * ROW_BYTES
        if is_padded:
            behind = min(int32(behind), int32((last_step - first) * ROW_BYTES))
        load_row(weight.codes, places.low + behind, held.codes, u * CODE_WORDS)
        load_row(weight.codes, places.high + behind, held.codes, u * CODE_WORDS + CODE_WORDS // 2)

    @cuda.jit(device=True, forceinline=True)
    def own_step(index, first):
        """Return the step of a group of steps for which this lane scales the sums."""
        return int32(first + (index * group + operand.own_step()) * splits)

    @cuda.jit(device=True, forceinline=True)
    def load_scales(index, weight, rows, kept, first, held):
        """Load the scale data of this lane's step of a group."""
        step = min(own_step(index, first), int32(last_step))
        operand.load(weight, rows, kept, step, held.scales, index * words_of_a_group)

    @cuda.jit(device=True, forceinline=True)
    def multiply_step(u, memory, decoder, weight, held, sums, kept, first, goes_on, next_places, next_rows, next_kept, next_first):
        """Multiply the u-th step in flight and load its successor; at the end of a group scale its sums."""
        multiply(memory, decoder, held, u, first + u * splits, sums)
        if goes_on:
            load_codes(u, weight, next_places, next_first, held)
        cuda.syncwarp()  # without it ptxas moves the loads of all steps behind the mma.sync of the last one
        if u % group == group - 1:
            index = u // group
            scale(memory, decoder, kept, held, index, own_step(index, first), sums)
            if goes_on:
                load_scales(index, weight, next_rows, next_kept, next_first, held)

    load_all_codes, load_all_scales, multiply_steps = (
        unrolled(load_codes, unroll), unrolled(load_scales, groups), unrolled(multiply_step, unroll)
    )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def add_splits(sums, first):
        """Return, in lane i < 8, the sums of rows i and i + 8 of a tile over its warps."""
        lane, value = int32(cuda.threadIdx.x) & (WARP - 1), float32(0)
        for split in range(splits):
            value += sums[uint32(first + split * TILE_ROWS + (lane & (TILE_ROWS - 1)))]
        return value, cuda.shfl_xor_sync(ALL_LANES, value, PAIRS)

    @kernel(launch_bounds=(tiling.threads, tiling.blocks), dependent_launch=True)
    def tensor_core_gemv_kernel(x, norm, weight, arrays, n, pairs, epsilon):
        """x [1, K], norm [K] or None, weight [n, K]: the operand's arrays, arrays: those of the outputs, pairs: pairs of weight rows."""
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, uint32, 128)
        table = cuda.shared.array(table_bytes, uint8, 128)  # without a table (0 bytes) an unused alias of `memory`
        sums = cuda.shared.array(two_buffers, float32)
        lane, warp = int32(int32(cuda.threadIdx.x) & (WARP - 1)), int32(int32(cuda.threadIdx.x) >> 5)
        tile_of_warp, split = int32(uint32(warp) // uint32(splits)), int32(uint32(warp) % uint32(splits))
        held = Held(cuda.local.array(code_words, uint32), cuda.local.array(scale_words, uint32))
        sums_of_lane = Sums(cuda.local.array(4, sum_type), cuda.local.array(4, float32))
        stride, tiles = int32(int32(cuda.gridDim.x) * tiles_of_block), int32((pairs + PAIRS - 1) >> 3)
        first_tile, buffer = int32(int32(cuda.blockIdx.x) * tiles_of_block), int32(0)
        rows = rows_of_tile(int32(first_tile + tile_of_warp), n)
        load_all_codes(weight, codes_of(rows, split), split, held)
        cuda.syncwarp()  # loads do not move across it: loads of codes are issued before any load that waits for another
        kept = operand.begin(weight, rows)
        load_all_scales(weight, rows, kept, split, held)
        fill_table(table, weight)
        token = outputs.begin(arrays)
        factor = operand.prepare(x, norm, epsilon, memory)
        decoder = decoder_of(table)
        while first_tile < tiles:
            following, pair = int32(first_tile + stride), int32((first_tile + tile_of_warp) * PAIRS + (lane & (PAIRS - 1)))
            next_rows = rows_of_tile(int32(following + tile_of_warp), n)
            next_kept = operand.begin(weight, next_rows)
            prepared = outputs.prepare(arrays, token, pair)
            for i in range(4):
                sums_of_lane.total[i] = 0
            for chunk in range(chunks):
                first = int32(chunk * unroll * splits + split)
                if chunk + 1 < chunks:
                    goes_on, then_rows, then_kept, then_first = True, rows, kept, int32(first + unroll * splits)
                else:
                    goes_on, then_rows, then_kept, then_first = following < tiles, next_rows, next_kept, split
                then = codes_of(then_rows, then_first), then_rows, then_kept, then_first
                multiply_steps(memory, decoder, weight, held, sums_of_lane, kept, first, goes_on, *then)
            low, high = operand.finish(kept, sums_of_lane.total, factor)
            if lane & 3 == 0:
                sums[uint32(buffer + warp * TILE_ROWS + (lane >> 2))] = low
                sums[uint32(buffer + warp * TILE_ROWS + (lane >> 2) + PAIRS)] = high
            cuda.syncthreads()
            if split == 0:
                low, high = add_splits(sums, int32(buffer + warp * TILE_ROWS))
                if lane < PAIRS and pair < pairs:
                    outputs.write(arrays, prepared, pair, low, high)
            first_tile, buffer, rows, kept = following, int32(sums_of_block - buffer), next_rows, next_kept

    return tensor_core_gemv_kernel
