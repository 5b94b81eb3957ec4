"""Attention whose sums do not depend on the company: a row has the same bits as a decode step, in a chunk of any size, as a verified row.

A row folds its keys, a tile at a time, into its running maximum, sum and output (kernel.py). Here tiles hold the same number of keys for
every call, and begin at multiples of it from the first key of the context. So a row at position i meets the same keys in the same tiles
in the same order, whichever rows share its tile and however many sequences share its launch. Tiles that another row of its block sees
and this one does not change nothing: their scores are -inf, p is 0, the maximum stays, and its correction is exactly 1.

FLOPs and bytes are those of flash_attention_2. The cost: one block walks all keys of a row, so in a decode step one sequence with a long
context leaves most SMs idle, where split_tensor_core divides the context.
"""

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2.flash_attention_2 import small_tiles, workspace_shapes

__all__ = ["attention", "workspace_shapes"]


def attention(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    workspace=None, stream=None,
):  # fmt: skip
    """Causal attention of new tokens over a paged cache, written into `out`; arguments as in kernels/attention/__init__.py."""
    tiles = None if dtype_name(query.dtype) == "float32" else small_tiles(query.shape[2])  # float32 has one tiling per head_dim
    flash_attention_2.attention(
        query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window, max_query_len, stream=stream,
        tiles=tiles,
    )  # fmt: skip
