"""The vocabulary of fast kernels: tiles in shared memory and in registers, and what is done with them.

    shared.py      SharedTile: rows, columns and swizzle of a tile in shared memory; where tiles may begin
    pipeline.py    make_pipeline(...): a ring of stages between a producer and its consumers; it hides mbarriers, addresses and parities
    tma.py         load_2d, load_2d_multicast, load_3d, load_4d: a tile from global memory to a stage
    wgmma.py       make_wgmma(...): a warpgroup multiplies tiles
    left_operand.py  make_load_left(...): the left one of them in registers
    warpgroup.py   roles and named barriers of warpgroups; values that are uniform over a warp
    warp.py        WARP, ALL_LANES: the lanes of a warp
    cp_async.py    make_copies(...): rows of a matrix, or of a paged cache, to padded rows of shared memory
    mma.py         make_warp_matmuls(...): a warp multiplies tiles in padded rows by mma.sync
    rows.py        make_rows(...): rows of accumulators in registers: maximum, exponentials, scale, mask, pack, store

Operations are NamedTuples of device functions, made for one shape: a kernel takes them from its closure, and calls wgmma.multiply(...).
Values that belong together (a pipeline's Ring, its PipelineState, a Stage) are NamedTuples too, in registers. Neither costs an instruction.
A GEMM out [M, N] = x [M, K] @ weight [N, K].T of whole tiles, a producer thread and one warpgroup, a block per tile:

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
