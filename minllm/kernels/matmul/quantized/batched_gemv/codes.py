"""Codes on their way from HBM to registers: each warp has a ring of its own in shared memory, of the tiles that it has in flight.

    ring[tile, low or high, step, row, 64 bytes]                   eight rows that are low ones of pairs, and eight that are high ones

Two TMA loads bring a warp's part of a tile, one for its low rows and one for its high ones: a view of the weight whose axes are step, row
and byte, so that the 32 lanes of a warp read 512 neighbouring bytes of a step, without a conflict. One mbarrier tells that both are there.
The warp empties a stage itself, so nothing has to tell it that the stage is empty.

Source: PTX ISA, "cp.async.bulk.tensor", "mbarrier".
"""

from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx
from minllm.kernels.matmul.quantized.batched_gemv.tiling import ROW_BYTES, STEP_BYTES, BatchedGemvTiling
from minllm.kernels.vector import load_words
from minllm.tiles import tma
from minllm.tiles.pipeline import BARRIER_BYTES, Stage
from minllm.tiles.warp import WARP

WORDS = 4  # of a lane's codes of a row in a step
CODE_WORDS = 2 * WORDS  # of its two rows
STEP_WORDS = STEP_BYTES // 8  # of eight rows


class Ring(NamedTuple):
    """A warp's ring: shared addresses of its stages and barriers."""

    stages: Any
    full: Any


def make_ring(tiling: BatchedGemvTiling, steps: int):
    """The device functions (begin, start, wait) of a ring; a stage is a warp's part of a tile."""
    ahead, half = tiling.ahead, tiling.steps_of_warp(steps) * STEP_BYTES // 2

    @cuda.jit(device=True, forceinline=True)
    def begin(memory, barriers):
        """The warp's Ring."""
        warp = uint32(uint32(cuda.threadIdx.x) >> uint32(5))
        full = uint32(ptx.shared_address(barriers, 0) + warp * uint32(ahead * BARRIER_BYTES))
        if uint32(cuda.threadIdx.x) & uint32(WARP - 1) == uint32(0):
            for stage in range(ahead):
                ptx.mbarrier_init(uint32(full + uint32(stage * BARRIER_BYTES)), 1)
            ptx.fence_mbarrier_init()
        cuda.syncwarp()
        return Ring(uint32(ptx.shared_address(memory, 0) + warp * uint32(ahead * 2 * half)), full)

    @cuda.jit(device=True, forceinline=True)
    def start(ring, weight_map, low, high, step, stage):
        """Start the loads of a stage: from these rows and this step on. All lanes call it, once all have emptied the stage."""
        cuda.syncwarp()
        if uint32(cuda.threadIdx.x) & uint32(WARP - 1) == uint32(0):
            full = uint32(ring.full + uint32(stage) * uint32(BARRIER_BYTES))
            place = Stage(uint32(ring.stages + uint32(stage) * uint32(2 * half)), full)
            ptx.mbarrier_arrive_expect_tx(full, 2 * half)
            tma.load_3d(place, 0, weight_map, 0, int32(low), int32(step))
            tma.load_3d(place, half, weight_map, 0, int32(high), int32(step))

    @cuda.jit(device=True, forceinline=True)
    def wait(ring, stage, phase):
        """Wait for a stage."""
        ptx.mbarrier_wait_parity(uint32(ring.full + uint32(stage) * uint32(BARRIER_BYTES)), uint32(phase))

    return begin, start, wait


def make_load_codes(tiling: BatchedGemvTiling, steps: int, groups: int):
    """The device function: codes[at : at + 8] = a lane's codes of a step of a stage, four words of row low and four of row high."""
    words_of_a_group, stage_words = WORDS // groups, 2 * tiling.steps_of_warp(steps) * STEP_WORDS
    high, ahead = stage_words // 2, tiling.ahead

    @cuda.jit(device=True, forceinline=True)
    def load_row(memory, place, codes, at):
        lane = uint32(cuda.threadIdx.x) & uint32(3)
        if groups == 1:
            load_words(memory, uint32(place + lane * uint32(WORDS)), codes, at)
        else:
            for w in range(WORDS):
                word = uint32(w // words_of_a_group * (ROW_BYTES // 4 // groups) + w % words_of_a_group)
                codes[at + w] = memory[uint32(place + lane * uint32(words_of_a_group) + word)]

    @cuda.jit(device=True, forceinline=True)
    def load_codes(memory, stage, step, codes, at):
        row = uint32(cuda.threadIdx.x) >> uint32(2) & uint32(7)
        warp = uint32(uint32(cuda.threadIdx.x) >> uint32(5))
        first = uint32((warp * uint32(ahead) + uint32(stage)) * uint32(stage_words))
        place = uint32(first + row * uint32(ROW_BYTES // 4) + uint32(step * STEP_WORDS))
        load_row(memory, place, codes, at)
        load_row(memory, uint32(place + uint32(high)), codes, at + WORDS)

    return load_codes
