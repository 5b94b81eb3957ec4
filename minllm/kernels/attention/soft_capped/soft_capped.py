"""Attention whose scores have a soft cap, as in Gemma 2: FlashAttention-2 with one more step between Q K^T and the softmax.

    s_j = cap * tanh(scale * (q . k_j) / cap)          a score stays within (-cap, cap)

tanh(x) is 2 sigmoid(2x) - 1, one exponential and one reciprocal per score; the kernel is then bound by those rather than by tensor cores.
Everything else is kernel.py of flash_attention_2: prompts and decode steps take the same kernel, in tiles of 64 rows of a head.

FLOPs: those of flash_attention_2, and about 6 per score. Source: Gemma Team 2024, "Gemma 2", section 2 (logit soft-capping).
"""

import functools
import math

from numba import cuda, float32

from minllm.kernels.activation.sigmoid import sigmoid
from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, float32_tiles, kernel
from minllm.kernels.attention.flash_attention_2 import float32 as in_float32
from minllm.kernels.attention.flash_attention_2.tensor_core import make_tensor_core_parts, warp_tiles
from minllm.runtime.kernel import check, launch


def workspace_shapes(query, key_cache, block_tables):
    """It needs no scratch memory."""
    return {}


def capped(matmuls, score_count, scale, soft_cap):
    """The Matmuls with scores that are scaled and capped; score_count: a thread's scores."""
    multiply, factor, cap, twice_cap = matmuls.scores, float32(2 * scale / soft_cap), float32(soft_cap), float32(2 * soft_cap)

    @cuda.jit(device=True)
    def scores(scores, query, shared, lane_row, lane):
        multiply(scores, query, shared, lane_row, lane)
        for i in range(score_count):
            scores[i] = twice_cap * sigmoid(scores[i] * factor) - cap

    return matmuls._replace(scores=scores)


@functools.cache
def make_kernel(dtype, head_dim, block_size, scale, soft_cap):
    """(kernel, tiles) for one model's scale and cap."""
    if dtype == "float32":
        tiles = float32_tiles.float32_tiles(head_dim, *in_float32.tiles_for(head_dim))
        rows = (float32_tiles.make_float32_rows(width, tiles.lanes) for width in (tiles.key_tile, head_dim))
        source, matmuls = in_float32.make_source(tiles, block_size), float32_tiles.make_matmuls(tiles)
    else:
        tiles = warp_tiles(head_dim, *flash_attention_2.small_tiles(head_dim))
        matmuls, *rows = make_tensor_core_parts(tiles, dtype, dtype)
        source = flash_attention_2.make_source(tiles, block_size)
    return kernel.make_kernel(tiles, source, capped(matmuls, tiles.score_count, scale, soft_cap), *rows), tiles


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, soft_cap, sliding_window=0, max_query_len=None,
    workspace=None, stream=None,
):  # fmt: skip
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    soft_cap: above zero. Raises KernelArgumentError for unsuitable arguments.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    check(math.isfinite(soft_cap) and soft_cap > 0, f"soft_cap is {soft_cap}; it must be a positive number")
    chosen, tiles = make_kernel(dtype_name(query.dtype), sizes.head_dim, sizes.block_size, float(scale), float(soft_cap))
    grid = (-(-query_len_bound(max_query_len, sizes) // tiles.query_tile), sizes.heads, sizes.sequences)
    arguments = (query, key_cache, None, value_cache, None, out, None, *inputs[4:], float(LOG2_E), int(sliding_window))
    launch(chosen, grid, tiles.threads, arguments, stream, tiles.shared_bytes)
