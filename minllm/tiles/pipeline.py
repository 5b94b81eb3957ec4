"""A pipeline: a ring of stages in shared memory that a producer fills by TMA while consumers work on others.

A stage holds the tiles of one step and has two mbarriers. full completes when TMA has delivered the stage's bytes: consumers wait for it.
empty completes when all consumers have released the stage: the producer waits for it before it fills the stage again. Which stage is next,
and the parity of its barriers' phase, is a PipelineState, which producer and consumers advance alike, each at its own pace. The names are
CUTLASS's (PipelineTmaAsync, PipelineState):

    producer    stage = pipeline.producer_acquire(ring, state); pipeline.producer_expect(stage, bytes); tma loads to stage; advance
    consumer    pipeline.consumer_wait(ring, state); multiply; pipeline.consumer_release(ring, state); advance

Blocks of a cluster that load parts of each other's stages (multicast) share them: a stage is empty when the consumers of all of them have
released it, so a consumer tells all their producers.

PTX ISA, "mbarrier", "mapa"; NVIDIA, CUTLASS, "include/cutlass/pipeline".
"""

import functools
from typing import Any, NamedTuple

from numba import cuda, int32, uint32

from minllm import ptx

BARRIER_BYTES = 8


class PipelineState(NamedTuple):
    """The stage that is next, and the parity of the phase that its barriers are in."""

    slot: int
    phase: int


class Ring(NamedTuple):
    """Where a pipeline lies: shared addresses of its stages and barriers, and the rank of the first block that shares them."""

    stages: int
    full: int
    empty: int
    first_rank: int


class Stage(NamedTuple):
    """Shared addresses of a stage: its tiles, and the mbarrier that counts their bytes."""

    tiles: int
    full: int


class Pipeline(NamedTuple):
    """The operations of a pipeline, and the shared memory that its stages and its barriers take."""

    bytes: int
    barrier_bytes: int
    ring: Any
    init: Any
    keep: Any
    state: Any
    advance: Any
    stage: Any
    operand: Any
    producer_acquire: Any
    producer_expect: Any
    consumer_wait: Any
    consumer_release: Any


@functools.cache
def make_pipeline(stages: int, stage_bytes: int, consumers: int, producers: int = 1, sharers: int = 1, by_thread: bool = False) -> Pipeline:
    """A pipeline of `stages` stages; `producers` threads load parts of each, and `consumers` warpgroups per block release it.

    sharers: blocks of a cluster that load parts of each other's stages. by_thread: every thread of a consumer releases a stage for itself,
    because threads read it with ordinary loads; else the first of its 128 threads does for all.
    """
    arrivals = consumers * (128 if by_thread else 1) * sharers

    @cuda.jit(device=True, forceinline=True)
    def ring(first_stage, barriers, first_rank):
        """The Ring with stages and barriers at these shared addresses."""
        return Ring(uint32(first_stage), uint32(barriers), uint32(barriers + BARRIER_BYTES * stages), int32(first_rank))

    @cuda.jit(device=True, forceinline=True)
    def init(ring):
        """One thread makes the barriers; then all threads of the block (cluster) meet."""
        full = ptx.keep_register(ring.full)  # for an address known to be aligned the compiler makes an OR per barrier, not an offset
        for slot in range(stages):
            ptx.mbarrier_init(full + BARRIER_BYTES * slot, producers)
            ptx.mbarrier_init(full + BARRIER_BYTES * (stages + slot), arrivals)
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def keep(ring):
        """The same Ring, its barriers' addresses in registers: the compiler would rather compute them again in every step."""
        return Ring(ring.stages, ptx.keep_register(ring.full), ptx.keep_register(ring.empty), ring.first_rank)

    @cuda.jit(device=True, forceinline=True)
    def state(steps):
        """The state after this many steps. Cheap for a power of two of stages; then a kernel short of registers carries the steps alone."""
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
        """The Stage of a state, without a wait."""
        return Stage(uint32(ring.stages + state.slot * stage_bytes), uint32(ring.full + BARRIER_BYTES * state.slot))

    @cuda.jit(device=True, forceinline=True)
    def operand(first, state):
        """The wgmma operand of a tile in the state's stage; first: of the same tile in the first stage."""
        return first + state.slot * (stage_bytes // 16)

    @cuda.jit(device=True, forceinline=True)
    def producer_acquire(ring, state):
        """Wait until the stage is empty -> Stage."""
        ptx.mbarrier_wait_parity(ring.empty + BARRIER_BYTES * state.slot, state.phase ^ uint32(1))
        return stage(ring, state)

    @cuda.jit(device=True, forceinline=True)
    def producer_expect(stage, byte_count):
        """A producer arrives: the stage is full when all have, and this many bytes more are there."""
        ptx.mbarrier_arrive_expect_tx(stage.full, byte_count)

    @cuda.jit(device=True, forceinline=True)
    def consumer_wait(ring, state):
        """Wait until the stage is full."""
        ptx.mbarrier_wait_parity(ring.full + BARRIER_BYTES * state.slot, state.phase)

    @cuda.jit(device=True, forceinline=True)
    def consumer_release(ring, state):
        """All threads of a consumer are done with the stage."""
        thread = int32(cuda.threadIdx.x) & 127
        if sharers > 1:
            if thread < sharers:
                ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(ring.empty + BARRIER_BYTES * state.slot, ring.first_rank + thread))
        elif by_thread or thread == 0:
            ptx.mbarrier_arrive(ring.empty + BARRIER_BYTES * state.slot)

    operations = ring, init, keep, state, advance, stage, operand, producer_acquire, producer_expect, consumer_wait, consumer_release
    return Pipeline(stages * stage_bytes, 2 * stages * BARRIER_BYTES, *operations)
