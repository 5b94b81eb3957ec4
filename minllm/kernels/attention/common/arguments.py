"""Argument checks shared by the attention launchers."""

import math
from dataclasses import dataclass

from minllm.errors import KernelArgumentError
from minllm.kernels.arguments import check_layout, dtype_name
from minllm.runtime.kernel import check

LOG2_E = 1.4426950408889634  # kernels compute exp(x) as 2 ** (x * LOG2_E), because the GPU has an instruction for 2 ** x
DTYPES = ("float32", "float16", "bfloat16")
MAX_HEAD_DIM = 256
MOST_BLOCK_ELEMENTS = 2**31 - 1  # elements of a layer's keys in one block of the cache: kernels use 32-bit offsets within a block


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of one call, read from the arrays' shapes."""

    tokens: int  # T, new tokens of all sequences
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    sequences: int  # B
    max_blocks: int  # columns of the block tables

    @property
    def group(self):
        """Query heads that share one KV head."""
        return self.heads // self.kv_heads

    @property
    def max_context_len(self):
        """The most keys that a sequence can have: its row of the block table ends there."""
        return self.max_blocks * self.block_size


def sizes_of(query, key_cache, block_tables):
    """AttentionSizes from query [T, heads, head_dim], key_cache [num_blocks, block_size, kv_heads, head_dim], block_tables [B, blocks]."""
    tokens, heads, head_dim = query.shape
    _, block_size, kv_heads, _ = key_cache.shape
    sequences, max_blocks = block_tables.shape
    return AttentionSizes(tokens, heads, kv_heads, head_dim, block_size, sequences, max_blocks)


def check_arguments(
    query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, sliding_window=0, max_query_len=None,
    quantized=False,
):  # fmt: skip
    """The AttentionSizes of consistent arguments; raises KernelArgumentError for inconsistent ones.

    quantized: the caches must be QuantizedCaches of one format, not arrays of the query's dtype. Messages that name a dtype are
    formatted only on errors, because launches are frequent.
    """
    check(query.ndim == 3, f"query has shape {query.shape}; it must be [tokens, heads, head_dim]")
    check(key_cache.ndim == 4, f"key_cache has shape {key_cache.shape}; it must be [num_blocks, block_size, kv_heads, head_dim]")
    check(block_tables.ndim == 2, f"block_tables has shape {block_tables.shape}; it must be [sequences, max_blocks]")
    sizes = sizes_of(query, key_cache, block_tables)
    dtype = dtype_name(query.dtype)
    check(dtype in DTYPES, f"attention takes {', '.join(DTYPES)}; the query is {dtype}")
    if quantized:
        for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
            if not hasattr(cache, "codes"):
                raise KernelArgumentError(f"{name} is not quantised, but an array of {cache.dtype}; take a variant for arrays")
        key_cache.check_values(value_cache)
    arrays = {"out": out} if quantized else {"key_cache": key_cache, "value_cache": value_cache, "out": out}
    for name, array in arrays.items():
        if dtype_name(array.dtype) != dtype:
            raise KernelArgumentError(f"{name} is {array.dtype} and the query {dtype}; they must have one dtype")
    same_shape = tuple(value_cache.shape) == tuple(key_cache.shape)
    check(same_shape, f"value_cache has shape {value_cache.shape}; it must be the key_cache's, {key_cache.shape}")
    check(tuple(out.shape) == tuple(query.shape), f"out has shape {out.shape}; it must be the query's, {query.shape}")
    check(key_cache.shape[3] == sizes.head_dim, f"the cache holds head_dim {key_cache.shape[3]}, the query has {sizes.head_dim}")
    whole = sizes.head_dim % 8 == 0 and 8 <= sizes.head_dim <= MAX_HEAD_DIM
    check(whole, f"head_dim {sizes.head_dim} is not supported; it must be a multiple of 8 from 8 to {MAX_HEAD_DIM}")
    check(sizes.heads % sizes.kv_heads == 0, f"{sizes.heads} query heads cannot share {sizes.kv_heads} KV heads evenly")
    for name, array, length in (("query_start", query_start, sizes.sequences + 1), ("context_lens", context_lens, sizes.sequences)):
        check(tuple(array.shape) == (length,), f"{name} has shape {array.shape}; {sizes.sequences} sequences need ({length},)")
    for name, array in (("query_start", query_start), ("context_lens", context_lens), ("block_tables", block_tables)):
        if dtype_name(array.dtype) != "int32":
            raise KernelArgumentError(f"{name} is {array.dtype}; it must be int32")
    check(scale > 0, f"scale is {scale}; it must be positive, usually 1 / sqrt(head_dim)")
    check(sliding_window >= 0, f"sliding_window is {sliding_window}; it must be 0 (none) or the number of keys that a row sees")
    check(max_query_len is None or max_query_len >= 1, f"max_query_len is {max_query_len}; it must be at least 1")
    if quantized:  # split_quantized and flash_attention_2_quantized check the layout of codes and scales themselves
        block_elements = math.prod(key_cache.codes.shape[1:])
    else:
        check_layout("key_cache", key_cache)
        check_layout("value_cache", value_cache)
        same_strides = key_cache.strides[1] == value_cache.strides[1]
        check(same_strides, f"value_cache has strides {value_cache.strides}; it must lie like the key_cache, {key_cache.strides}")
        block_elements = sizes.block_size * key_cache.strides[1] // key_cache.dtype.itemsize
    check(
        block_elements <= MOST_BLOCK_ELEMENTS,
        f"a block of the cache has {block_elements} elements; kernels address up to {MOST_BLOCK_ELEMENTS} within a block",
    )
    return sizes


def check_single_tokens(name, sizes, max_query_len, splits=None):
    """Raise KernelArgumentError for more than one new token per sequence or fewer than one split; name: the variant's."""
    check(
        max_query_len in (None, 1) and sizes.tokens <= sizes.sequences,
        f"{name} takes one new token per sequence; given {sizes.tokens} tokens of {sizes.sequences} sequences with max_query_len "
        f"{max_query_len}: use flash_attention_2",
    )
    check(splits is None or splits >= 1, f"splits is {splits}; it must be at least 1")


def check_lse(sizes, lse):
    """Raise KernelArgumentError unless lse is None or float32 [tokens, heads]."""
    if lse is not None:
        wanted = (sizes.tokens, sizes.heads)
        if tuple(lse.shape) != wanted or dtype_name(lse.dtype) != "float32":
            raise KernelArgumentError(f"lse is {lse.dtype} {tuple(lse.shape)}; it must be float32 {wanted}, [tokens, heads]")


def query_len_bound(max_query_len, sizes):
    """The bound on the new tokens of one sequence, from which grids are computed: the caller's, else all tokens of the batch."""
    return sizes.tokens if max_query_len is None else max_query_len
