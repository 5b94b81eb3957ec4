"""Flash-Decoding: attention of one new token a sequence, with the context split over many blocks. The kernel of decode steps.

A decode step has one query row a sequence, so FlashAttention-2, which is parallel over tiles of queries, would leave most of the GPU
idle. Flash-Decoding (Dao, Haziza, Massa and Sizov, 2023, "Flash-Decoding for long-context inference") splits the keys as well: each
block takes one share of one sequence's context for one KV head and leaves the state (m, l, o) of its share (online_softmax.py); a
second kernel merges the states of all splits. All query heads of one KV head are packed into the same block, so that K and V are read
once for the group.

FLOPs: 4 * heads * head_dim a key. Bytes: 2 * kv_heads * head_dim * itemsize a key, read once. Arithmetic intensity: 2 * group /
itemsize, that is `group` FLOP a byte for 16-bit caches: far below what it takes to keep a GPU's arithmetic busy (some 200), so all
that counts is to keep enough bytes in flight. Bytes of scratch: splits * heads * (head_dim + 2) * 4 a sequence, written and read
once. Each subgroup of lanes asks for the query of its heads, out of caches.

How threads map to data: grid (splits, KV heads x head tiles, sequences). A warp is cut into subgroups of `lanes` lanes; a subgroup
reads one key's row, each lane 16 bytes of it, and keeps those elements of all query heads in registers. For `keys_each` keys at once
a lane loads K and V (all loads are issued before the first is needed), multiplies, and sums over its subgroup by shuffles; then every
lane folds the same scores into its own part of the output. A subgroup has its own m and l, so the loop needs no exchange between
subgroups; their states merge at the end, first within the warp by shuffles, then through shared memory.

The number of splits is fixed by the grid, because a CUDA graph captures it; the size of a share is computed on the device from the
context's length. Splits that are left without keys write the identity (m = -inf, l = 0) and the merge kernel does not read their
output.
"""

import functools
import math

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.arguments import LOG2_E, check_arguments, check_single_tokens, scratch_arrays, sizes_of
from minllm.kernels.attention.online_softmax import finite_or_zero
from minllm.kernels.attention.paged_cache import make_lookup
from minllm.kernels.attention.split_choice import MAX_SPLITS, choose_splits, head_tiles_of
from minllm.kernels.attention.split_merge import make_merge_kernel, share_of_split
from minllm.kernels.vector import store_4_float32
from minllm.kernels.warp import ALL_LANES
from minllm.ptx import ex2, load_128_streaming, token_stride, uint_as_float, unpack_bf16x2, unpack_f16x2
from minllm.runtime.kernel import check, kernel, launch

MINUS_INFINITY = -math.inf
WARPS = 4


def workspace_shapes(query, key_cache, block_tables, splits=None, sm_count=132):
    """The states of all splits: name -> (shape, dtype). Pass the same `splits` or `sm_count` here and to `attention`."""
    sizes = sizes_of(query, key_cache, block_tables)
    splits = splits or choose_splits(sizes.sequences, sizes.kv_heads, sizes.group, sizes.max_context_len, sm_count)
    return {
        "split_max": ((sizes.sequences, sizes.heads, splits), "float32"),  # to base 2
        "split_sum": ((sizes.sequences, sizes.heads, splits), "float32"),
        "split_out": ((sizes.sequences, sizes.heads, splits, sizes.head_dim), "float32"),  # not divided by the sum
    }


@functools.cache
def make_split_kernel(dtype, head_dim, block_size, group, warps=WARPS, keys_each=None):
    """(kernel, threads, keys of a step, blocks that share a KV head). keys_each: keys whose loads a lane has in flight at one time."""
    block_of, element_of = make_lookup(block_size)
    head_tiles, heads_here = head_tiles_of(group)
    keys_each = keys_each or (4 if heads_here <= 4 else 2)
    elements = 4 if dtype == "float32" else 8  # in 16 bytes
    chunks = head_dim // elements
    lanes = min(32, 1 << (chunks - 1).bit_length())  # lanes of a subgroup; those beyond a row's chunks idle along
    chunks_each = -(-chunks // lanes)
    subgroups = 32 // lanes
    step = warps * subgroups * keys_each  # keys that a block takes at one time
    numbers_each = chunks_each * elements  # elements of a row that a lane holds
    query_count, score_count, word_count = heads_here * numbers_each, keys_each * heads_here, 4 * keys_each * chunks_each
    threads = 32 * warps
    state_count, merge_shape = warps * heads_here, (warps, heads_here, head_dim)

    @cuda.jit(device=True)
    def unpack(words, at, numbers):
        """The elements of one 16-byte chunk words[at:at+4] as float32."""
        for i in range(4):
            if dtype == "float32":
                numbers[i] = uint_as_float(words[at + i])
            else:
                low, high = unpack_bf16x2(words[at + i]) if dtype == "bfloat16" else unpack_f16x2(words[at + i])
                numbers[2 * i] = low
                numbers[2 * i + 1] = high

    @cuda.jit(device=True)
    def load_query(numbers, query, row, first_head, heads_left, lane, scale):
        """This lane's elements of all query heads, scaled; zeros for heads and chunks that do not exist."""
        words = cuda.local.array(4, uint32)
        chunk_numbers = cuda.local.array(elements, float32)
        heads = query.shape[1]
        for head in range(heads_here):
            for chunk_index in range(chunks_each):
                chunk = lane % lanes + lanes * chunk_index
                exists = head < heads_left and chunk < chunks
                index = (int64(row) * heads + first_head + head) * head_dim + chunk * elements if exists else int64(0)
                words[0], words[1], words[2], words[3] = load_128_streaming(query, index)
                unpack(words, 0, chunk_numbers)
                for i in range(elements):
                    number = chunk_numbers[i] * scale if exists else float32(0.0)
                    numbers[head * numbers_each + chunk_index * elements + i] = number

    @cuda.jit(device=True)
    def load_rows(words, cache, rows, lane):
        """This lane's chunks of `keys_each` rows of the cache; rows[] holds the flat index of each row's first element."""
        for key in range(keys_each):
            for chunk_index in range(chunks_each):
                chunk = min(lane % lanes + lanes * chunk_index, chunks - 1)  # an idle lane reads what its neighbour reads
                at = 4 * (key * chunks_each + chunk_index)
                words[at], words[at + 1], words[at + 2], words[at + 3] = load_128_streaming(cache, rows[key] + chunk * elements)

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
    def fold_keys(maxima, sums, acc, scores, value_words):
        """Online softmax: scores become weights; then acc[heads_here, numbers_each] += weight * v."""
        numbers = cuda.local.array(elements, float32)
        # exercise: attention.split_kv
        for head in range(heads_here):
            maximum = maxima[head]
            for key in range(keys_each):
                maximum = max(maximum, scores[key * heads_here + head])
            shift = finite_or_zero(maximum)
            correction = ex2(maxima[head] - shift)
            maxima[head] = maximum
            sums[head] *= correction
            for i in range(numbers_each):
                acc[head * numbers_each + i] *= correction
            for key in range(keys_each):
                weight = ex2(scores[key * heads_here + head] - shift)
                scores[key * heads_here + head] = weight
                sums[head] += weight
        # end exercise
        for key in range(keys_each):
            for chunk_index in range(chunks_each):
                unpack(value_words, 4 * (key * chunks_each + chunk_index), numbers)
                for head in range(heads_here):
                    for i in range(elements):
                        acc[head * numbers_each + chunk_index * elements + i] += scores[key * heads_here + head] * numbers[i]

    @cuda.jit(device=True)
    def merge_subgroups(maxima, sums, acc):
        """Merge the states of the warp's subgroups: afterwards every subgroup holds the warp's."""
        for head in range(heads_here):
            maximum = maxima[head]
            distance = lanes
            while distance < 32:
                maximum = max(maximum, cuda.shfl_xor_sync(ALL_LANES, maximum, distance))
                distance *= 2
            correction = ex2(maxima[head] - finite_or_zero(maximum))
            maxima[head] = maximum
            sums[head] *= correction
            for i in range(numbers_each):
                acc[head * numbers_each + i] *= correction
            distance = lanes
            while distance < 32:
                sums[head] += cuda.shfl_xor_sync(ALL_LANES, sums[head], distance)
                for i in range(numbers_each):
                    acc[head * numbers_each + i] += cuda.shfl_xor_sync(ALL_LANES, acc[head * numbers_each + i], distance)
                distance *= 2

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
        scale,  # times log2(e): exponentials are to base 2
        sliding_window,
    ):
        split, sequence = cuda.blockIdx.x, cuda.blockIdx.z
        kv_head, head_tile = cuda.blockIdx.y // head_tiles, cuda.blockIdx.y % head_tiles
        first_head = kv_head * group + head_tile * heads_here
        heads_left = min(heads_here, group - head_tile * heads_here)
        thread = cuda.threadIdx.x
        warp, lane = thread // 32, thread % 32
        row = query_start[sequence]
        start, stop = share_of_split(split, cuda.gridDim.x, context_lens[sequence], sliding_window, step)
        if start >= stop or query_start[sequence + 1] == row:  # no keys are left for this split, or there is no query
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
        for i in range(query_count):
            acc[i] = float32(0.0)
        for head in range(heads_here):
            maxima[head] = float32(MINUS_INFINITY)
            sums[head] = float32(0.0)

        block_table, within = block_tables[sequence], kv_head * head_dim
        key_stride = token_stride(key_cache, int32(key_cache.shape[2]) * head_dim)
        last_key = int32(stop - 1)
        base = start + warp * subgroups * keys_each + lane // lanes
        while base - lane // lanes < stop:  # the same for all lanes of a warp, which shuffle together
            for i in range(keys_each):
                position = min(int32(base + subgroups * i), last_key)  # past the end: the last key again, masked below
                rows[i] = element_of(block_of(block_table, position), position, key_stride, within)
            load_rows(key_words, key_cache, rows, lane)
            load_rows(value_words, value_cache, rows, lane)
            score_keys(scores, query_numbers, key_words)
            for i in range(keys_each):
                if base + subgroups * i >= stop:
                    for head in range(heads_here):
                        scores[i * heads_here + head] = float32(MINUS_INFINITY)
            fold_keys(maxima, sums, acc, scores, value_words)
            base += step

        merge_subgroups(maxima, sums, acc)
        warp_max = cuda.shared.array(state_count, float32)
        warp_sum = cuda.shared.array(state_count, float32)
        warp_out = cuda.shared.array(merge_shape, float32, alignment=16)
        if lane < lanes:
            for head in range(heads_here):
                for chunk_index in range(chunks_each):
                    chunk = lane + lanes * chunk_index
                    if chunk < chunks:
                        place = (warp * heads_here + head) * head_dim + chunk * elements
                        for i in range(0, elements, 4):
                            store_4_float32(warp_out, place + i, acc, head * numbers_each + chunk_index * elements + i)
                if lane == 0:
                    warp_max[warp * heads_here + head] = maxima[head]
                    warp_sum[warp * heads_here + head] = sums[head]
        cuda.syncthreads()
        i = thread
        while i < heads_left * head_dim:
            head, dim = i // head_dim, i % head_dim
            maximum = float32(MINUS_INFINITY)
            for w in range(warps):
                maximum = max(maximum, warp_max[w * heads_here + head])
            total, out = float32(0.0), float32(0.0)
            for w in range(warps):
                weight = ex2(warp_max[w * heads_here + head] - maximum)
                total += weight * warp_sum[w * heads_here + head]
                out += weight * warp_out[w, head, dim]
            split_out[sequence, first_head + head, split, dim] = out
            if dim == 0:
                split_max[sequence, first_head + head, split] = maximum
                split_sum[sequence, first_head + head, split] = total
            i += threads

    return split_kernel, threads, step, head_tiles


def attention(
    query,
    key_cache,
    value_cache,
    out,
    query_start,
    context_lens,
    block_tables,
    scale,
    sliding_window=0,
    max_query_len=None,
    workspace=None,
    stream=None,
    splits=None,
    sm_count=132,
    warps=WARPS,
    keys_each=None,
):
    """Attention of one new token a sequence over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    splits: shares of a context, at most 256; by default chosen for a GPU of `sm_count` multiprocessors (a data sheet's "SMs").
    Raises KernelArgumentError for more than one new token a sequence: flash_attention_2 takes those.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_single_tokens("split_kv", sizes, max_query_len)
    splits = splits or choose_splits(sizes.sequences, sizes.kv_heads, sizes.group, sizes.max_context_len, sm_count)
    check(1 <= splits <= MAX_SPLITS, f"splits is {splits}; it must be 1 to {MAX_SPLITS}")
    dtype = str(query.dtype)
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, splits), query)
    states = (scratch["split_max"], scratch["split_sum"], scratch["split_out"])
    split, threads, step, head_tiles = make_split_kernel(dtype, sizes.head_dim, sizes.block_size, sizes.group, warps, keys_each)
    numbers = (float(scale * LOG2_E), int(sliding_window))
    arguments = (query, key_cache, value_cache, *states, query_start, context_lens, block_tables, *numbers)
    launch(split, (splits, sizes.kv_heads * head_tiles, sizes.sequences), threads, arguments, stream)
    merge, merge_threads = make_merge_kernel(sizes.head_dim)
    arguments = (*states, out, query_start, context_lens, int(sliding_window), step)
    launch(merge, (sizes.heads, sizes.sequences), merge_threads, arguments, stream)
