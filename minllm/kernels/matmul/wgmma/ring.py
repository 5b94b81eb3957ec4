"""The ring of tiles between the producer and the consumers of the wgmma product: its barriers, and how a step's tiles are fetched.

Stage s of the ring has two mbarriers. full[s] completes when the copy engine has delivered the stage's tiles; consumers wait for it.
empty[s] completes when every consumer has multiplied them; the producer waits for it before it fills the stage again.

In a cluster of two, both blocks need the same tile of weight. Each fetches one half of it, for both (multicast): weight then crosses from
L2 to the multiprocessors once for two blocks. Because a block writes into the other's memory, a stage is empty only when the
consumers of both blocks are done with it, so these tell both producers.

Source: PTX ISA, "mbarrier", "cp.async.bulk.tensor" (.multicast::cluster).
"""

from numba import cuda

from minllm import ptx
from minllm.kernels.matmul.wgmma.tiling import LINE_BYTES, WgmmaTiling


def make_ring(tiling: WgmmaTiling):
    """Device functions: make the barriers, release a stage, and meet all threads of the cluster."""
    stages, cluster, consumers = tiling.stages, tiling.cluster, tiling.consumers

    @cuda.jit(device=True)
    def make_barriers(full, empty):
        """All barriers, by one thread: an arrival of the producer fills a stage, one of each consumer of the cluster empties it."""
        for stage in range(stages):
            ptx.mbarrier_init(full + 8 * stage, 1)
            ptx.mbarrier_init(empty + 8 * stage, consumers * cluster)
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def release(empty, stage, thread):
        """A consumer is done with a stage: one of its 128 threads for each block tells that block's producer."""
        if cluster == 1:
            if thread == 0:
                ptx.mbarrier_arrive(empty + 8 * stage)
        elif thread < cluster:
            ptx.mbarrier_arrive_relaxed_cluster(ptx.mapa(empty + 8 * stage, thread))

    @cuda.jit(device=True)
    def meet():
        """All threads of the cluster."""
        if cluster == 1:
            cuda.syncthreads()
        else:
            ptx.barrier_cluster_arrive()
            ptx.barrier_cluster_wait()

    return make_barriers, release, meet


def make_fetch(tiling: WgmmaTiling):
    """Three device functions: say what a stage waits for; fetch one step's tiles of weight, two halves of [tile_n / 2, 64], and of x.

    A tile of x is [tile_m, 64]; of few rows (`early`) each consumer gets `each`, in a box of its own: 64 would reach beyond x's end.
    """
    x_bytes, half_bytes, cluster = tiling.tile_m * LINE_BYTES, tiling.tile_n // 2 * LINE_BYTES, tiling.cluster
    stage_bytes, both_blocks, early, consumers = tiling.stage_bytes, 0b11, tiling.early, tiling.consumers
    consumer_bytes = x_bytes // consumers

    @cuda.jit(device=True)
    def expect(full, each):
        """The producer arrives at a stage, which is full when both tiles are there."""
        ptx.mbarrier_arrive_expect_tx(full, stage_bytes - x_bytes + consumers * each * LINE_BYTES if early else stage_bytes)

    @cuda.jit(device=True)
    def fetch_weight(weight_map, tile, full, k, first_half, second_half, rank):
        """Columns k to k + 63 of weight from `first_half` and from `second_half` on."""
        weight_tile = tile + x_bytes
        if cluster == 1:
            ptx.cp_async_bulk_tensor_2d_shared_global(weight_tile, weight_map, k, first_half, full)
            ptx.cp_async_bulk_tensor_2d_shared_global(weight_tile + half_bytes, weight_map, k, second_half, full)
        elif rank == 0:
            ptx.cp_async_bulk_tensor_2d_shared_global_multicast(weight_tile, weight_map, k, first_half, full, both_blocks)
        else:
            ptx.cp_async_bulk_tensor_2d_shared_global_multicast(weight_tile + half_bytes, weight_map, k, second_half, full, both_blocks)

    @cuda.jit(device=True)
    def fetch_x(x_map, tile, full, k, row, each):
        """The same columns of x from `row` on."""
        ptx.cp_async_bulk_tensor_2d_shared_global(tile, x_map, k, row, full)
        if early and consumers == 2:
            ptx.cp_async_bulk_tensor_2d_shared_global(tile + consumer_bytes, x_map, k, row + each, full)

    return expect, fetch_weight, fetch_x
