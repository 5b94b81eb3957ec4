"""Clusters: blocks that read each other's shared memory, write it, and receive one copy together."""

import numpy as np
from numba import cuda, float32, uint8, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel, launch
from minllm.runtime.tensor_map import tensor_map

CLUSTERS = [(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (2, 2, 2)]
THREADS = 32


@kernel
def neighbours_kernel(x, out, fours, places):
    # each block brings 32 numbers and reads the next rank's, one by one and in fours; x, out, fours: float32 [blocks, 32]
    own = cuda.shared.array(THREADS, float32, 128)
    thread = cuda.threadIdx.x
    block = (cuda.blockIdx.z * cuda.gridDim.y + cuda.blockIdx.y) * cuda.gridDim.x + cuda.blockIdx.x
    own[thread] = x[block, thread]
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()
    rank, blocks = ptx.cluster_ctarank(), ptx.cluster_nctarank()
    there = ptx.mapa(ptx.shared_address(own, thread), (rank + uint32(1)) % blocks)
    value = ptx.ld_shared_cluster_f32(there)
    if thread < THREADS // 4:
        at = 4 * thread
        quad = ptx.ld_shared_cluster_v4_f32(ptx.mapa(ptx.shared_address(own, at), (rank + uint32(1)) % blocks))
        fours[block, at], fours[block, at + 1], fours[block, at + 2], fours[block, at + 3] = quad
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()
    ptx.st_shared_cluster_f32(there, value + float32(1))
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()
    out[block, thread] = own[thread]
    if thread == 0:
        places[block, 0], places[block, 1] = rank, blocks
        places[block, 2], places[block, 3], places[block, 4] = ptx.cluster_ctaid_x(), ptx.cluster_ctaid_y(), ptx.cluster_ctaid_z()


def check_neighbours(cluster, device):
    """Every block's numbers have been raised by one, by another block; ranks count x first."""
    grid = (cluster[0] * 2, cluster[1], cluster[2])
    blocks = grid[0] * grid[1] * grid[2]
    x = np.arange(blocks * THREADS, dtype=np.float32).reshape(blocks, THREADS)
    out, fours, places = device.array(np.zeros_like(x)), device.array(np.zeros_like(x)), device.array(np.zeros((blocks, 5), np.int32))
    launch(neighbours_kernel, grid, THREADS, (device.array(x), out, fours, places), cluster=cluster)
    np.testing.assert_array_equal(device.host(out), x + 1)
    found, read = device.host(places), device.host(fours)
    size, block_of = cluster[0] * cluster[1] * cluster[2], {}
    for block in range(blocks):
        inside = block % grid[0] % cluster[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])
        rank = (inside[2] * cluster[1] + inside[1]) * cluster[0] + inside[0]
        np.testing.assert_array_equal(found[block], [rank, size, *inside])
        block_of[block % grid[0] // cluster[0], rank] = block
    for (number, rank), block in block_of.items():
        np.testing.assert_array_equal(read[block], x[block_of[number, (rank + 1) % size]])


@kernel
def multicast_kernel(source, out, blocks_mask):
    # rank 0 fetches one tile [8, 32] float32 for all blocks; each reports to rank 0 that it has it; st.async brings a word along, and four
    memory = cuda.shared.array(0, uint8, 1024)
    start = uint32(-ptx.shared_address(memory, 0) & uint32(1023))
    tile = uint32(ptx.shared_address(memory, 0) + start)
    full, done, word, quad = tile + 1024, tile + 1032, tile + 1040, tile + 1056
    thread, rank = cuda.threadIdx.x, ptx.cluster_ctarank()
    if thread == 0:
        ptx.fence_proxy_tensormap_acquire(source)
        ptx.mbarrier_init(full, 1)
        ptx.mbarrier_init(done, ptx.cluster_nctarank())
        ptx.fence_mbarrier_init()
        ptx.mbarrier_arrive_expect_tx(full, 1024 + 4 + 16)
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()
    if thread == 0:
        if rank == 0:
            ptx.cp_async_bulk_tensor_2d_shared_global_multicast(tile, source, 0, 0, full, blocks_mask)
        there = (rank + uint32(1)) % ptx.cluster_nctarank()
        ptx.st_async_u32(ptx.mapa(word, there), rank + uint32(100), ptx.mapa(full, there))
        number = float32(rank)
        ptx.st_async_v4_f32(
            ptx.mapa(quad, there), number, number + float32(0.5), -number, number * float32(2), ptx.mapa(full, there)
        )  # fmt: skip
    ptx.mbarrier_wait_parity(full, 0)
    tile_words = memory.view(uint32)
    for i in range(8):
        out[cuda.blockIdx.x, thread + 32 * i] = tile_words[start // 4 + thread + 32 * i]
    if thread == 0:
        out[cuda.blockIdx.x, 256] = tile_words[start // 4 + 260]
        for i in range(4):
            out[cuda.blockIdx.x, 257 + i] = tile_words[start // 4 + 264 + i]
        ptx.mbarrier_arrive_cluster(ptx.mapa(done, 0))
        if rank == 0:
            ptx.mbarrier_wait_parity(done, 0)
    ptx.barrier_cluster_arrive()
    ptx.barrier_cluster_wait()


MULTICAST_SHARED_BYTES = 1024 + 1024 + 64


def check_multicast(blocks, device):
    """All blocks of the cluster receive the tile, and a word and four numbers from the rank before."""
    host = np.arange(256, dtype=np.uint32).reshape(8, 32)
    source, out = device.array(host), device.array(np.zeros((2 * blocks, 261), np.uint32))
    arguments = tensor_map(source, (8, 32), 0), out, (1 << blocks) - 1
    launch(multicast_kernel, 2 * blocks, THREADS, arguments, shared_bytes=MULTICAST_SHARED_BYTES, cluster=blocks)
    for block, row in enumerate(device.host(out)):
        np.testing.assert_array_equal(row[:256], host.reshape(-1))
        before = (block - 1) % blocks
        assert row[256] == 100 + before
        assert row[257:].view(np.float32).tolist() == [before, before + 0.5, -before, 2 * before]
