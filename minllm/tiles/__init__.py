"""Building blocks of fast kernels: tiles in shared memory and in registers, and the operations on them.

    shared.py      SharedTile: rows, columns and swizzle of a tile in shared memory; alignment of tiles
    pipeline.py    make_pipeline(...): a ring of stages between a producer and its consumers; it hides mbarriers, addresses and parities
    tma.py         load_2d, load_2d_multicast, load_3d, load_4d: load a tile from global memory to a stage
    wgmma.py       make_wgmma(...): GEMMs of a warpgroup on tiles in shared memory
    left_operand.py  make_load_left(...): loads the left operand of wgmma into registers
    warpgroup.py   warpgroups, their barriers, and warp-uniform values
    warp.py        WARP, ALL_LANES; sums and maxima over the lanes of a warp
    cp_async.py    make_copies(...): rows of a matrix, or of a paged cache, to padded rows of shared memory
    mma.py         make_warp_matmuls(...): matmuls of a warp by mma.sync on tiles in padded rows
    rows.py        make_rows(...): rows of accumulators in registers: maximum, exponentials, scale, mask, pack, store
    unrolled.py    unrolled(...): loops that are unrolled before compilation

Operations are NamedTuples of device functions, made for one shape: a kernel takes them from its closure, and calls wgmma.multiply(...).
Values that belong together (a pipeline's Ring, its PipelineState, a Stage) are NamedTuples too, in registers. Neither costs an instruction.
Example: a GEMM out [M, N] = x [M, K] @ weight [N, K].T of whole tiles, with a producer thread and one warpgroup, one block per tile:

    X_BYTES, STAGE_BYTES = X.bytes, X.bytes + WEIGHT.bytes
    pipeline = make_pipeline(STAGES, STAGE_BYTES, consumers=1)
    wgmma = make_wgmma(WEIGHT, "bfloat16", left=X)
    SUMS = wgmma.registers

    def gemm(x_map, weight_map, out, k_steps):
        row, column, thread = int32(cuda.blockIdx.y * X.rows), int32(cuda.blockIdx.x * WEIGHT.rows), cuda.threadIdx.x
        first = first_tile_address(cuda.shared.array(0, uint8, 1024))
        ring, state = pipeline.ring(first, first + pipeline.bytes, 0), pipeline.state(0)
        if thread == 0:
            pipeline.init(ring)
        cuda.syncthreads()
        if thread == 128:
            for step in range(k_steps):
                stage = pipeline.producer_acquire(ring, state)
                pipeline.producer_expect(stage, STAGE_BYTES)
                tma.load_2d(stage, 0, x_map, int32(step * X.columns), row)
                tma.load_2d(stage, X_BYTES, weight_map, int32(step * X.columns), column)
                state = pipeline.advance(state)
        elif thread < 128:
            sums = cuda.local.array(SUMS, float32)
            for step in range(k_steps):
                pipeline.consumer_wait(ring, state)
                stage = pipeline.stage(ring, state)
                wgmma.multiply(sums, wgmma.left(stage.tiles), wgmma.right(stage.tiles + X_BYTES), step)
                wgmma.wait(sums)
                pipeline.consumer_release(ring, state)
                state = pipeline.advance(state)
            for i in range(SUMS):
                out[row + sum_row(i, thread), column + sum_column(i, thread)] = sums[i]
"""
