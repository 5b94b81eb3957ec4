"""Warpgroups of a block that divide K: which stages each of them uses, and how their sums are added.

With k_groups = 2 both warpgroups have the same 64 rows of weight. The first takes the even steps of the block, the second the odd ones, so
that one decodes while the other multiplies. There are twice as many tiles as with 128 rows, so fewer blocks of a cluster have to divide K.
The price is x: a block reads all of it for half the rows of weight.

The stages are a multiple of k_groups, so every stage belongs to one warpgroup, which waits only for stages that it released itself. If two
warpgroups alternated on a stage, one of them could be two phases behind, and a barrier's parity is the same for both phases.
"""

from numba import cuda, uint32

from minllm import ptx
from minllm.kernels.matmul.flat.output import PADDING, make_keep_sums
from minllm.kernels.matmul.quantized.mixed_input.tiling import MixedInputTiling
from minllm.tiles.pipeline import Pipeline, PipelineState
from minllm.tiles.warpgroup import THREADS, uniform


def make_group_of(tiling: MixedInputTiling):
    """group_of(consumer): (the part of K of a consumer thread, its number among the threads of this part)."""

    @cuda.jit(device=True, forceinline=True)
    def group_of(consumer):
        return uniform(consumer // THREADS), consumer % THREADS

    @cuda.jit(device=True, forceinline=True)
    def the_only_group(consumer):
        return 0, consumer

    return group_of if tiling.k_groups > 1 else the_only_group


def make_advance(tiling: MixedInputTiling, pipeline: Pipeline):
    """advance(state): the PipelineState of the warpgroup's next step."""
    stages, k_groups = tiling.stages, tiling.k_groups

    @cuda.jit(device=True, forceinline=True)
    def advance(state):
        slot, phase = uint32(state.slot + k_groups), state.phase
        if slot >= stages:
            slot, phase = uint32(slot - stages), uint32(phase ^ 1)
        return PipelineState(slot, phase)

    return advance if k_groups > 1 else pipeline.advance


def make_leave_sums(tiling: MixedInputTiling, registers: int):
    """Return the device function with which the consumers leave the sums of all steps of a tile in shared memory.

    With k_groups = 2 the second warpgroup stores its sums there; each thread of the first adds those of its counterpart to its own, and
    stores the total. The total is first + second in every run, whichever warpgroup is faster.
    """
    stride, consumers = tiling.rows + PADDING, tiling.warpgroups * THREADS
    keep_sums = make_keep_sums(tiling.rows, tiling.tokens // 8)

    @cuda.jit(device=True, forceinline=True)
    def add_kept(sums, memory, first_word, row, lane):
        """sums += the sums that keep_sums stored for the thread's counterpart."""
        place = uint32(first_word + (lane & 3) * 2 * stride + row + (lane >> 2))
        for i in range(registers):
            sums[i] += memory[uint32(place + (i // 4 * 8 + i % 2) * stride + i // 2 % 2 * 8)]

    @cuda.jit(device=True, forceinline=True)
    def leave_sums(sums, memory, first_word, group, thread):
        keep_sums(sums, 0, memory, first_word, (thread >> 5) * 16, thread & 31)

    @cuda.jit(device=True, forceinline=True)
    def leave_total(sums, memory, first_word, group, thread):
        if group == 1:
            leave_sums(sums, memory, first_word, group, thread)
        ptx.bar_sync(1, consumers)
        if group == 0:
            add_kept(sums, memory, first_word, (thread >> 5) * 16, thread & 31)
            leave_sums(sums, memory, first_word, group, thread)

    return leave_total if tiling.k_groups > 1 else leave_sums
