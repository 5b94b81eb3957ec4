"""Attention over a quantised cache with a residual window: the newest keys and values are in full precision.

reference.py defines which keys each row reads as codes, and how the recent ones are stored. The two parts are two calls of existing
kernels, each restricted to its part (window_keys.py), and merge_states.py combines their outputs:

                   codes                          recent keys
    decode steps   split_quantized                split_tensor_core
    prompts        flash_attention_2_quantized    flash_attention_2

In a decode step a sequence has one row, and its recent keys are exactly those of the recent cache: split_tensor_core needs no restriction.

Measured: docs/results/h200.json, "decode attention, quantised", variant "residual_window", beside split_tensor_core in bfloat16. A single
short context is slower, because three launches cost more than codes save.

FLOPs and bytes: those of both kernels over their keys, and of the merge. A row sees residual_window to residual_window + TOKEN_GROUP - 1
recent keys, so the cost of their part does not grow with the context.
"""

from minllm.kernels.arguments import dtype_name
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.choice import choose_quantized
from minllm.kernels.attention.common.arguments import check_arguments
from minllm.kernels.attention.common.merge_states import merge_states
from minllm.kernels.attention.common.workspace import scratch_arrays
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.runtime.kernel import check

PARTS = ("codes", "recent")


def kernels_for(max_query_len, key_cache):
    """(module for the codes, module for the recent keys)."""
    recent = "split_tensor_core" if max_query_len == 1 else "flash_attention_2"  # variants that write the log-sum-exp
    return VARIANTS[choose_quantized(max_query_len, key_cache)], VARIANTS[recent]


def workspace_shapes(query, key_cache, block_tables, recent_key, recent_tables, max_query_len=None):
    """The workspace of `attention`: name -> (shape, dtype). Pass the same max_query_len here and to `attention`."""
    tokens, heads, _ = query.shape
    shapes = {"codes_out": (tuple(query.shape), dtype_name(query.dtype))} | {f"{part}_lse": ((tokens, heads), "float32") for part in PARTS}
    inputs = ((key_cache, block_tables), (recent_key, recent_tables))
    for part, module, (cache, tables) in zip(PARTS, kernels_for(max_query_len, key_cache), inputs, strict=True):
        shapes |= {f"{part}_{name}": found for name, found in module.workspace_shapes(query, cache, tables).items()}
    return shapes


def attention(
    query,
    key_cache,
    value_cache,
    recent_key,
    recent_value,
    out,
    query_start,
    context_lens,
    block_tables,
    recent_lens,
    recent_tables,
    scale,
    residual_window,
    sliding_window=0,
    max_query_len=None,
    workspace=None,
    stream=None,
):
    """Attention of new tokens over codes and recent keys, written into `out`.

    key_cache, value_cache: QuantizedCaches. context_lens, block_tables: cover all keys of a sequence, though only codes are read.
    recent_key, recent_value, recent_lens, recent_tables: as in attention_with_window_reference. residual_window: R, a positive multiple of
    TOKEN_GROUP. The others as in kernels/attention/__init__.py. Raises KernelArgumentError for float32, and for inconsistent arguments.
    """
    check(residual_window >= TOKEN_GROUP, f"residual_window is {residual_window}; it must be a positive multiple of {TOKEN_GROUP} keys")
    check(dtype_name(query.dtype) != "float32", "attention over a quantised cache takes float16 and bfloat16 queries, not float32")
    recent = (query, recent_key, recent_value, out, query_start, recent_lens, recent_tables)
    check_arguments(*recent, scale, sliding_window, max_query_len)
    check_arguments(query, key_cache, value_cache, out, query_start, context_lens, block_tables, scale, quantized=True)
    shapes = workspace_shapes(query, key_cache, block_tables, recent_key, recent_tables, max_query_len)
    scratch = scratch_arrays(workspace, shapes, query)
    codes_out, codes_lse, recent_lse = scratch["codes_out"], scratch["codes_lse"], scratch["recent_lse"]
    codes = (query, key_cache, value_cache, codes_out, query_start, context_lens, block_tables)
    of_codes, of_recent = kernels_for(max_query_len, key_cache)
    options = dict(sliding_window=sliding_window, max_query_len=max_query_len, stream=stream)
    of_codes.attention(*codes, scale, workspace=part_of(scratch, "codes_"), residual_window=residual_window, lse=codes_lse, **options)
    bound = {} if max_query_len == 1 else {"residual_window": residual_window}
    of_recent.attention(*recent, scale, workspace=part_of(scratch, "recent_"), lse=recent_lse, **bound, **options)
    merge_states(codes_out, codes_lse, out, recent_lse, out, query_start, stream)


def part_of(scratch, prefix):
    """The workspace of one part, with the names that its kernel uses."""
    return {name.removeprefix(prefix): array for name, array in scratch.items() if name.startswith(prefix)}
