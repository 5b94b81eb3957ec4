"""Flash-Decoding: attention for decode steps, one new token per sequence, with the context split over many blocks.

A decode step has one query row per sequence, so FlashAttention-2, which is parallel over tiles of queries, would leave most of the GPU
idle. Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023, "Flash-Decoding for long-context inference") splits the keys as well: each
block takes one share of one sequence's context for one KV head and writes the state (m, l, o) of its share (online_softmax.py); a
second kernel merges the states of all splits. All query heads of one KV head are packed into the same block, so that K and V are read
once for the group.

FLOPs: 4 * heads * head_dim per key. Bytes: 2 * kv_heads * head_dim * itemsize per key, read once. Arithmetic intensity: 2 * group /
itemsize, that is `group` FLOPs per byte for 16-bit caches: far below the 200 or so that make a GPU compute-bound, so all
that counts is to keep enough bytes in flight. Workspace: splits * heads * (head_dim + 2) * 4 bytes per sequence, written and read
once. Each subgroup of lanes loads the queries of its heads, from caches.

Threads to data: grid (splits, KV heads x head tiles, sequences). A subgroup of a warp's lanes reads one key's row, each lane 16
bytes of it, and keeps those elements of all query heads in registers (rows.py). For `keys_each` keys at once a lane loads K and
V (all loads are issued before the first is needed), multiplies, and sums over its subgroup by shuffles; then every lane folds the same
scores into its own part of the output. Each subgroup has its own m and l, so the loop needs no exchange between subgroups; their states
are merged at the end (states.py).

The number of splits is fixed by the grid, because a CUDA graph captures it; the size of a share is computed on the device from the
length of the context. Splits without keys write the identity (m = -inf, l = 0), and the merge kernel does not read their output.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_single_tokens, sizes_of
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.split_kv.choice import MAX_SPLITS, choose_splits, head_tiles_of
from minllm.kernels.attention.split_kv.merge import make_merge_kernel, share_of_split
from minllm.kernels.attention.split_kv.rows import LaneShape, make_row_loads, make_unpack
from minllm.kernels.attention.split_kv.states import make_states
from minllm.ptx import ex2, token_stride
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import ALL_LANES, WARP

WARPS = 4


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=None):
    """The states of all splits: name -> (shape, dtype). Pass the same `splits` or `sm_count` here and to `attention`."""
    sizes = sizes_of(query, key_cache, block_tables)
    splits = splits or choose_splits(sizes.sequences, sizes.kv_heads, sizes.group, sizes.max_context_len, sm_count or sms_here())
    return {
        "split_max": ((sizes.sequences, sizes.heads, splits), "float32"),  # base 2
        "split_sum": ((sizes.sequences, sizes.heads, splits), "float32"),
        "split_out": ((sizes.sequences, sizes.heads, splits, sizes.head_dim), "float32"),  # not divided by the sum
    }


@functools.cache
def make_folds(shape):
    """The device functions (score_keys, mask_keys, fold_keys) by which a subgroup processes the keys of an iteration."""
    unpack = make_unpack(shape.dtype)
    heads_here, keys_each, lanes, subgroups = shape.heads, shape.keys_each, shape.lanes, shape.subgroups
    elements, chunks_each, numbers_each = shape.elements, shape.chunks_each, shape.numbers_each
    score_count = keys_each * heads_here

    @cuda.jit(device=True)
    def score_keys(scores, query_numbers, key_words):
        """scores[keys_each, heads_here] = q . k, summed over the subgroup's lanes."""
        numbers = cuda.local.array(elements, float32)
        for i in range(score_count):
            scores[i] = float32(0.0)
        for key in range(keys_each):
            for chunk_index in range(chunks_each):
                unpack(key_words, 4 * (key * chunks_each + chunk_index), numbers)
                for head in range(heads_here):
                    for i in range(elements):
                        scores[key * heads_here + head] += query_numbers[head * numbers_each + chunk_index * elements + i] * numbers[i]
        for i in range(score_count):
            if lanes > 16:
                scores[i] += cuda.shfl_xor_sync(ALL_LANES, scores[i], 16)
            if lanes > 8:
                scores[i] += cuda.shfl_xor_sync(ALL_LANES, scores[i], 8)
            if lanes > 4:
                scores[i] += cuda.shfl_xor_sync(ALL_LANES, scores[i], 4)
            if lanes > 2:
                scores[i] += cuda.shfl_xor_sync(ALL_LANES, scores[i], 2)
            if lanes > 1:
                scores[i] += cuda.shfl_xor_sync(ALL_LANES, scores[i], 1)

    @cuda.jit(device=True)
    def mask_keys(scores, base, stop):
        """Set the scores of keys past the end to -inf; the subgroup's keys are base, base + subgroups, ..."""
        for i in range(keys_each):
            if base + subgroups * i >= stop:
                for head in range(heads_here):
                    scores[i * heads_here + head] = float32(MINUS_INFINITY)

    @cuda.jit(device=True)
    def fold_keys(maxima, sums, acc, scores, value_words):
        """Online softmax: replace scores by weights; then acc[heads_here, numbers_each] += weight * v."""
        numbers = cuda.local.array(elements, float32)
        for head in range(heads_here):
            maximum = maxima[head]
            for key in range(keys_each):
                maximum = max(maximum, scores[key * heads_here + head])
            # exercise: attention.split_kv
            shift = finite_or_zero(maximum)
            correction = ex2(maxima[head] - shift)
            maxima[head] = maximum
            sums[head] *= correction
            for i in range(numbers_each):
                acc[head * numbers_each + i] *= correction
            # end exercise
            for key in range(keys_each):
                weight = ex2(scores[key * heads_here + head] - shift)
                scores[key * heads_here + head] = weight
                sums[head] += weight
        for key in range(keys_each):
            for chunk_index in range(chunks_each):
                unpack(value_words, 4 * (key * chunks_each + chunk_index), numbers)
                for head in range(heads_here):
                    for i in range(elements):
                        acc[head * numbers_each + chunk_index * elements + i] += scores[key * heads_here + head] * numbers[i]

    return score_keys, mask_keys, fold_keys


@functools.cache
def make_split_kernel(dtype, head_dim, block_size, group, warps=WARPS, keys_each=None):
    """(kernel, threads, keys per iteration, blocks that share a KV head). keys_each: as in LaneShape; None chooses by group."""
    shape = LaneShape(dtype, head_dim, group, warps, keys_each or (4 if head_tiles_of(group)[1] <= 4 else 2))
    block_of, element_of = make_lookup(block_size)
    load_query, load_rows = make_row_loads(shape)
    score_keys, mask_keys, fold_keys = make_folds(shape)
    clear, merge_subgroups, share_state, merge_warps = make_states(shape)
    head_tiles, heads_here, keys_each, lanes, subgroups = shape.head_tiles, shape.heads, shape.keys_each, shape.lanes, shape.subgroups
    step, query_count, score_count = shape.step, heads_here * shape.numbers_each, shape.keys_each * heads_here
    word_count, state_count, out_shape = 4 * keys_each * shape.chunks_each, warps * heads_here, (warps, heads_here, head_dim)

    @kernel
    def split_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        split_max,  # [sequences, heads, splits]
        split_sum,  # the same
        split_out,  # [sequences, heads, splits, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
    ):
        split, sequence = cuda.blockIdx.x, cuda.blockIdx.z
        kv_head, head_tile = cuda.blockIdx.y // head_tiles, cuda.blockIdx.y % head_tiles
        first_head = kv_head * group + head_tile * heads_here
        heads_left = min(heads_here, group - head_tile * heads_here)
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        row = query_start[sequence]
        start, stop = share_of_split(split, cuda.gridDim.x, context_lens[sequence], sliding_window, step)
        if start >= stop or query_start[sequence + 1] == row:  # the split has no keys, or the sequence has no query
            if thread < heads_left:
                split_max[sequence, first_head + thread, split] = float32(MINUS_INFINITY)
                split_sum[sequence, first_head + thread, split] = float32(0.0)
            return

        query_numbers = cuda.local.array(query_count, float32)
        acc = cuda.local.array(query_count, float32)
        maxima = cuda.local.array(heads_here, float32)
        sums = cuda.local.array(heads_here, float32)
        scores = cuda.local.array(score_count, float32)
        key_words = cuda.local.array(word_count, uint32)
        value_words = cuda.local.array(word_count, uint32)
        rows = cuda.local.array(keys_each, int64)
        load_query(query_numbers, query, row, first_head, heads_left, lane, scale)
        clear(maxima, sums, acc)
        block_table, within = block_tables[sequence], kv_head * head_dim
        key_stride = token_stride(key_cache, int32(key_cache.shape[2]) * head_dim)
        last_key = int32(stop - 1)
        base = start + warp * subgroups * keys_each + lane // lanes
        while base - lane // lanes < stop:  # warp-uniform, because the lanes of a warp shuffle together
            for i in range(keys_each):
                position = min(int32(base + subgroups * i), last_key)  # past the end: the last key again, masked below
                rows[i] = element_of(block_of(block_table, position), position, key_stride, within)
            load_rows(key_words, key_cache, rows, lane)
            load_rows(value_words, value_cache, rows, lane)
            score_keys(scores, query_numbers, key_words)
            mask_keys(scores, base, stop)
            fold_keys(maxima, sums, acc, scores, value_words)
            base += step

        warp_max = cuda.shared.array(state_count, float32)
        warp_sum = cuda.shared.array(state_count, float32)
        warp_out = cuda.shared.array(out_shape, float32, alignment=16)
        warp_states, split_states = (warp_max, warp_sum, warp_out), (split_max, split_sum, split_out)
        merge_subgroups(maxima, sums, acc)
        share_state(maxima, sums, acc, warp_states, warp, lane)
        cuda.syncthreads()
        merge_warps(warp_states, split_states, sequence, first_head, heads_left, split)

    return split_kernel, WARP * warps, step, head_tiles


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, splits=None, sm_count=None, warps=WARPS, keys_each=None,
):  # fmt: skip
    """Attention of one new token per sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    splits: shares per context, at most 256; by default chosen for a GPU with `sm_count` SMs (streaming multiprocessors; None: this GPU's).
    Raises KernelArgumentError for more than one new token per sequence; flash_attention_2 supports that.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_kv", sizes, max_query_len)
    splits = splits or choose_splits(sizes.sequences, sizes.kv_heads, sizes.group, sizes.max_context_len, sm_count or sms_here())
    check(1 <= splits <= MAX_SPLITS, f"splits is {splits}; it must be 1 to {MAX_SPLITS}")
    dtype = dtype_name(query.dtype)
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits), query)
    states = (scratch["split_max"], scratch["split_sum"], scratch["split_out"])
    split, threads, step, head_tiles = make_split_kernel(dtype, sizes.head_dim, sizes.block_size, sizes.group, warps, keys_each)
    numbers = (float(scale * LOG2_E), int(sliding_window))
    arguments = (query, key_cache, value_cache, *states, query_start, context_lens, block_tables, *numbers)
    launch(split, (splits, sizes.kv_heads * head_tiles, sizes.sequences), threads, arguments, stream)
    merge, merge_threads = make_merge_kernel(sizes.head_dim)
    arguments = (*states, out, query_start, context_lens, int(sliding_window), step)
    launch(merge, (sizes.heads, sizes.sequences), merge_threads, arguments, stream)
