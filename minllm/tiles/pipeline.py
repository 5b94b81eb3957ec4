"""A pipeline: a ring of stages in shared memory that a producer fills by TMA while consumers work on other stages.

A stage holds the tiles of one step and has two mbarriers. full completes when TMA has delivered the stage's bytes: consumers wait for it.
empty completes when all consumers have released the stage: the producer waits for it before it fills the stage again. A PipelineState holds
the next stage and the parity of its barriers' phase; producer and consumers each advance their own. The names are CUTLASS's
(PipelineTmaAsync, PipelineState):

    producer    stage = pipeline.producer_acquire(ring, state); pipeline.producer_expect(stage, bytes); tma loads to stage; advance
    consumer    pipeline.consumer_wait(ring, state); multiply; pipeline.consumer_release(ring, state); advance

Blocks of a cluster that load parts of each other's stages (multicast) share them: a stage is empty when the consumers of all these blocks
have released it, so a consumer arrives at the barriers of all of them.

PTX ISA, "mbarrier", "mapa"; NVIDIA, CUTLASS, "include/cutlass/pipeline".
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx

BARRIER_BYTES = 8


class PipelineState(NamedTuple):
    """The next stage, and the parity of its barriers' phase."""

    slot: int
    phase: int


class Ring(NamedTuple):
    """Shared addresses of a pipeline's stages and barriers, and the cluster rank of the first block that shares them."""

    stages: int
    full: int
    empty: int
    first_rank: int


class Stage(NamedTuple):
    """Shared addresses of a stage's tiles, and of the mbarrier that counts their bytes."""

    tiles: int
    full: int


class Pipeline(NamedTuple):
    """The operations of a pipeline, and the bytes of shared memory for its stages and for its barriers."""

    bytes: int
    barrier_bytes: int
    ring: Callable
    init: Callable
    keep: Callable
    state: Callable
    advance: Callable
    stage: Callable
    operand: Callable
    producer_acquire: Callable
    producer_expect: Callable
    consumer_wait: Callable
    consumer_release: Callable


@functools.cache
def make_pipeline(stages: int, stage_bytes: int, consumers: int, producers: int = 1, sharers: int = 1, by_thread: bool = False) -> Pipeline:
    """A pipeline of `stages` stages; `producers` threads load parts of each, and `consumers` warpgroups per block release it.

    sharers: blocks of a cluster that load parts of each other's stages. by_thread: every thread of a consumer releases a stage itself,
    because threads read it with ordinary loads; otherwise the first of its 128 threads releases it for all.
    """
    arrivals = consumers * (128 if by_thread else 1) * sharers

    @cuda.jit(device=True, forceinline=True)
    def ring(first_stage, barriers, first_rank):
        """The Ring with stages and barriers at these shared addresses."""
        return Ring(uint32(first_stage), uint32(barriers), uint32(barriers + BARRIER_BYTES * stages), int32(first_rank))

    @cuda.jit(device=True, forceinline=True)
    def init(ring):
        """Initialise the barriers, in one thread; afterwards all threads of the block (cluster) must synchronise."""
        full = ptx.keep_register(ring.full)  # for an address known to be aligned, the compiler emits an OR per barrier, not an offset
        for slot in range(stages):
            ptx.mbarrier_init(full + BARRIER_BYTES * slot, producers)
            ptx.mbarrier_init(full + BARRIER_BYTES * (stages + slot), arrivals)
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def keep(ring):
        """The same Ring with its barriers' addresses kept in registers; the compiler would otherwise recompute them in every step."""
        return Ring(ring.stages, ptx.keep_register(ring.full), ptx.keep_register(ring.empty), ring.first_rank)

    @cuda.jit(device=True, forceinline=True)
    def state(steps):
        """The state after this many steps. Cheap if `stages` is a power of two; a kernel short of registers then carries only the steps."""
        return PipelineState(uint32(uint32(steps) % uint32(stages)), uint32(uint32(steps) // uint32(stages) & uint32(1)))

    @cuda.jit(device=True, forceinline=True)
    def advance(state):
        """The next state."""
        slot, phase = uint32(state.slot + 1), state.phase
        if slot == stages:
            slot, phase = uint32(0), uint32(phase ^ 1)
        return PipelineState(slot, phase)

    @cuda.jit(device=True, forceinline=True)
    def stage(ring, state):
        """The Stage of a state, without waiting."""
        return Stage(uint32(ring.stages + state.slot * stage_bytes), uint32(ring.full + BARRIER_BYTES * state.slot))

    @cuda.jit(device=True, forceinline=True)
    def operand(first, state):
        """The wgmma operand of a tile in the state's stage; first: the operand of that tile in the first stage."""
        return first + state.slot * (stage_bytes // 16)

    @cuda.jit(device=True, forceinline=True)
    def producer_acquire(ring, state):
        """Wait until the stage is empty, and return it."""
        ptx.mbarrier_wait_parity(ring.empty + BARRIER_BYTES * state.slot, state.phase ^ uint32(1))
        return stage(ring, state)

    @cuda.jit(device=True, forceinline=True)
    def producer_expect(stage, byte_count):
        """Arrive as a producer: the stage is full when all producers have arrived, with all the bytes that they expect."""
        ptx.mbarrier_arrive_expect_tx(stage.full, byte_count)

    @cuda.jit(device=True, forceinline=True)
    def consumer_wait(ring, state):
        """Wait until the stage is full."""
        ptx.mbarrier_wait_parity(ring.full + BARRIER_BYTES * state.slot, state.phase)

    @cuda.jit(device=True, forceinline=True)
    def consumer_release(ring, state):
        """Release the stage, after all threads of the consumer have read it."""
        thread = int32(cuda.threadIdx.x) & 127
        if sharers > 1:
            if thread < sharers:
                ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(ring.empty + BARRIER_BYTES * state.slot, ring.first_rank + thread))
        elif by_thread or thread == 0:
            ptx.mbarrier_arrive(ring.empty + BARRIER_BYTES * state.slot)

    operations = ring, init, keep, state, advance, stage, operand, producer_acquire, producer_expect, consumer_wait, consumer_release
    return Pipeline(stages * stage_bytes, 2 * stages * BARRIER_BYTES, *operations)
