"""FlashAttention-2: the kernel for prompts, whole or in chunks, over plain and quantised caches.

The maths is online softmax (Milakov and Gimelshein, arXiv 1805.02867). A row keeps its maximum m, its sum l and its output o, and
folds in one tile of keys at a time:

    s_j = scale * (q . k_j)     m' = max(m, max_j s_j)     p_j = exp(s_j - m')     l' = l exp(m - m') + sum_j p_j
    o' = o exp(m - m') + sum_j p_j v_j          and at the end  out = o / l

FlashAttention-2 (Dao, arXiv 2307.08691, section 3) puts the loop over queries outside: a block owns a tile of queries and walks over
the keys, so m, l and o stay in registers, nothing is rescaled in memory, and tiles of queries run in parallel. Keys that no row of
the tile may see, those after its last row and those before its first row's window, are never loaded: half of the work of a causal
prompt.

FLOPs: 4 * heads * head_dim per visible (query, key) pair. Bytes: Q and out once; K and V once per tile of queries and head, most of it
from L2. Threads to data: grid (query tiles, heads, sequences), the longest tiles first; threads split a tile's rows.

The kernel has three parameters. A Source loads tiles into shared memory: flash_attention_2.py copies 16-bit numbers, quantized.py
dequantises codes, float32.py loads float32. Matmuls multiply them: on tensor cores (tensor_core.py), or by FMAs in float32. Rows
(tiles/rows.py) define which thread holds which score and which output.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.attention.common.online_softmax import MINUS_INFINITY, finite_or_zero, log_sum_exp, reciprocal_or_zero
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.window_keys import make_row_keys
from minllm.ptx import ex2
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel


@dataclass(frozen=True)
class Tiles:
    """Tile sizes of a block: one tile of query_tile rows, and tiles of key_tile keys, one after another.

    `lanes` neighbouring threads share lane_rows rows. In shared memory, in elements of shared_type, Q begins at 0, K at keys_at, V at
    values_at, and other data at `end`. A thread holds query_words of Q, score_count scores and out_count outputs of row_count rows.
    """

    head_dim: int
    query_tile: int
    key_tile: int
    threads: int
    lanes: int
    lane_rows: int
    row_count: int
    query_words: int
    score_count: int
    out_count: int
    keys_at: int
    values_at: int
    end: int
    shared_type: Any = uint32
    launch_bounds: tuple[int, int] | None = None

    @property
    def shared_bytes(self):
        """Bytes of shared memory per block, up to `end`."""
        return 4 * self.end


class Queries(NamedTuple):
    """A block's query rows: `rows` rows of one head, from `token` on; may be fewer than the tile has."""

    array: Array  # [tokens, heads, head_dim]
    token: int
    head: int
    rows: int


class Context(NamedTuple):
    """The keys and values that any row of a block sees: positions start to stop of a sequence, of one KV head."""

    keys: Array  # the cache, or its codes
    key_scales: Array
    values: Array
    value_scales: Array
    block_table: Array
    kv_head: int
    start: int
    stop: int


class Buffers(NamedTuple):
    """Shared memory for tiles, and a thread's registers for codes and their scales on the way there."""

    shared: Array
    codes: Array
    scales: Array


class State(NamedTuple):
    """m, l (the thread's partial sum) and o of a thread's rows."""

    maxima: Array
    sums: Array
    acc: Array


class Source(NamedTuple):
    """Device functions that load tiles into shared memory; code_words, scale_words: uint32 per thread in Buffers."""

    code_words: int
    scale_words: int
    kv_heads: Callable  # kv_heads(key_cache)
    scales: Callable  # scales(context, scale) -> (scale of the scores, factor of the output)
    begin: Callable  # begin(queries, context, first_key, buffers): starts or completes the loads of Q and the first K
    keys: Callable  # keys(context, first_key, buffers): waits for the tile's K, and starts loading its V
    values: Callable  # values(context, first_key, buffers): waits for the tile's V, and starts loading the next K
    finish: Callable  # finish(): waits for all loads


class Matmuls(NamedTuple):
    """Device functions that multiply tiles in shared memory."""

    begin: Callable  # begin(query, shared, lane_row, lane): loads Q into registers
    scores: Callable  # scores(scores, query, shared, lane_row, lane): S = Q K^T
    output: Callable  # output(acc, scores, shared, lane_row, lane): O += P V


class Softmax(NamedTuple):
    """Device functions over a thread's rows."""

    clear: Callable
    mask: Callable
    fold: Callable
    store: Callable


def make_softmax(tiles, score_rows, out_rows, row_keys):
    """The Softmax of rows held in registers as score_rows and out_rows define. row_keys: (first_key, last_key) of window_keys.py."""
    head_dim, row_count, out_count = tiles.head_dim, tiles.row_count, tiles.out_count
    first_key_of, last_key_of = row_keys

    @cuda.jit(device=True)
    def clear(state):
        """Set the state to that of no keys."""
        for i in range(out_count):
            state.acc[i] = float32(0.0)
        for row in range(row_count):
            state.maxima[row] = float32(MINUS_INFINITY)
            state.sums[row] = float32(0.0)

    @cuda.jit(device=True)
    def mask(scores, first_key, first_position, sliding_window, lane):
        """Set scores of keys that a row may not see to -inf; first_position: position of the first row that `lanes` threads share."""
        for row in range(row_count):
            position = int32(first_position + score_rows.position(row, lane))
            first, last = first_key_of(position, sliding_window), last_key_of(position)
            score_rows.mask(scores, row, first_key + score_rows.column(lane), first, last)

    @cuda.jit(device=True)
    def fold(scores, state, scale):
        """Replace scores by p = exp(s - m'); update m, l, and rescale o."""
        for row in range(row_count):
            maximum = score_rows.maximum(scores, row, state.maxima[row])
            shift = finite_or_zero(maximum)
            correction = ex2((state.maxima[row] - shift) * scale)
            state.maxima[row] = maximum
            state.sums[row] = score_rows.exponentials(scores, row, shift, scale, state.sums[row] * correction)
            out_rows.scale(state.acc, row, correction)

    @cuda.jit(device=True)
    def store(state, factor, scale, out, lse, queries, first_row, lane):
        """Store out = factor * o / l, and the log-sum-exp if lse is not None; first_row: the first row that `lanes` threads share."""
        for i in range(row_count):
            total = out_rows.sum(state.sums[i])
            inverse = factor * reciprocal_or_zero(total)
            row = first_row + out_rows.position(i, lane)
            if lse is not None:
                if row < queries.rows and out_rows.column(lane) == 0:
                    lse[queries.token + row, queries.head] = log_sum_exp(state.maxima[i], total, scale)
            start = (int64(queries.token + row) * out.shape[1] + queries.head) * head_dim
            out_rows.store(state.acc, i, inverse, out, start, row < queries.rows, lane)

    return Softmax(clear, mask, fold, store)


def make_kernel(tiles, source, matmuls, score_rows, out_rows, row_keys=None):
    """The kernel made of these parts. row_keys: the keys that rows read (window_keys.make_row_keys); None: all up to their own."""
    query_tile, key_tile, lanes, lane_rows, shared_type = tiles.query_tile, tiles.key_tile, tiles.lanes, tiles.lane_rows, tiles.shared_type
    query_words, score_count, out_count, row_count = tiles.query_words, tiles.score_count, tiles.out_count, tiles.row_count
    code_words, scale_words = source.code_words, source.scale_words
    first_key_of, last_key_of = row_keys = row_keys or make_row_keys()
    softmax = make_softmax(tiles, score_rows, out_rows, row_keys)

    @kernel(launch_bounds=tiles.launch_bounds)
    def flash_attention_2_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim], or codes [num_blocks, kv_heads, block_size, code_bytes]
        key_scales,  # scales of the codes, as in QuantizedCache; None for a plain cache
        value_cache,
        value_scales,
        out,  # [tokens, heads, head_dim]
        lse,  # [tokens, heads]: receives the log-sum-exp of every row, to base 2; or None
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, shared_type, alignment=128)
        sequence, head = cuda.blockIdx.z, cuda.blockIdx.y
        first_row = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * query_tile
        token = query_start[sequence] + first_row
        rows = query_start[sequence + 1] - token  # rows of the sequence from the tile's first row on
        if rows <= 0:
            return
        lane, lane_row = cuda.threadIdx.x % lanes, cuda.threadIdx.x // lanes * lane_rows
        context_len = context_lens[sequence]
        first_position = int32(context_len - rows)  # position of the tile's first row
        last_position = int32(min(context_len, first_position + query_tile) - 1)
        visible_start = int32(max(0, first_key_of(first_position, sliding_window)))
        visible_stop = int32(max(0, last_key_of(last_position) + 1))
        first_key = int32(visible_start - visible_start % key_tile)
        queries, kv_head = Queries(query, token, head, rows), kv_head_of(head, query.shape[1], source.kv_heads(key_cache))
        context = Context(key_cache, key_scales, value_cache, value_scales, block_tables[sequence], kv_head, visible_start, visible_stop)
        scale, factor = source.scales(context, scale)

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        state = State(cuda.local.array(row_count, float32), cuda.local.array(row_count, float32), acc)
        buffers = Buffers(shared, cuda.local.array(code_words, uint32), cuda.local.array(scale_words, uint32))
        softmax.clear(state)
        source.begin(queries, context, first_key, buffers)
        matmuls.begin(query_fragments, shared, lane_row, lane)
        while first_key < visible_stop:
            next_key = int32(first_key + key_tile)
            source.keys(context, first_key, buffers)
            matmuls.scores(scores, query_fragments, shared, lane_row, lane)
            source.values(context, first_key, buffers)
            at_the_end = next_key > last_key_of(first_position) + 1
            at_the_start = first_key < first_key_of(int32(first_position + query_tile - 1), sliding_window)
            if at_the_end or at_the_start:
                softmax.mask(scores, first_key, first_position + lane_row, sliding_window, lane)
            softmax.fold(scores, state, scale)
            matmuls.output(acc, scores, shared, lane_row, lane)
            first_key = next_key
        source.finish()
        softmax.store(state, factor, scale, out, lse, queries, lane_row, lane)

    return flash_attention_2_kernel
