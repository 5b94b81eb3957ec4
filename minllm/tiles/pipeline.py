"""A pipeline: a ring of stages in shared memory that a producer fills by TMA while consumers work on others.

A stage holds the tiles of one step and has two mbarriers. full completes when TMA has delivered the stage's bytes: consumers wait for it.
empty completes when all consumers have released the stage: the producer waits for it before it fills the stage again. Which stage is next,
and the parity of its barriers' phase, is a PipelineState, which producer and consumers advance alike, each at its own pace. The names are
CUTLASS's (PipelineTmaAsync, PipelineState):

    producer    stage = pipeline.producer_acquire(ring, state); pipeline.producer_expect(stage, bytes); tma loads to `stage`; advance
    consumer    pipeline.consumer_wait(ring, state); multiply; pipeline.consumer_release(ring, state); advance

Blocks of a cluster that fill each other's stages (multicast) share them: a stage is empty when the consumers of all `sharers` have released
it, so a consumer tells the producers of all of them.

PTX ISA, "mbarrier", "mapa"; NVIDIA, CUTLASS, "include/cutlass/pipeline".
"""

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
    """What TMA needs to know of a stage: the shared addresses of its tiles and of the mbarrier that counts their bytes."""

    tiles: int
    full: int


class Pipeline(NamedTuple):
    """The device functions of a pipeline, and the shared memory that it takes."""

    stage_bytes: int
    barrier_bytes: int
    ring: Any  # ring(stages, barriers, first_rank) -> Ring, from two shared addresses
    init: Any  # init(ring): one thread makes the barriers
    keep: Any  # keep(ring) -> the same Ring, whose barriers' addresses stay in registers
    start: Any  # start() -> the first PipelineState
    advance: Any  # advance(state) -> the next one
    after: Any  # after(steps) -> the state after this many steps from the start
    first_round: Any  # first_round(step) -> the same, of a step less than `stages`
    stage: Any  # stage(ring, state) -> Stage
    operand: Any  # operand(first, state): the wgmma operand `first`, of a tile in the first stage, moved to the state's stage
    producer_acquire: Any  # producer_acquire(ring, state) -> Stage, once it is empty
    producer_expect: Any  # producer_expect(stage, byte_count): the producer arrives; the stage is full after this many bytes
    consumer_wait: Any  # consumer_wait(ring, state): until the stage is full
    consumer_release: Any  # consumer_release(ring, state): all threads of a consumer call it when they are done with the stage


def make_pipeline(stages: int, stage_bytes: int, consumers: int, producers: int = 1, sharers: int = 1, by_thread: bool = False) -> Pipeline:
    """A pipeline of `stages` stages; `producers` threads load parts of each, and `consumers` warpgroups per block release it.

    sharers: blocks of a cluster that load parts of each other's stages. by_thread: every thread of a consumer releases a stage for itself,
    because threads read it with ordinary loads; else one of its 128 threads does for all, which wgmma's reads need not wait for.
    """
    arrivals = consumers * (128 if by_thread else 1) * sharers

    @cuda.jit(device=True, forceinline=True)
    def ring(first_stage, barriers, first_rank):
        return Ring(uint32(first_stage), uint32(barriers), uint32(barriers + BARRIER_BYTES * stages), int32(first_rank))

    @cuda.jit(device=True, forceinline=True)
    def init(ring):
        for slot in range(stages):
            ptx.mbarrier_init(ring.full + BARRIER_BYTES * slot, producers)
            ptx.mbarrier_init(ring.empty + BARRIER_BYTES * slot, arrivals)
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def keep(ring):
        return Ring(ring.stages, ptx.keep_register(ring.full), ptx.keep_register(ring.empty), ring.first_rank)

    @cuda.jit(device=True, forceinline=True)
    def start():
        return PipelineState(uint32(0), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def advance(state):
        slot, phase = uint32(state.slot + 1), state.phase
        if slot == stages:
            slot, phase = uint32(0), uint32(phase ^ 1)
        return PipelineState(slot, phase)

    @cuda.jit(device=True, forceinline=True)
    def after(steps):
        return PipelineState(uint32(uint32(steps) % uint32(stages)), uint32(uint32(steps) // uint32(stages) & uint32(1)))

    @cuda.jit(device=True, forceinline=True)
    def first_round(step):
        return PipelineState(uint32(step), uint32(0))

    @cuda.jit(device=True, forceinline=True)
    def stage(ring, state):
        return Stage(uint32(ring.stages + state.slot * stage_bytes), uint32(ring.full + BARRIER_BYTES * state.slot))

    @cuda.jit(device=True, forceinline=True)
    def operand(first, state):
        return uint32(first + state.slot * (stage_bytes // 16))

    @cuda.jit(device=True, forceinline=True)
    def producer_acquire(ring, state):
        ptx.mbarrier_wait_parity(ring.empty + BARRIER_BYTES * state.slot, state.phase ^ uint32(1))
        return stage(ring, state)

    @cuda.jit(device=True, forceinline=True)
    def producer_expect(stage, byte_count):
        ptx.mbarrier_arrive_expect_tx(stage.full, byte_count)

    @cuda.jit(device=True, forceinline=True)
    def consumer_wait(ring, state):
        ptx.mbarrier_wait_parity(ring.full + BARRIER_BYTES * state.slot, state.phase)

    @cuda.jit(device=True, forceinline=True)
    def consumer_release(ring, state):
        thread = int32(cuda.threadIdx.x) & 127
        if sharers > 1:
            if thread < sharers:
                ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(ring.empty + BARRIER_BYTES * state.slot, ring.first_rank + thread))
        elif by_thread or thread == 0:
            ptx.mbarrier_arrive(ring.empty + BARRIER_BYTES * state.slot)

    return Pipeline(
        stages * stage_bytes, 2 * stages * BARRIER_BYTES, ring, init, keep, start, advance, after, first_round, stage, operand, producer_acquire,
        producer_expect, consumer_wait, consumer_release,
    )  # fmt: skip
