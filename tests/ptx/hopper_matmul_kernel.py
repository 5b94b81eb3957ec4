"""A matrix product in the whole vocabulary of Hopper: a producer warpgroup fetches tiles, two consumer warpgroups multiply them."""

from numba import cuda, float32, int64, uint8, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel

ROWS, COLUMNS, DEPTH, STAGES = 128, 256, 64, 4
A_BYTES, B_BYTES = ROWS * DEPTH * 2, COLUMNS * DEPTH * 2
STAGE_BYTES = A_BYTES + B_BYTES
SHARED_BYTES = STAGES * STAGE_BYTES + 1024 + 16 * STAGES
THREADS = 384
LINE = 128  # bytes of a row of a tile, the swizzle's span
ACCUMULATORS = COLUMNS // 2  # float32 a thread

wgmma = ptx.make_wgmma(COLUMNS, "bf16")


@kernel(launch_bounds=(THREADS, 1))
def hopper_matmul_kernel(a_map, b_map, c, k_tiles):
    # a_map: [m, k] in boxes [128, 64], b_map: [n, k] in boxes [256, 64], c: bfloat16 [m, n]
    memory = cuda.shared.array(0, uint8, 1024)
    thread = cuda.threadIdx.x
    tiles = uint32((ptx.shared_address(memory, 0) + uint32(1023)) & uint32(0xFFFFFC00))
    full = uint32(tiles + STAGES * STAGE_BYTES)
    empty = uint32(full + 8 * STAGES)
    if thread == 0:
        for stage in range(STAGES):
            ptx.mbarrier_init(full + 8 * stage, 1)
            ptx.mbarrier_init(empty + 8 * stage, 2)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    row, column = cuda.blockIdx.y * ROWS, cuda.blockIdx.x * COLUMNS
    role = thread >> 7
    if role == 0:
        ptx.setmaxnreg_dec(40)
        if thread == 0:
            ptx.fence_proxy_tensormap_acquire(a_map)
            ptx.fence_proxy_tensormap_acquire(b_map)
            for t in range(k_tiles):
                stage, phase = t % STAGES, t // STAGES & 1
                ptx.mbarrier_wait_parity(empty + 8 * stage, phase ^ 1)
                ptx.mbarrier_arrive_expect_tx(full + 8 * stage, STAGE_BYTES)
                tile = uint32(tiles + stage * STAGE_BYTES)
                ptx.cp_async_bulk_tensor_2d_shared_global(tile, a_map, t * DEPTH, row, full + 8 * stage)
                ptx.cp_async_bulk_tensor_2d_shared_global(tile + A_BYTES, b_map, t * DEPTH, column, full + 8 * stage)
    else:
        ptx.setmaxnreg_inc(232)
        accumulator = cuda.local.array(ACCUMULATORS, float32)
        consumer = role - 1
        for t in range(k_tiles):
            stage, phase = t % STAGES, t // STAGES & 1
            ptx.mbarrier_wait_parity(full + 8 * stage, phase)
            tile = uint32(tiles + stage * STAGE_BYTES)
            a = ptx.matrix_descriptor(tile + consumer * 64 * LINE, 16, 8 * LINE, 128)
            b = ptx.matrix_descriptor(tile + A_BYTES, 16, 8 * LINE, 128)
            ptx.wgmma_fence()
            for step in range(DEPTH // 16):
                wgmma(accumulator, ptx.advance_descriptor(a, 32 * step), ptx.advance_descriptor(b, 32 * step), t + step)
            ptx.wgmma_commit_group()
            ptx.wgmma_wait_group_1()
            if t > 0 and thread & 127 == 0:
                ptx.mbarrier_arrive(empty + 8 * ((t - 1) % STAGES))
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(accumulator, ACCUMULATORS)
        lane, warp = thread & 31, thread >> 5 & 3
        n = int64(c.shape[1])
        at = (row + consumer * 64 + warp * 16 + (lane >> 2)) * n + column + (lane & 3) * 2
        for block in range(COLUMNS // 8):
            ptx.store_32(c, at + 8 * block, ptx.pack_bf16x2(accumulator[4 * block], accumulator[4 * block + 1]))
            ptx.store_32(c, at + 8 * n + 8 * block, ptx.pack_bf16x2(accumulator[4 * block + 2], accumulator[4 * block + 3]))
