"""A launch of an attention variant over a paged cache of codes, in which all that no row sees is poison: NaN, or scales that are NaN."""

import numpy as np

from minllm.catalogue.attention.moved import FORMULAS_OF_CODES, Sizes
from minllm.catalogue.attention.paged import BLOCK_SIZE, INDICES, LARGE, SLACK, as_sequences, batch_of, launch_variant, lengths, seen_slots
from minllm.catalogue.kv.quantized import quantized_arrays, quantized_caches
from minllm.catalogue.launch import Launch, describes, returns
from minllm.catalogue.noise import WithoutContents
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.flash_attention_3.float8_reference import float8_reference
from minllm.kernels.attention.flash_attention_3.prompts import shape_for
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.quantization.formats import kv_format

NAN = 0x7F  # in both float formats
FINITE = 0xBF  # without the highest bit of an exponent, no code of fp8 is NaN or infinite
SPREAD = 3.46  # the width of a uniform distribution with deviation 1
WEIGHTS = 2.0**-10  # rounding of the softmax weights, which are float16 whatever the queries are
# A weight of 4 bits is turned into its neighbour by the last bits of its score. The reference has the same roundings but sums in float32; a
# GPU's tensor cores keep some 14 bits of a sum of fp8 products. Emulated so in NumPy, results of these launches move by up to 0.048 of the
# largest, 0.001 as a root mean square.
FLOAT8_WEIGHTS, FLOAT8_WEIGHTS_RMS = 2.0**-4, 2.0**-9


def coded_caches(noise, found, seen, kv_heads, magnitude=1.0):
    """Arrays of codes, that all may occur, and their scales, by name; `seen` [blocks, block_size]: the slots that rows see.

    Numbers in integer formats have mean 0 and deviation 1.
    """
    arrays = quantized_arrays(noise, found, *seen.shape, kv_heads, found.keys_by_channel)
    if isinstance(noise, WithoutContents):
        return arrays
    for array in arrays.values():
        if array.dtype == np.uint8:
            array[:] = noise.random.integers(0, 256, array.shape, np.uint8) & np.uint8(FINITE if found.is_float else 255)
        elif found.is_float:
            array[:] = noise.random.uniform(1, 3, array.shape)
        else:  # pairs of a scale and a zero
            array[:] = noise.random.uniform(0.9, 1.1, array.shape) * (SPREAD / found.levels, -SPREAD / 2)
    arrays["key_scales"] *= arrays["key_scales"].dtype.type(magnitude)
    groups = seen.reshape(len(seen), -1, found.token_group).any(axis=-1) if found.keys_by_channel else seen
    for name, slots in (("key", groups), ("value", seen)):
        arrays[f"{name}_codes"].swapaxes(1, 2)[~seen] = NAN if found.is_float else 255
        if not found.is_float:
            arrays[f"{name}_scales"].swapaxes(1, 2)[~slots] = np.nan
    return arrays


def multiplied(found, codes, variant):
    """The keys and values that a variant multiplies; FlashAttention-2 rounds code * scale + zero to float16."""
    caches = quantized_caches(found, codes, found.keys_by_channel)
    if variant != "flash_attention_2_quantized" or found.is_float:
        return caches
    with np.errstate(invalid="ignore"):  # poison
        return [cache.read(lambda array: array).astype(np.float16) for cache in caches]


def before_windows(residual_window, query_start, context_lens, block_tables):
    """The batch in which every row is a sequence of its own, of the keys that the row reads as codes."""
    sequence = np.searchsorted(query_start, np.arange(query_start[-1]), side="right") - 1
    position = context_lens[sequence] - query_start[sequence + 1] + np.arange(query_start[-1])
    return np.arange(query_start[-1] + 1), window_start(position, residual_window), block_tables[sequence]


@describes
def quantized_attention(
    variant, query_lens: lengths, context_lens: lengths, form, heads=4, kv_heads=2, head_dim=64, dtype=BFLOAT16, block_size=BLOCK_SIZE,
    group_size=None, sliding_window=0, magnitude=1.0, residual_window=0, lse=False, **options,
):  # fmt: skip
    """As paged.attention, over codes of a format that all may occur; options: those of the variant's launcher.

    magnitude: of queries and of the scales of keys. residual_window: of recent keys, which rows do not see.
    """
    found, scale, module = kv_format(form, head_dim, group_size), head_dim**-0.5, VARIANTS[variant]
    if residual_window:
        options["residual_window"] = residual_window

    def arrays(noise):
        blocks, lens = batch_of(noise, query_lens, context_lens, block_size)
        stops = window_start(lens["context_lens"] - 1, residual_window) if residual_window else None
        seen = seen_slots((blocks, block_size), query_lens, context_lens, lens["block_tables"], sliding_window, stops)
        caches, rows = coded_caches(noise, found, seen, kv_heads, magnitude), (sum(query_lens), heads, head_dim)
        return dict(query=noise.array(rows, dtype, magnitude), **caches, out=noise.unwritten(rows, dtype), **lens)

    def call(ops, query, out, query_start, context_lens, block_tables, **caches):
        lens = dict(query_start=query_start, context_lens=context_lens, block_tables=block_tables)
        caches = quantized_caches(found, caches, found.keys_by_channel)
        also = dict(max_query_len=max(1, *query_lens), sliding_window=sliding_window, **options)
        return launch_variant(ops, module, query, *caches, out, lens, scale, lse, **also)

    def reference(query, out, query_start, context_lens, block_tables, **caches):
        lens = query_start, context_lens, block_tables
        lens = before_windows(residual_window, *lens) if residual_window else lens
        if variant == "flash_attention_3_float8":
            coded, tiles = quantized_caches(found, caches), options.get("shape")
            tiles = tiles or shape_for(head_dim, max(query_lens), True, block_size, block_tables.shape[1])
            if module.why_not(query, coded[0], block_tables, tiles) is None:  # else the fallback computes, with codes as numbers
                return float8_reference(query, *coded, *lens, scale, sliding_window, tiles.key_tile)
        return attention_reference(query, *multiplied(found, caches, variant), *lens, scale, sliding_window)

    moved = {}
    if len(query_lens) == 1 and not sliding_window and variant in FORMULAS_OF_CODES:
        sizes = Sizes(query_lens[0], context_lens[0], heads, kv_heads, head_dim, dtype.itemsize, block_size)
        moved = FORMULAS_OF_CODES[variant](sizes, found, options)
    weights = FLOAT8_WEIGHTS if variant == "flash_attention_3_float8" else WEIGHTS
    slack = max(SLACK[dtype], weights) + (magnitude**2 - 1) * LARGE
    rows = ("query", "out")
    return Launch(arrays, call, returns(("out",), reference), moved, indices=INDICES, rows=rows, alone=as_sequences, slack=slack)
