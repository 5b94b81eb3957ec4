"""Cascade attention: the keys of a prefix shared by all sequences are read once.

The state of attention over a union of keys is the merge of the states over its parts (online_softmax.py). So if B sequences share a
prefix, its keys are read once for the query heads of all of them, as in a prompt's kernel, with B * group rows per KV head; each sequence
processes the rest of its keys as in split_tensor_core.py, starting from the prefix's state instead of from nothing (Ye et al.,
"Cascade Inference", FlashInfer 2024; Juravsky et al., "Hydragen", arXiv 2402.05099, section 3).

Threads to data: grid (shares of the prefix, KV heads, tiles of rows). A block takes ROWS rows, which are query heads of any sequences, 16
per warp; it loads tiles of KEYS keys by cp.async into two alternating stages, and every warp uses all of them: the matmuls of tile.py with
more columns.

FLOPs: 4 * head_dim per pair of query head and key. Bytes: 2 * kv_heads * head_dim * itemsize per key of the prefix, once per tile of rows
instead of once per sequence; states of shares * heads * (head_dim + 2) * 4 bytes per sequence, written and read once.

This variant is for benchmarks ("shared prefix" in docs/results); the engine never launches it. prefix_len would become part of a captured
CUDA graph, and would have to be recomputed whenever a block table changes: a sequence that was swapped out returns in blocks of its own.
"""

import functools

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, check_single_tokens, sizes_of
from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero
from minllm.kernels.attention.common.paged_cache import make_lookup
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.plan import quotient
from minllm.kernels.attention.split_tensor_core.tile import Operands, State, make_clear, make_products, make_softmax, sizes_of_lane
from minllm.kernels.attention.split_tensor_core.walk import Ring, Softmax
from minllm.ptx import cp_async_commit_group, cp_async_wait_group_0, ex2, load_32, shared_address
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.cp_async import make_copies, row_words_of
from minllm.tiles.warp import sum_over_rows

WARPS, KEYS = 4, 32
WARP_ROWS = 16
ROWS = WARPS * WARP_ROWS
STATE_NAMES = ("prefix_max", "prefix_sum", "prefix_out")


@functools.cache
def make_seeded_softmax(dtype, head_dim, keys, heads, warps):
    """The Softmax of sequences that start from the states of a prefix. origin: these states, for all shares."""
    steps, columns = -(-head_dim // 16), heads // 8
    running_softmax, clear_to = make_softmax(dtype, head_dim, keys, heads, warps), make_clear(head_dim, heads)

    @cuda.jit(device=True)
    def seed(state, origin, sequence, line_heads, scale, lane):
        """Merge the states of all shares of a prefix into a warp's state."""
        for share in range(origin.maxima.shape[0]):
            for column in range(columns):
                for i in range(2):
                    head = int32(8 * column + lane % 4 * 2 + i)
                    if head < line_heads.left:
                        row = uint32(line_heads.first + head)
                        share_maximum = origin.maxima[share, uint32(sequence), row]
                        maximum = max(state.maxima[2 * column + i], share_maximum)
                        shift = finite_or_zero(maximum)
                        correction = ex2((state.maxima[2 * column + i] - shift) * scale)
                        weight = ex2((share_maximum - shift) * scale)
                        state.maxima[2 * column + i] = maximum
                        state.sums[2 * column + i] *= correction
                        if lane < 4:  # one lane per column only: the sums of a column's lanes are added at the end
                            state.sums[2 * column + i] += weight * origin.sums[share, uint32(sequence), row]
                        for j in range(2 * steps):
                            at = 4 * (j // 2 * columns + column) + j % 2 * 2 + i
                            dim = uint32(min(int32(8 * j + lane // 4), head_dim - 1))
                            state.acc[at] = state.acc[at] * correction + weight * origin.outs[share, uint32(sequence), row, dim]

    @cuda.jit(device=True)
    def clear(state, origin, running, cursor, line_heads, scale, ring):
        """Set the state to that of the prefix, for the first warp at the head's first tile, else to that of no keys."""
        clear_to(state, float32(MINUS_INFINITY))
        if cursor.tile == 0 and ring.warp == 0:
            seed(state, origin, cursor.sequence, line_heads, scale, ring.lane)

    return Softmax(clear, running_softmax.fold, running_softmax.share)


@functools.cache
def make_prefix_kernel(dtype, head_dim, block_size, group):
    """(kernel, threads, dynamic shared bytes) for 16-bit `dtype`."""
    threads = 32 * WARPS
    steps, columns = -(-head_dim // 16), WARP_ROWS // 8
    copies = make_copies(head_dim, 16, KEYS, threads, *make_lookup(block_size))
    products, softmax = make_products(dtype, head_dim, KEYS, WARP_ROWS), make_softmax(dtype, head_dim, KEYS, WARP_ROWS, WARPS)
    clear_to, stage_words = make_clear(head_dim, WARP_ROWS), 2 * KEYS * row_words_of(head_dim)
    query_count, out_count, state_count, score_count = sizes_of_lane(head_dim, KEYS, WARP_ROWS)

    @cuda.jit(device=True)
    def load_rows(fragments, query, query_start, kv_head, first_row, rows, lane):
        """Load this warp's rows as B operands: row r is query head r % group of the KV head in sequence r // group; zeros past the end."""
        for column in range(columns):
            row = int32(first_row + column * 8 + lane // 4)
            sequence = quotient(min(row, rows - 1), group)
            token = query_start[uint32(sequence)]
            exists = row < rows and query_start[uint32(sequence + 1)] > token
            base = (int64(token) * query.shape[1] + kv_head * group + row - sequence * group) * head_dim
            for step in range(steps):
                for half in range(2):
                    dim = int32(16 * step + 8 * half + lane % 4 * 2)
                    word = uint32(0)
                    if exists and dim < head_dim:
                        word = load_32(query, base + dim)
                    fragments[2 * (column * steps + step) + half] = word

    @cuda.jit(device=True)
    def write_states(state, states, kv_head, first_row, rows, lane):
        """Write the states of this warp's rows over this share."""
        prefix_max, prefix_sum, prefix_out = states
        share = cuda.blockIdx.x
        for column in range(columns):
            for i in range(2):
                total = sum_over_rows(state.sums[2 * column + i])
                row = int32(first_row + 8 * column + lane % 4 * 2 + i)
                if row < rows:
                    sequence = quotient(row, group)
                    head = uint32(kv_head * group + row - sequence * group)
                    if lane < 4:
                        prefix_max[share, uint32(sequence), head] = state.maxima[2 * column + i]
                        prefix_sum[share, uint32(sequence), head] = total
                    for step in range(steps):
                        for half in range(2):
                            dim = uint32(16 * step + 8 * half + lane // 4)
                            if dim < head_dim:
                                prefix_out[share, uint32(sequence), head, dim] = state.acc[4 * (step * columns + column) + 2 * half + i]

    @kernel(launch_bounds=(threads, 1))
    def prefix_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,  # the same
        prefix_max,  # [shares, sequences, heads]
        prefix_sum,  # the same
        prefix_out,  # [shares, sequences, heads, head_dim]
        query_start,  # [sequences + 1]
        block_tables,  # [sequences, max_blocks]: the first row's blocks hold the prefix
        scale,  # includes log2(e): exponentials are base 2
        prefix_len,
    ):
        shared = cuda.shared.array(0, uint32, alignment=128)
        lane, kv_head = int32(cuda.threadIdx.x % 32), int32(cuda.blockIdx.y)
        first_row = int32(cuda.blockIdx.z * ROWS + cuda.threadIdx.x // 32 * WARP_ROWS)
        rows = int32((query_start.shape[0] - 1) * group)
        share = int32(quotient(prefix_len + cuda.gridDim.x * KEYS - 1, cuda.gridDim.x * KEYS) * KEYS)
        first_key = int32(cuda.blockIdx.x * share)
        stop = int32(min(prefix_len, first_key + share))
        block_table = block_tables[0]

        fragments, scores = cuda.local.array(query_count, uint32), cuda.local.array(score_count, float32)
        maxima, sums = cuda.local.array(state_count, float32), cuda.local.array(state_count, float32)
        state = State(maxima, sums, cuda.local.array(out_count, float32), maxima)
        operands = Operands(fragments, fragments)
        clear_to(state, float32(MINUS_INFINITY))
        load_rows(fragments, query, query_start, kv_head, first_row, rows, lane)
        stage = int32(0)  # offset of the current stage, in words
        if first_key < stop:
            copies.paged(key_cache, block_table, kv_head, first_key, 0, stop, shared, 0)
            copies.paged(value_cache, block_table, kv_head, first_key, 0, stop, shared, stage_words // 2)
        cp_async_commit_group()
        while first_key < stop:
            cp_async_wait_group_0()
            cuda.syncthreads()  # this tile has arrived, and all warps have read the last one
            next_key, next_stage = int32(first_key + KEYS), int32(stage_words - stage)
            if next_key < stop:
                copies.paged(key_cache, block_table, kv_head, next_key, 0, stop, shared, next_stage)
                copies.paged(value_cache, block_table, kv_head, next_key, 0, stop, shared, next_stage + stage_words // 2)
            cp_async_commit_group()
            tile = uint32(shared_address(shared, stage))
            ring = Ring(shared, tile, tile, tile, tile, uint32(0), int32(0), lane, fragments)
            products.score(scores, operands, ring)
            products.mask(scores, first_key, (int32(0), stop), lane)
            softmax.fold(scores, state, operands, True, scale, ring)
            products.multiply_values(state, scores, ring)
            first_key, stage = next_key, next_stage
        write_states(state, (prefix_max, prefix_sum, prefix_out), kv_head, first_row, rows, lane)

    return prefix_kernel, threads, 2 * 4 * stage_words


def shares_of(sizes, prefix_len, sm_count):
    """Number of shares of the prefix: enough blocks for every SM, but no share of fewer than 256 keys."""
    blocks = sizes.kv_heads * -(-sizes.sequences * sizes.group // ROWS)
    return max(1, min(-(-sm_count // blocks), prefix_len // 256))


def workspace_shapes(query, key_cache, block_tables, prefix_len, sm_count=None, shape=None):
    """The states of the prefix, and the workspace of split_tensor_core: name -> (shape, dtype)."""
    sizes = sizes_of(query, key_cache, block_tables)
    states = (shares_of(sizes, prefix_len, sm_count or sms_here()), sizes.sequences, sizes.heads)
    prefix = {name: ((*states, sizes.head_dim) if name == "prefix_out" else states, "float32") for name in STATE_NAMES}
    return prefix | split_tensor_core.workspace_shapes(query, key_cache, block_tables, None, sm_count, shape)


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, prefix_len, workspace=None, stream=None,
    sm_count=None, shape=None,
):  # fmt: skip
    """Attention of one new token per sequence, written into `out`; all sequences share their first prefix_len keys.

    Arguments as in kernels/attention/__init__.py, in float16 or bfloat16, without a sliding window. The blocks of the prefix are those of
    the first row of block_tables. Every sequence has keys of its own after the prefix, except for padding with context_lens 0.
    Raises KernelArgumentError for float32, head_dim over 128, or a prefix that is empty or leaves no keys.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale)
    check_single_tokens("split_cascade", sizes, 1)
    dtype = dtype_name(query.dtype)
    check(dtype in ("float16", "bfloat16"), f"split_cascade takes float16 and bfloat16, not {dtype}")
    check(1 <= prefix_len < sizes.max_context_len, f"prefix_len is {prefix_len}; contexts have up to {sizes.max_context_len} keys")
    head_dim_limit = 128
    check(sizes.head_dim <= head_dim_limit, f"split_cascade takes head_dim up to {head_dim_limit}, not {sizes.head_dim}")
    scratch = scratch_arrays(workspace, workspace_shapes(query, key_cache, block_tables, prefix_len, sm_count, shape), query)
    prefix = tuple(scratch[name] for name in STATE_NAMES)
    chosen, threads, shared_bytes = make_prefix_kernel(dtype, sizes.head_dim, sizes.block_size, sizes.group)
    grid = (prefix[0].shape[0], sizes.kv_heads, -(-sizes.sequences * sizes.group // ROWS))
    numbers = (float(scale * LOG2_E), int(prefix_len))
    launch(chosen, grid, threads, (query, key_cache, value_cache, *prefix, query_start, block_tables, *numbers), stream, shared_bytes)
    suffix = (inputs, sizes, scale, 0, scratch, stream, None, sm_count, shape, make_seeded_softmax)
    split_tensor_core.launch_kernel(*suffix, prefix=prefix, first_key=prefix_len)
