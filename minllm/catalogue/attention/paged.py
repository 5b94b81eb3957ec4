"""A launch of an attention variant over a paged cache, of which all that no row sees is NaN."""

import numpy as np

from minllm.catalogue.attention.moved import FORMULAS, Sizes
from minllm.catalogue.kv.plain import last_layer
from minllm.catalogue.launch import Launch, describes, returns, taken
from minllm.catalogue.rows import BFLOAT16, FLOAT16, FLOAT32
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.reference import attention_reference

BLOCK_SIZE, SPARE_BLOCKS = 16, 2
LENS = ("query_start", "context_lens", "block_tables")
INDICES = (*LENS, "arrivals")
# Error of a row in terms of the largest output: tensor cores take weights of 16 bits, and 2**x is rounded in float32.
SLACK = {FLOAT32: 2.0**-19, FLOAT16: 2.0**-10, BFLOAT16: 2.0**-7}
CAPPED = 2.0**-22  # a capped score is a difference of float32 numbers of up to two caps
LARGE = 2.0**-22  # scores grow with the square of the magnitude, and the rounding of a weight's exponent with them
SUMMED = 2.0**-24  # a sum of n values that cancel is as large as the square root of n of them
TENSOR_CORES = ("HMMA.16816.F32*", "LDSM.16.M88.4", "LDSM.16.MT88.4", "LDGSTS*128*", "MUFU.EX2")


def lengths(given):
    """The lengths of sequences, given as a tuple, or as a number for one sequence."""
    return (given,) if isinstance(given, int) else given


def batch_of(noise, query_lens, context_lens, block_size):
    """(blocks of the cache, query_start, context_lens and block_tables by name): blocks in random order, more than needed."""
    counts = [-(-context // block_size) for context in context_lens]
    order = noise.random.permutation(sum(counts) + SPARE_BLOCKS).astype(np.int32)
    tables = np.zeros((len(counts), max(1, *counts)), np.int32)
    for table, count, last in zip(tables, counts, np.cumsum(counts), strict=True):
        table[:count] = order[last - count : last]
    start = np.cumsum([0, *query_lens]).astype(np.int32)
    return len(order), dict(query_start=start, context_lens=np.array(context_lens, np.int32), block_tables=tables)


def seen_slots(shape, query_lens, context_lens, block_tables, sliding_window=0, stops=None):
    """Which slots of a cache [num_blocks, block_size] hold a key that a row sees; stops: one past the last, where not all are there."""
    seen = np.zeros(shape, bool)
    stops = context_lens if stops is None else stops
    for table, tokens, context, stop in zip(block_tables, query_lens, context_lens, stops, strict=True):
        first = max(0, context - tokens - sliding_window + 1) if sliding_window else 0
        position = np.arange(first, stop)
        seen[table[position // shape[1]], position % shape[1]] = True
    return seen


def launch_variant(ops, module, query, key_cache, value_cache, out, lens, scale, lse, **options):
    """Launch a variant with the workspace that it needs; lse: and with an array for the log-sum-exp of every row -> that array."""
    shapes = module.workspace_shapes(query, key_cache, lens["block_tables"], **taken(module.workspace_shapes, options))
    results = dict(lse=ops.empty(query.shape[:2], FLOAT32)) if lse else {}
    options |= dict(workspace=make_workspace(shapes, ops.empty, ops.zeros), stream=ops.stream)
    module.attention(query, key_cache, value_cache, out, **lens, scale=scale, **options, **results)
    return results


def as_sequences(tokens, query_start, context_lens, block_tables, **_):
    """The batch in which these rows are sequences of their own, each with the keys up to its position."""
    sequence = np.searchsorted(query_start, tokens, side="right") - 1
    after = query_start[sequence + 1] - tokens - 1  # rows of the same sequence
    seen = np.maximum(context_lens[sequence] - after, 0)
    return dict(query_start=np.arange(len(tokens) + 1), context_lens=seen, block_tables=block_tables[sequence])


@describes
def attention(
    variant, query_lens: lengths, context_lens: lengths, heads=4, kv_heads=2, head_dim=64, dtype=BFLOAT16, block_size=BLOCK_SIZE,
    sliding_window=0, magnitude=1.0, layers=0, lse=False, **options,
):  # fmt: skip
    """Sequence b has query_lens[b] new tokens, and context_lens[b] keys with them, 0 for padding; options: those of the variant's launcher.

    magnitude: standard deviation of queries and keys. layers: of a token, that lie side by side in the cache. lse: whether it also writes
    the log-sum-exp of every row.
    """
    scale, module, cap = head_dim**-0.5, VARIANTS[variant], options.get("soft_cap", 0.0)

    def arrays(noise):
        blocks, lens = batch_of(noise, query_lens, context_lens, block_size)
        shape = (blocks, block_size, *((layers,) if layers else ()), kv_heads, head_dim)
        caches = dict(key_cache=noise.array(shape, dtype, magnitude), value_cache=noise.array(shape, dtype))
        seen = seen_slots(shape[:2], query_lens, context_lens, lens["block_tables"], sliding_window)
        for cache in caches.values():
            cache[~seen] = np.nan
            if layers:
                cache[:, :, :-1] = np.nan
        rows = (sum(query_lens), heads, head_dim)
        return dict(query=noise.array(rows, dtype, magnitude), **caches, out=noise.unwritten(rows, dtype), **lens)

    def call(ops, query, key_cache, value_cache, out, **lens):
        caches = last_layer(key_cache, layers), last_layer(value_cache, layers)
        also = dict(max_query_len=max(1, *query_lens), sliding_window=sliding_window, **options)
        return launch_variant(ops, module, query, *caches, out, lens, scale, lse, **also)

    def reference(query, key_cache, value_cache, query_start, context_lens, block_tables):
        caches = last_layer(key_cache, layers), last_layer(value_cache, layers)
        return attention_reference(query, *caches, query_start, context_lens, block_tables, scale, sliding_window, cap)

    moved = {}
    if len(query_lens) == 1 and not sliding_window and not layers and variant in FORMULAS:
        sizes = Sizes(query_lens[0], context_lens[0], heads, kv_heads, head_dim, dtype.itemsize, block_size)
        moved = FORMULAS[variant](sizes, options)
    slack = SLACK[dtype] + cap * CAPPED + (magnitude**2 - 1) * LARGE + max(context_lens) ** 0.5 * SUMMED
    return Launch(
        arrays, call, returns(("out",), reference), moved, indices=INDICES, slack=slack, rows=("query", "out"), alone=as_sequences
    )  # fmt: skip
