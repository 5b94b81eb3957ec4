"""The launchers of FlashAttention-3, over caches in 16 bits and over codes of fp8: they check a call, and choose its tiles and its grid.

FlashAttention-2 serves the arrays that wgmma and TMA cannot; `why_not` says why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.common.arguments import LOG2_E, check_arguments, query_len_bound, sizes_of
from minllm.kernels.attention.flash_attention_2 import flash_attention_2, quantized
from minllm.kernels.attention.flash_attention_3 import flash_attention_3, float8
from minllm.kernels.attention.flash_attention_3.tiles import TileShape
from minllm.runtime.device import HOPPER, current_device

LARGEST_HEAD_OF_CODES = 128
WHOLE_CONTEXT = 2**30  # a block size beyond all positions, for sequences of one block each, so that one kernel serves all sizes
BLOCKS_IN_SIMULATOR = 3  # blocks of the grid


def shape_for(head_dim, max_query_len, codes=False, block_size=16, max_blocks=2):
    """The TileShape of a block for a cache of blocks of this size, of which a sequence has up to max_blocks; codes: of fp8.

    It is as large as registers allow, with fewer rows for short prompts. For codes, tiles have 160 keys if they can be gathered from
    blocks: of what a tile costs besides its keys there is less than with 128.
    """
    if max_query_len <= 64:
        consumers = 1
    else:
        consumers = 3 if head_dim <= 64 and max_query_len > 1024 and not codes else 2
    shape = TileShape(head_dim, consumers, 128 if head_dim <= 128 else 64, codes=codes)
    longer = TileShape(head_dim, consumers, 160, codes=True)
    return longer if codes and consumers == 2 and longer.page_rows(block_size, max_blocks) else shape


class Prompts(NamedTuple):
    """The launchers of the kernel for one kind of cache, as kernels/attention/__init__.py describes them."""

    launch_kernel: Callable
    fallback: Any  # the launchers that serve the other arrays
    codes: bool  # of fp8

    def workspace_shapes(self, query, key_cache, block_tables):
        """FlashAttention-3 needs no scratch memory."""
        return {}

    def why_not(self, query, key_cache, block_tables, shape=None):
        """Why the kernel cannot serve these arrays, as a sentence; None if it can."""
        sizes, keys, dtype = sizes_of(query, key_cache, block_tables), key_cache, dtype_name(query.dtype)
        shape = shape or shape_for(sizes.head_dim, sizes.tokens, self.codes, sizes.block_size, sizes.max_blocks)
        if self.codes:
            keys = key_cache.codes
            if key_cache.format.name != "fp8_e4m3":
                return f"wgmma multiplies codes of fp8_e4m3; the cache is {key_cache.dtype}"
            if dtype not in ("float16", "bfloat16"):
                return f"queries are float16 or bfloat16, not {query.dtype}"
            if sizes.head_dim > LARGEST_HEAD_OF_CODES:
                return f"output and scores of heads of {sizes.head_dim} do not fit into registers; heads up to {LARGEST_HEAD_OF_CODES} do"
        elif dtype not in ("float16", "bfloat16"):
            return f"wgmma multiplies float16 and bfloat16; the query is {query.dtype}"
        if shape.page_rows(sizes.block_size, sizes.max_blocks) is None:
            return (
                f"tiles of {shape.key_tile} keys cannot be gathered from blocks of {sizes.block_size}: "
                f"a block of 8 keys or more that divides a tile, or a multiple of it, can be copied as a whole"
            )
        if not isinstance(query, np.ndarray):
            if any(array.pointer % 16 for array in (query, keys)):
                return "TMA needs arrays that begin at multiples of 16 bytes"
            if current_device().compute_capability != HOPPER:
                return "TMA and wgmma in this form are Hopper's, compute capability 9.0"
        return None

    def attention(
        self, query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
        workspace=None, stream=None, shape=None, blocks=None,
    ):  # fmt: skip
        """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py.

        shape: the TileShape; the default suits head_dim and the prompts' length. blocks: blocks of the grid; by default one per SM, but no
        more than there is work. Arrays that this kernel cannot serve (`why_not`) are passed to FlashAttention-2.
        """
        inputs = (query, key_cache, value_cache, out, query_start, context_lens, block_tables)
        sizes = check_arguments(*inputs, scale, sliding_window, max_query_len, quantized=self.codes)
        longest = query_len_bound(max_query_len, sizes)
        shape = shape or shape_for(sizes.head_dim, longest, self.codes, sizes.block_size, sizes.max_blocks)
        if self.why_not(query, key_cache, block_tables, shape):
            self.fallback.attention(*inputs, scale, sliding_window, max_query_len, stream=stream)
            return
        block_size = WHOLE_CONTEXT if sizes.max_blocks == 1 else sizes.block_size
        made = dtype_name(query.dtype), shape, block_size, shape.page_rows(sizes.block_size, sizes.max_blocks)
        most_items = -(-longest // shape.query_tile) * sizes.sequences * sizes.heads
        blocks = blocks or (BLOCKS_IN_SIMULATOR if isinstance(query, np.ndarray) else current_device().sm_count)
        self.launch_kernel(made, inputs, float(scale * LOG2_E), int(sliding_window), min(most_items, blocks), stream)


PLAIN = Prompts(flash_attention_3.launch_kernel, flash_attention_2, codes=False)
CODES = Prompts(float8.launch_kernel, quantized, codes=True)
