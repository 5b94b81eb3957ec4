"""Batch-invariant attention in splits of a fixed number of keys; for few rows, blocks divide the keys among them.

The keys of a sequence are split at multiples of 64, whatever else is computed, and a row folds its splits in order (merge.py). So a row at
position i sees the same keys in the same splits whether it is a decode step, one of several rows that verify drafts, or part of a prompt's
chunk of any size, and however many blocks divide the splits: `parts` is chosen for speed alone. Splits that another row of its block sees
and this row does not see change nothing: their scores are -inf, p is 0, the maximum does not change, and its correction is exactly 1.
("Fixed split-size": He et al., "Defeating Nondeterminism in LLM Inference", Thinking Machines Lab, 2025.)

FLOPs: 4 * heads * head_dim per visible (query, key) pair, with rows padded to whole tiles. Bytes: K and V once per tile of rows, which
holds the query heads of a KV head for as many tokens as fit; if blocks divide the splits, each split of a row adds 4 * (head_dim + 2),
written and read. float32, and heads of more than 128, whose output would fill the registers, are passed to flash_attention_2 with the same
tiles for every call: there one block processes all keys of a row.
"""

import math

from minllm.kernels.arguments import ceil_div, dtype_name
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound, sizes_of
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.attention.fixed_split.kernel import make_kernel
from minllm.kernels.attention.fixed_split.merge import SPLIT_KEYS, make_merge_kernel
from minllm.kernels.attention.flash_attention_2.flash_attention_2 import small_tiles
from minllm.runtime.device import AMPERE, capability_here, sms_here
from minllm.runtime.kernel import launch

BLOCKS_PER_SM, FEWEST_PARTS = 4, 3  # on an H200 two parts gain less than their states cost (docs/speculation.md)
MOST_HEAD_DIM = 128
MOST_SCRATCH = 96 << 20  # the most bytes of states in memory; if they need more, one block takes all keys of its rows


def is_split(query):
    """Whether the split kernel supports these queries; otherwise flash_attention_2 serves them, with the same tiles for every call."""
    return dtype_name(query.dtype) != "float32" and query.shape[2] <= MOST_HEAD_DIM


def warps_of(rows):
    """Warps of a block, 16 rows each, for `rows` packed rows per sequence and KV head. Before 8.0 a block has 64 KB of shared memory."""
    return next(warps for warps in (1, 2, 4) if 16 * warps >= rows or warps == (4 if capability_here() >= AMPERE else 2))


def states_of(sizes):
    """The states of splits that blocks divide, in the form of workspace_shapes; empty if they exceed MOST_SCRATCH."""
    states = (sizes.tokens, sizes.heads, ceil_div(sizes.max_context_len, SPLIT_KEYS))
    if 4 * math.prod(states) * (sizes.head_dim + 2) > MOST_SCRATCH:
        return {}
    return {"split_max": (states, "float32"), "split_sum": (states, "float32"), "split_out": ((*states, sizes.head_dim), "float32")}


def blocks_of(sizes, longest, warps):
    """Number of tiles of rows over all KV heads and sequences."""
    return ceil_div(longest * sizes.group, 16 * warps) * sizes.kv_heads * sizes.sequences


def parts_of(sizes, longest, warps):
    """Number of blocks that divide the keys of a tile of rows; 1: one block takes all keys."""
    parts = min(BLOCKS_PER_SM * sms_here() // blocks_of(sizes, longest, warps), ceil_div(sizes.max_context_len, SPLIT_KEYS))
    return parts if parts >= FEWEST_PARTS else 1


def copying_warps(blocks, warps):
    """Warps of a block that takes all keys of its rows, at least `warps`; if there are few blocks, more warps copy keys faster."""
    per_sm = blocks / sms_here()
    if per_sm <= BLOCKS_PER_SM / 2:
        return max(warps, warps_of(64))
    return max(warps, 2) if per_sm <= 2 * BLOCKS_PER_SM else warps


def workspace_shapes(query, key_cache, block_tables):
    """The states of splits that blocks divide: name -> (shape, dtype)."""
    return states_of(sizes_of(query, key_cache, block_tables)) if is_split(query) else {}


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None, parts=None, warps=None,
):  # fmt: skip
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

    parts: number of blocks that divide the keys of a tile of rows, if there is memory for their states; warps: per block, 1, 2 or 4.
    Neither changes a bit of the result.
    """
    inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
    sizes = check_arguments(*inputs, scale, sliding_window, max_query_len)
    if not is_split(query):
        tiles = None if dtype_name(query.dtype) == "float32" else small_tiles(sizes.head_dim)  # float32 has one tiling per head_dim
        VARIANTS.fallback("fixed_split").attention(*inputs, scale, sliding_window, max_query_len, stream=stream, tiles=tiles)
        return
    longest = query_len_bound(max_query_len, sizes)
    shapes, needed = states_of(sizes), warps or warps_of(longest * sizes.group)
    parts = (parts or parts_of(sizes, longest, needed)) if shapes else 1
    warps = warps or (copying_warps(blocks_of(sizes, longest, needed), needed) if parts == 1 else needed)
    states = scratch_arrays(workspace, shapes, query) if parts > 1 else {}
    splits = tuple(states.get(name) for name in ("split_max", "split_sum", "split_out"))
    shape = (sizes.head_dim, sizes.block_size, sizes.group, warps)
    chosen, threads, shared_bytes = make_kernel(dtype_name(query.dtype), *shape, folds=parts == 1)
    grid = (ceil_div(longest * sizes.group, 16 * warps) * parts, sizes.kv_heads, sizes.sequences)
    numbers = (float(scale * LOG2_E), int(sliding_window))
    arguments = (query, key_cache, value_cache, out, *splits, query_start, context_lens, block_tables, *numbers, int(parts))
    launch(chosen, grid, threads, arguments, stream, shared_bytes)
    if parts > 1:
        merge, threads = make_merge_kernel(sizes.head_dim)
        launch(merge, (sizes.heads, longest, sizes.sequences), threads, (*splits, out, query_start, context_lens, *numbers), stream)
