"""Causal attention in the whole vocabulary of Hopper: the next tile's scores and this tile's product in flight, softmax between."""

from numba import cuda, float32, int64, uint8, uint32

from minllm import ptx
from minllm.runtime.kernel import kernel

ROWS, KEYS, HEAD_DIM, STAGES = 128, 128, 128, 2
LINE = 128  # bytes: 64 elements, half a head
HALF = ROWS * LINE  # bytes of a tile's half: [128 rows, 64 elements]
TILE = 2 * HALF
THREADS = 384
SHARED_BYTES = TILE * (1 + 2 * STAGES) + 1024 + 128
SCORES, WORDS = KEYS // 2, KEYS // 4  # per thread: float32 scores, words of packed probabilities
LOWEST = float32(-1e30)

scores_product = ptx.make_wgmma(KEYS, "bf16")
values_product = ptx.make_wgmma(HEAD_DIM, "bf16", a="registers", b_major="mn")


@cuda.jit(device=True)
def start_scores(scores, query, key):
    """scores = Q K^T, as a group of its own."""
    q, k = ptx.matrix_descriptor(query, 16, 8 * LINE, 128), ptx.matrix_descriptor(key, 16, 8 * LINE, 128)
    ptx.wgmma_fence()
    for step in range(HEAD_DIM // 16):
        at = step % 4 * 32 + step // 4 * HALF
        scores_product(scores, ptx.advance_descriptor(q, at), ptx.advance_descriptor(k, at), step)
    ptx.wgmma_commit_group()


@cuda.jit(device=True)
def start_values(out, probabilities, value):
    """out += P V, as a group of its own."""
    v = ptx.matrix_descriptor(value, HALF, 8 * LINE, 128)
    ptx.wgmma_fence()
    for step in range(KEYS // 16):
        values_product(out, probabilities, 4 * step, ptx.advance_descriptor(v, 16 * LINE * step), 1)
    ptx.wgmma_commit_group()


@cuda.jit(device=True)
def mask_diagonal(scores, row, lane):
    """On the diagonal tile, keys behind the query do not count."""
    for block in range(KEYS // 8):
        column = 8 * block + 2 * (lane & 3)
        if column > row:
            scores[4 * block] = LOWEST
        if column + 1 > row:
            scores[4 * block + 1] = LOWEST
        if column > row + 8:
            scores[4 * block + 2] = LOWEST
        if column + 1 > row + 8:
            scores[4 * block + 3] = LOWEST


@cuda.jit(device=True)
def across_row(x, y):
    """The largest of x and y over the four lanes that share a row."""
    x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 1))
    y = max(y, cuda.shfl_xor_sync(0xFFFFFFFF, y, 1))
    return max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 2)), max(y, cuda.shfl_xor_sync(0xFFFFFFFF, y, 2))


@cuda.jit(device=True)
def softmax_step(scores, high, low, high_sum, low_sum, scale):
    """Online softmax of a thread's scores in rows g and g + 8 ("high", "low"), in place: new maxima, sums, factors for what was before."""
    new_high, new_low = high, low
    for block in range(KEYS // 8):
        new_high = max(new_high, max(scores[4 * block], scores[4 * block + 1]))
        new_low = max(new_low, max(scores[4 * block + 2], scores[4 * block + 3]))
    new_high, new_low = across_row(new_high, new_low)
    high_factor, low_factor = ptx.ex2((high - new_high) * scale), ptx.ex2((low - new_low) * scale)
    high_shift, low_shift = new_high * scale, new_low * scale
    high_sum *= high_factor
    low_sum *= low_factor
    for block in range(KEYS // 8):
        e0, e1 = ptx.ex2(scores[4 * block] * scale - high_shift), ptx.ex2(scores[4 * block + 1] * scale - high_shift)
        e2, e3 = ptx.ex2(scores[4 * block + 2] * scale - low_shift), ptx.ex2(scores[4 * block + 3] * scale - low_shift)
        high_sum += e0 + e1
        low_sum += e2 + e3
        scores[4 * block], scores[4 * block + 1], scores[4 * block + 2], scores[4 * block + 3] = e0, e1, e2, e3
    return new_high, new_low, high_sum, low_sum, high_factor, low_factor


@cuda.jit(device=True)
def pack(scores, probabilities):
    """Probabilities as bfloat16, in the order of wgmma's A operand."""
    for block in range(KEYS // 8):
        word = 4 * (block >> 1) + 2 * (block & 1)
        probabilities[word] = ptx.pack_bf16x2(scores[4 * block], scores[4 * block + 1])
        probabilities[word + 1] = ptx.pack_bf16x2(scores[4 * block + 2], scores[4 * block + 3])


@cuda.jit(device=True)
def fetch_tile(tile, tensor_map, row, barrier):
    """Both halves of [128 rows, 128] to shared memory."""
    ptx.mbarrier_arrive_expect_tx(barrier, TILE)
    ptx.cp_async_bulk_tensor_2d_shared_global(tile, tensor_map, 0, row, barrier)
    ptx.cp_async_bulk_tensor_2d_shared_global(tile + HALF, tensor_map, 64, row, barrier)


@cuda.jit(device=True)
def produce(query_map, key_map, value_map, tiles, barriers, query_row, key_row, key_tiles):
    """One thread fetches the queries, then keys and values from the last tile back to the first."""
    ptx.fence_proxy_tensormap_acquire(query_map)
    ptx.fence_proxy_tensormap_acquire(key_map)
    ptx.fence_proxy_tensormap_acquire(value_map)
    keys, values = tiles + TILE, tiles + TILE * (1 + STAGES)
    fetch_tile(tiles, query_map, query_row, barriers)
    for j in range(key_tiles):
        stage, phase = j & 1, j >> 1 & 1
        row = key_row + (key_tiles - 1 - j) * KEYS
        ptx.mbarrier_wait_parity(barriers + 24 + 8 * stage, phase ^ 1)
        fetch_tile(keys + stage * TILE, key_map, row, barriers + 8 + 8 * stage)
        ptx.mbarrier_wait_parity(barriers + 56 + 8 * stage, phase ^ 1)
        fetch_tile(values + stage * TILE, value_map, row, barriers + 40 + 8 * stage)


@kernel(launch_bounds=(THREADS, 1))
def hopper_attention_kernel(query_map, key_map, value_map, out, sequence, group, scale):
    # maps: bfloat16 [heads * sequence, 128] in boxes [128, 64]; out: bfloat16 [heads * sequence, 128]; grid (sequence / 128, heads)
    memory = cuda.shared.array(0, uint8, 1024)
    thread = cuda.threadIdx.x
    tiles = uint32((ptx.shared_address(memory, 0) + uint32(1023)) & uint32(0xFFFFFC00))
    keys, values = uint32(tiles + TILE), uint32(tiles + TILE * (1 + STAGES))
    # barriers: queries, keys full [2], keys empty [2], values full [2], values empty [2]
    barriers = uint32(tiles + TILE * (1 + 2 * STAGES))
    keys_full, keys_empty, values_full, values_empty = barriers + 8, barriers + 24, barriers + 40, barriers + 56
    if thread == 0:
        ptx.mbarrier_init(barriers, 1)
        for stage in range(STAGES):
            ptx.mbarrier_init(keys_full + 8 * stage, 1)
            ptx.mbarrier_init(values_full + 8 * stage, 1)
            ptx.mbarrier_init(keys_empty + 8 * stage, 2)
            ptx.mbarrier_init(values_empty + 8 * stage, 2)
        ptx.fence_mbarrier_init()
    cuda.syncthreads()
    query_tile, head = cuda.gridDim.x - 1 - cuda.blockIdx.x, cuda.blockIdx.y
    query_row = head * sequence + query_tile * ROWS
    key_tiles = query_tile + 1
    role = thread >> 7
    if role == 0:
        ptx.setmaxnreg_dec(24)
        if thread == 0:
            produce(query_map, key_map, value_map, tiles, barriers, query_row, head // group * sequence, key_tiles)
    else:
        ptx.setmaxnreg_inc(240)
        consumer, lane, warp = role - 1, thread & 31, thread >> 5 & 3
        leader = thread & 127 == 0
        scores = cuda.local.array(SCORES, float32)
        accumulator = cuda.local.array(SCORES, float32)
        probabilities = cuda.local.array(WORDS, uint32)
        for i in range(SCORES):
            accumulator[i] = float32(0)
        high, low, high_sum, low_sum = LOWEST, LOWEST, float32(0), float32(0)
        query = uint32(tiles + consumer * 64 * LINE)
        row = consumer * 64 + warp * 16 + (lane >> 2)
        ptx.mbarrier_wait_parity(barriers, 0)
        ptx.mbarrier_wait_parity(keys_full, 0)
        start_scores(scores, query, keys)
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(scores, SCORES)
        if leader:
            ptx.mbarrier_arrive(keys_empty)
        mask_diagonal(scores, row, lane)
        high, low, high_sum, low_sum, high_factor, low_factor = softmax_step(scores, high, low, high_sum, low_sum, scale)
        pack(scores, probabilities)
        for j in range(1, key_tiles):
            stage, phase = j & 1, j >> 1 & 1
            before, phase_before = (j - 1) & 1, (j - 1) >> 1 & 1
            ptx.mbarrier_wait_parity(keys_full + 8 * stage, phase)
            start_scores(scores, query, keys + stage * TILE)
            ptx.mbarrier_wait_parity(values_full + 8 * before, phase_before)
            start_values(accumulator, probabilities, values + before * TILE)
            ptx.wgmma_wait_group_1()
            ptx.keep_registers(scores, SCORES)
            if leader:
                ptx.mbarrier_arrive(keys_empty + 8 * stage)
            high, low, high_sum, low_sum, high_factor, low_factor = softmax_step(scores, high, low, high_sum, low_sum, scale)
            ptx.wgmma_wait_group_0()
            ptx.keep_registers(accumulator, SCORES)
            ptx.keep_registers(probabilities, WORDS)
            if leader:
                ptx.mbarrier_arrive(values_empty + 8 * before)
            for block in range(HEAD_DIM // 8):
                accumulator[4 * block] *= high_factor
                accumulator[4 * block + 1] *= high_factor
                accumulator[4 * block + 2] *= low_factor
                accumulator[4 * block + 3] *= low_factor
            pack(scores, probabilities)
        last = (key_tiles - 1) & 1
        ptx.mbarrier_wait_parity(values_full + 8 * last, (key_tiles - 1) >> 1 & 1)
        start_values(accumulator, probabilities, values + last * TILE)
        ptx.wgmma_wait_group_0()
        ptx.keep_registers(accumulator, SCORES)
        high_sum += cuda.shfl_xor_sync(0xFFFFFFFF, high_sum, 1)
        high_sum += cuda.shfl_xor_sync(0xFFFFFFFF, high_sum, 2)
        low_sum += cuda.shfl_xor_sync(0xFFFFFFFF, low_sum, 1)
        low_sum += cuda.shfl_xor_sync(0xFFFFFFFF, low_sum, 2)
        high_scale, low_scale = float32(1) / high_sum, float32(1) / low_sum
        at = int64(query_row + row) * HEAD_DIM + 2 * (lane & 3)
        for block in range(HEAD_DIM // 8):
            word = ptx.pack_bf16x2(accumulator[4 * block] * high_scale, accumulator[4 * block + 1] * high_scale)
            ptx.store_32(out, at + 8 * block, word)
            word = ptx.pack_bf16x2(accumulator[4 * block + 2] * low_scale, accumulator[4 * block + 3] * low_scale)
            ptx.store_32(out, at + 8 * HEAD_DIM + 8 * block, word)
