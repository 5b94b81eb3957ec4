"""Attention of the nodes of a draft tree: FlashAttention-2 with a mask of one bit per row and node.

A row sees all keys before the tree, and of the keys of the tree those of its ancestors and its own (reference.py has the equation).
A node's key follows those of its ancestors, so a causal mask by index is right except for earlier nodes that are not ancestors: their
scores become -inf, according to one bit each of TreeArrays.words. Only tiles with keys of the tree read bits.

FLOPs and bytes: those of flash_attention_2 for the same number of rows; K and V are read once per tile of 64 rows, and a tree seldom has
more. Threads to data: as in flash_attention_2, grid (tiles of rows, heads, sequences), on tensor cores for 16-bit types. Source of the
mask: Miao et al., "SpecInfer", ASPLOS 2024, section 4.
"""

import functools

from numba import cuda, float32, int32, uint32

from minllm.kernels.arguments import INDEX_DTYPES, check_array, dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound
from minllm.kernels.attention.common.paged_cache import kv_head_of
from minllm.kernels.attention.common.window_keys import make_row_keys
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, float32_tiles
from minllm.kernels.attention.flash_attention_2 import float32 as flash_attention_2_float32
from minllm.kernels.attention.flash_attention_2.kernel import Buffers, Context, Queries, State, make_softmax
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, warp_tiles
from minllm.runtime.kernel import check, kernel, launch


def workspace_shapes(query, key_cache, block_tables):
    """Tree attention needs no scratch memory."""
    return {}


@functools.cache
def make_kernel(dtype, head_dim, block_size):
    """(kernel, Tiles) for the dtype with this name."""
    if dtype == "float32":
        sizes = flash_attention_2_float32.tiles_for(head_dim)
        tiles = float32_tiles.float32_tiles(head_dim, *sizes)
        source, matmuls = flash_attention_2_float32.make_source(tiles, block_size), float32_tiles.make_matmuls(tiles)
        rows = [float32_tiles.make_float32_rows(columns, sizes[1]) for columns in (tiles.key_tile, head_dim)]
        return make_tree_kernel(tiles, source, matmuls, *rows), tiles
    tiles = warp_tiles(head_dim, *flash_attention_2.small_tiles(head_dim))
    source = flash_attention_2.make_source(tiles, block_size)
    return make_tree_kernel(tiles, source, *make_tensor_core_parts(tiles, dtype, dtype)), tiles


def make_tree_kernel(tiles, source, matmuls, score_rows, out_rows):
    """The kernel made of these parts (flash_attention_2/kernel.py)."""
    query_tile, key_tile, lanes, lane_rows, shared_type = tiles.query_tile, tiles.key_tile, tiles.lanes, tiles.lane_rows, tiles.shared_type
    query_words, score_count, out_count, row_count = tiles.query_words, tiles.score_count, tiles.out_count, tiles.row_count
    code_words, scale_words = source.code_words, source.scale_words
    softmax = make_softmax(tiles, score_rows, out_rows, make_row_keys())

    @cuda.jit(device=True)
    def mask(scores, first_key, tree_start, node, depths, words, sliding_window, lane):
        """Set scores of keys that a row may not see to -inf; tree_start: index of the root's key; node: of the lane's first row."""
        for row in range(row_count):
            own = min(int32(node + score_rows.position(row, lane)), int32(depths.shape[0] - 1))  # rows beyond the last are not stored
            number = int32(first_key + score_rows.column(lane))
            oldest = tree_start + depths[own] - sliding_window + 1 if sliding_window > 0 else 0
            score_rows.mask(scores, row, number, int32(oldest), int32(tree_start + own))
            score_rows.select(scores, row, number, tree_start, words, own)

    @kernel(launch_bounds=tiles.launch_bounds)
    def tree_attention_kernel(
        query,  # [tokens, heads, head_dim]
        key_cache,  # [num_blocks, block_size, kv_heads, head_dim]
        value_cache,
        out,  # [tokens, heads, head_dim]
        query_start,  # [sequences + 1]
        context_lens,  # [sequences]
        block_tables,  # [sequences, max_blocks]
        depths,  # [nodes]
        words,  # [nodes, words of 32 bits]
        first_node,
        scale,  # includes log2(e): exponentials are base 2
        sliding_window,
    ):
        shared = cuda.shared.array(0, shared_type, alignment=128)
        sequence, head = cuda.blockIdx.z, cuda.blockIdx.y
        first_row = cuda.blockIdx.x * query_tile
        token = query_start[sequence] + first_row
        rows = query_start[sequence + 1] - token  # rows of the sequence from the tile's first row on
        if rows <= 0:
            return
        lane, lane_row = cuda.threadIdx.x % lanes, cuda.threadIdx.x // lanes * lane_rows
        context_len = context_lens[sequence]
        node = int32(first_node + first_row)  # node of the tile's first row
        tree_start = int32(max(0, context_len - rows - node))  # index of the root's key in the context
        stop = int32(min(context_len, tree_start + node + query_tile))
        # Keys start at the window of the root, which begins first: nodes are not sorted by depth, so a tile's first may be its deepest.
        start = int32(max(0, tree_start - sliding_window + 1)) if sliding_window > 0 else int32(0)
        first_key = int32(start - start % key_tile)
        queries, kv_head = Queries(query, token, head, rows), kv_head_of(head, query.shape[1], source.kv_heads(key_cache))
        context = Context(key_cache, None, value_cache, None, block_tables[sequence], kv_head, start, stop)
        scale, factor = source.scales(context, scale)

        query_fragments = cuda.local.array(query_words, uint32)
        scores = cuda.local.array(score_count, float32)
        acc = cuda.local.array(out_count, float32)
        state = State(cuda.local.array(row_count, float32), cuda.local.array(row_count, float32), acc)
        buffers = Buffers(shared, cuda.local.array(code_words, uint32), cuda.local.array(scale_words, uint32))
        softmax.clear(state)
        source.begin(queries, context, first_key, buffers)
        matmuls.begin(query_fragments, shared, lane_row, lane)
        while first_key < stop:
            source.keys(context, first_key, buffers)
            matmuls.scores(scores, query_fragments, shared, lane_row, lane)
            source.values(context, first_key, buffers)
            if first_key + key_tile > tree_start or sliding_window > 0:
                mask(scores, first_key, tree_start, node + lane_row, depths, words, sliding_window, lane)
            softmax.fold(scores, state, scale)
            matmuls.output(acc, scores, shared, lane_row, lane)
            first_key += int32(key_tile)
        source.finish()
        softmax.store(state, factor, scale, out, None, queries, lane_row, lane)

    return tree_attention_kernel


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, tree, first_node, scale, sliding_window=0,
    max_query_len=None, workspace=None, stream=None,
):  # fmt: skip
    """Attention for sequences with nodes of one tree as rows, written into their rows of `out`.

    tree: TreeArrays; first_node: the node of each sequence's first row; others as in kernels/attention/__init__.py. sliding_window: 0, or
    more keys than the tree is deep, so that a node sees all of its ancestors. Raises KernelArgumentError for other arguments.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check_array("depths", tree.depths, INDEX_DTYPES, nodes=len(tree))
    check_array("words", tree.words, INDEX_DTYPES, nodes=len(tree), words=None)
    deepest = tree.host.most_new(len(tree)) - 1
    check(sliding_window == 0 or sliding_window > deepest, f"sliding_window is {sliding_window}; the tree is {deepest} drafts deep")
    longest = min(query_len_bound(max_query_len, sizes), len(tree) - first_node)
    check(0 <= first_node < len(tree), f"first_node is {first_node}; the tree has {len(tree)} nodes")
    chosen, tiles = make_kernel(dtype_name(query.dtype), sizes.head_dim, sizes.block_size)
    grid = (-(-longest // tiles.query_tile), sizes.heads, sizes.sequences)
    arguments = (*inputs, tree.depths, tree.words, int(first_node), float(scale * LOG2_E), int(sliding_window))
    launch(chosen, grid, tiles.threads, arguments, stream, tiles.shared_bytes)
