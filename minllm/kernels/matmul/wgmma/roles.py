"""The two roles in a block of the wgmma product: what its producer does, and what its consumers do.

Both walk through the same tiles of out and the same steps of K, each at its own pace; the ring's barriers keep them within as many steps
of each other as there are stages. Stage and phase are counted alike: the phase changes whenever the ring has turned over.

Source: PTX ISA, "wgmma.mma_async" and "Matrix descriptor"; NVIDIA, "CUTLASS: Efficient GEMM in CUDA" (warp specialisation).
"""

from numba import cuda, float32, int32, uint32, uint64

from minllm import ptx
from minllm.kernels.matmul.flat.absent_rows import make_clear_rows
from minllm.kernels.matmul.wgmma.epilogue import make_copy_out, make_output_pair, make_store_out
from minllm.kernels.matmul.wgmma.ring import make_fetch, make_ring
from minllm.kernels.matmul.wgmma.tile_order import make_tile_order
from minllm.kernels.matmul.wgmma.tiling import LINE_BYTES, TILE_K, WARPGROUP, WARPGROUP_ROWS, WgmmaTiling
from minllm.kernels.warp import ALL_LANES

WGMMA_DTYPES = {"bfloat16": "bf16", "float16": "f16"}
LOW_BITS, HIGH_BITS = (int(ptx.matrix_descriptor.py_func(0, 16, 8 * LINE_BYTES, 128)) >> shift & 0xFFFFFFFF for shift in (0, 32))


@cuda.jit(device=True, forceinline=True)
def low_word(address):
    """The lower half of the matrix descriptor of a tile; what lies 16 bytes further on has the next number."""
    return uint32(LOW_BITS | (address >> 4))


@cuda.jit(device=True, forceinline=True)
def descriptor(low):
    """The matrix descriptor with this lower half: nothing has to be computed for the upper one, which is the same for all."""
    return uint64(low) | uint64(HIGH_BITS) << uint64(32)


def make_produce(tiling: WgmmaTiling, gated: bool):
    """The device function of the producer: one thread, which fetches all tiles of a block as far ahead as the ring has stages."""
    consumers, columns, cluster = tiling.consumers, tiling.columns(gated), tiling.cluster
    stages, stage_bytes = tiling.stages, tiling.stage_bytes
    half, early = tiling.tile_n // 2, tiling.early
    expect, fetch_weight, fetch_x = make_fetch(tiling)
    tile_at = make_tile_order(tiling.group)

    @cuda.jit(device=True, forceinline=True)
    def begin(x_map, weight_map, ring, full, tiles_m, tiles_n, k_steps, n, each, rank):
        """The first ring of the first tile, weights before the wait for what computes x -> how many steps."""
        tile_row, tile_column = tile_at(int32(cuda.blockIdx.x // cluster), tiles_m, tiles_n)
        row, first_half = int32((tile_row * cluster + rank) * consumers * each), int32(tile_column * columns)
        second_half = int32(first_half + (n if gated else half))
        steps = int32(min(k_steps, stages))
        for step in range(steps):
            tile, k = uint32(ring + step * stage_bytes), int32(step * TILE_K)
            expect(full + 8 * step, each)
            fetch_weight(weight_map, tile, full + 8 * step, k, first_half, second_half, rank)
        ptx.griddepcontrol_wait()
        for step in range(steps):
            fetch_x(x_map, ring + step * stage_bytes, full + 8 * step, int32(step * TILE_K), row, each)
        return steps

    @cuda.jit(device=True, forceinline=True)
    def produce(x_map, weight_map, ring, full, empty, tiles_m, tiles_n, k_steps, n, each):
        rank = int32(ptx.cluster_ctarank())
        stage, phase, done = uint32(0), uint32(0), int32(0)
        if early:
            done = begin(x_map, weight_map, ring, full, tiles_m, tiles_n, k_steps, n, each, rank)
            stage, phase = uint32(done % stages), uint32(done // stages)
        else:
            ptx.fence_proxy_tensormap_acquire(x_map)
            ptx.fence_proxy_tensormap_acquire(weight_map)
        number = int32(cuda.blockIdx.x // cluster)
        while number < tiles_m * tiles_n:
            tile_row, tile_column = tile_at(number, tiles_m, tiles_n)
            row, first_half = int32((tile_row * cluster + rank) * consumers * each), int32(tile_column * columns)
            second_half = int32(first_half + (n if gated else half))
            for step in range(done, k_steps):
                ptx.mbarrier_wait_parity(empty + 8 * stage, phase ^ uint32(1))
                tile, k = uint32(ring + stage * stage_bytes), int32(step * TILE_K)
                expect(full + 8 * stage, each)
                if early:  # weight comes from memory, and is asked for first
                    fetch_weight(weight_map, tile, full + 8 * stage, k, first_half, second_half, rank)
                fetch_x(x_map, tile, full + 8 * stage, k, row, each)
                if not early:
                    fetch_weight(weight_map, tile, full + 8 * stage, k, first_half, second_half, rank)
                stage = uint32(stage + 1)
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ 1)
            number, done = int32(number + cuda.gridDim.x // cluster), int32(0)

    return produce


def make_consume(tiling: WgmmaTiling, dtype: str, gated: bool, copied: bool, paired: bool):
    """The device function of a consumer: a warpgroup that multiplies 64 rows of every tile of a block, and writes them."""
    consumers, tile_n, columns, cluster, stages = tiling.consumers, tiling.tile_n, tiling.columns(gated), tiling.cluster, tiling.stages
    stage_places, staging_bytes, early = tiling.stage_bytes // 16, tiling.staging_bytes // tiling.consumers, tiling.early
    x_bytes, consumer_bytes = tiling.tile_m * LINE_BYTES, WARPGROUP_ROWS * LINE_BYTES
    totals = tile_n // 2  # float32 a thread
    _, release, _ = make_ring(tiling)
    clear_rows = make_clear_rows(stages, tiling.stage_bytes, LINE_BYTES, WARPGROUP, 1)
    tile_at = make_tile_order(tiling.group)
    wgmma = ptx.make_wgmma(tile_n, WGMMA_DTYPES[dtype])
    output_pair = make_output_pair(columns // 2, gated)
    make_out, how = (make_copy_out, tiling.chunks) if copied else (make_store_out, paired)
    make_room, write = make_out(columns, tiling.chunk_columns, dtype, output_pair, how)

    @cuda.jit(device=True, forceinline=True)
    def multiply(total, x, weight, add):
        """total += the product of two tiles, given by the lower halves of their descriptors, or = where `add` is 0."""
        ptx.wgmma_fence()
        for step in range(TILE_K // 16):  # 16 of K are 32 bytes of every row
            wgmma(total, descriptor(uint32(x + 2 * step)), descriptor(uint32(weight + 2 * step)), add if step == 0 else 1)
        ptx.wgmma_commit_group()

    @cuda.jit(device=True, forceinline=True)
    def consume(bias, residual, out, out_map, memory, ring, staging, full, empty, tiles_m, tiles_n, k_steps, each, thread):
        consumer = cuda.shfl_sync(ALL_LANES, (thread >> 7) - 1, 0)  # which tells the compiler that it is the same for all lanes
        thread = thread & 127
        x_ring, weight_ring = ptx.keep_register(low_word(ring + consumer * consumer_bytes)), ptx.keep_register(low_word(ring + x_bytes))
        full, empty = ptx.keep_register(full), ptx.keep_register(empty)
        if early:
            if each < WARPGROUP_ROWS:
                start = ring - ptx.shared_address(memory, 0) + consumer * consumer_bytes
                clear_rows(memory, start + each * LINE_BYTES, WARPGROUP_ROWS - each, thread)
                ptx.bar_sync(1 + consumer, WARPGROUP)
            ptx.griddepcontrol_wait()
        elif copied:
            ptx.fence_proxy_tensormap_acquire(out_map)
        total = cuda.local.array(totals, float32)
        rank = int32(ptx.cluster_ctarank())
        stage, previous, phase = uint32(0), uint32(0), uint32(0)
        number = int32(cuda.blockIdx.x // cluster)
        while number < tiles_m * tiles_n:
            tile_row, tile_column = tile_at(number, tiles_m, tiles_n)
            row, column = int32(((tile_row * cluster + rank) * consumers + consumer) * each), int32(tile_column * columns)
            for step in range(k_steps):
                ptx.mbarrier_wait_parity(full + 8 * stage, phase)
                multiply(total, x_ring + stage * stage_places, weight_ring + stage * stage_places, step)
                ptx.wgmma_wait_group_1()  # the products before these are done, these are under way
                if step > 0:
                    release(empty, previous, thread)
                previous = stage
                stage = uint32(stage + 1)
                if stage == stages:
                    stage, phase = uint32(0), uint32(phase ^ 1)
            make_room(consumer, thread)
            ptx.wgmma_wait_group_0()
            ptx.keep_registers(total, totals)
            release(empty, previous, thread)
            write(total, bias, residual, out_map, out, uint32(staging + consumer * staging_bytes), row, each, column, consumer, thread)
            number = int32(number + cuda.gridDim.x // cluster)
        if copied and thread == 0:
            ptx.cp_async_bulk_wait_group_read_0()

    return consume
