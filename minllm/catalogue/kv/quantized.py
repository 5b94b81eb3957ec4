"""The launches that write quantised caches, and the fused step with them."""

import numpy as np

from minllm.catalogue.kv.plain import EPSILON, POSITIONS, plain_caches, slots_of
from minllm.catalogue.launch import Launch, Moved, both, describes, in_place
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16
from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.kv.ladder.append import append as launch_append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append as launch_qkv_rope_append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_reference
from minllm.kernels.kv.quantize_groups import quantize_groups as launch_quantize_groups
from minllm.kernels.kv.quantize_groups import quantize_groups_reference
from minllm.kernels.kv.reference import append_reference
from minllm.kernels.quantization.cache import QuantizedCache, allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

WINDOW = 64  # tokens of the residual window of quantize_groups
CODES, SCALES = ("key_codes", "value_codes"), ("key_scales", "value_scales")


def quantized_arrays(noise, found, blocks, block_size, kv_heads, by_channel=False):
    """Codes and scales of keys and of values that nobody has written; scales of float formats are given."""
    arrays = {}
    for name, channels in (("key", by_channel), ("value", False)):
        cache = allocate(found, blocks, block_size, kv_heads, noise.unwritten, np.array, channels)
        scales = noise.random.uniform(0.002, 0.01, kv_heads).astype(np.float32) if found.is_float else cache.scales
        arrays |= {f"{name}_codes": cache.codes, f"{name}_scales": scales}
    return arrays


def smoothing_of(noise, kv_heads, head_dim):
    """Means, factors and their inverses."""
    factor = noise.random.uniform(0.7, 1.4, (kv_heads, head_dim)).astype(np.float32)
    return np.stack([noise.array(factor.shape, np.float32), factor, 1 / factor])


def quantized_caches(found, arrays, by_channel=False):
    """The QuantizedCaches of keys and values that these arrays make."""
    key = QuantizedCache(arrays["key_codes"], arrays["key_scales"], found, arrays.get("smoothing"), by_channel)
    return key, QuantizedCache(arrays["value_codes"], arrays["value_scales"], found)


@describes
def append_quantized(tokens, kv_heads, head_dim, name, dtype=BFLOAT16, block_size=16, group_size=None, skip=True, smooth=True):
    """Keys, smoothed or not, and values as codes of a format."""
    found, used = kv_format(name, head_dim, group_size), (tokens - (-(-tokens // 3) if skip else 0)) * kv_heads

    def arrays(noise):
        blocks, slots = slots_of(noise, tokens, block_size, skip)
        given = {name: noise.array((tokens, kv_heads, head_dim), dtype) for name in ("key", "value")}
        given |= quantized_arrays(noise, found, blocks, block_size, kv_heads) | dict(slot_mapping=slots)
        return given | (dict(smoothing=smoothing_of(noise, kv_heads, head_dim)) if smooth else {})

    def run(function, a, **stream):
        function(a.key, a.value, *quantized_caches(found, vars(a)), a.slot_mapping, **stream)

    written = ("value_codes", "key_codes") if found.is_float else ("value_codes", "key_codes", *SCALES)
    asked = dict.fromkeys(("key", "value"), used * head_dim * dtype.itemsize) | dict.fromkeys(CODES, used * found.code_bytes)
    asked |= dict.fromkeys(SCALES, used * found.groups * 4)
    asked |= dict(smoothing=used * 2 * head_dim * 4) if smooth else {}
    return Launch(
        arrays,
        **both(run, launch_append, append_reference, *written),
        moved=Moved(asked, dict(smoothing=kv_heads * 2 * head_dim * 4) if smooth else {}),
        indices=("slot_mapping",),
        rows=("key", "value", "slot_mapping"),
        exact=True,
    )


@describes
def qkv_rope_append_quantized(
    tokens, kv_heads, head_dim, name, dtype=BFLOAT16, heads=4, norm=False, rotary=True, block_size=16, group_size=None, skip=True,
    smooth=True, recent=False, positions=POSITIONS, loud_end=False,
):  # fmt: skip
    """The fused step with a quantised cache; recent: every token is also kept as it is, in plain caches.

    loud_end: a head's last components are its largest, so that lanes beyond the head which do not treat them alike show in its scale.
    """
    found, all_heads = kv_format(name, head_dim, group_size), heads + 2 * kv_heads

    def arrays(noise):
        blocks, slots = slots_of(noise, tokens, block_size, skip)
        norms = [noise.array((head_dim,), dtype) if norm else None for _ in range(2)]
        qkv = noise.array((tokens, all_heads, head_dim), dtype)
        qkv[..., -8:] *= 16 if loud_end else 1
        given = dict(
            qkv=qkv.reshape(tokens, -1), positions=np.arange(tokens, dtype=np.int32) % positions,
            slot_mapping=slots, cos_sin=table(positions, head_dim) if rotary else None, q_norm=norms[0], k_norm=norms[1],
            query=noise.unwritten((tokens, heads, head_dim), dtype),
        )  # fmt: skip
        given |= quantized_arrays(noise, found, blocks, block_size, kv_heads)
        given |= dict(smoothing=smoothing_of(noise, kv_heads, head_dim)) if smooth else {}
        if recent:
            blocks, slots = slots_of(noise, tokens, TOKEN_GROUP, skip)
            plain = plain_caches(noise, blocks, TOKEN_GROUP, 0, kv_heads, head_dim, dtype)
            given |= dict(recent_key=plain["key_cache"], recent_value=plain["value_cache"], recent_slots=slots)
        return given

    def options_of(arrays):
        kept = tuple(arrays[f"recent_{name}"] for name in ("key", "value", "slots")) if recent else None
        return dict(cos_sin=arrays["cos_sin"], q_norm=arrays["q_norm"], k_norm=arrays["k_norm"], epsilon=EPSILON, recent=kept)

    def reference(qkv, positions, slot_mapping, query, **arrays):
        caches = quantized_caches(found, arrays)
        return dict(query=qkv_rope_append_reference(qkv, positions, slot_mapping, *caches, heads, kv_heads, **options_of(arrays)))

    def call(ops, qkv, positions, slot_mapping, query, **arrays):
        caches = quantized_caches(found, arrays)
        launch_qkv_rope_append(qkv, positions, slot_mapping, *caches, query, **options_of(arrays), stream=ops.stream)

    size, used = tokens * head_dim * dtype.itemsize, (tokens - (-(-tokens // 3) if skip else 0)) * kv_heads
    asked = dict(qkv=all_heads * size, query=heads * size) | dict.fromkeys(CODES, used * found.code_bytes)
    asked |= dict.fromkeys(SCALES, used * found.groups * 4)
    # Both halves of a head ask for the angles of its pairs.
    asked |= dict(cos_sin=2 * tokens * (heads + kv_heads) * head_dim * 4, q_norm=heads * size, k_norm=kv_heads * size)
    asked |= dict(smoothing=tokens * (2 * kv_heads + heads) * head_dim * 4)
    weight = head_dim * dtype.itemsize
    different = dict(cos_sin=tokens * head_dim * 4, q_norm=weight, k_norm=weight, smoothing=3 * kv_heads * head_dim * 4)
    values = ("value_codes",) if found.is_float else ("value_codes", "value_scales")
    keys = ("key_codes",) if found.is_float else ("key_codes", "key_scales")
    kept = ("recent_key", "recent_value") if recent else ()
    return Launch(
        arrays,
        call,
        reference=in_place(reference, *values, *keys, *kept),
        moved=Moved(asked, different) if norm and rotary and smooth and not recent else {},
        indices=("positions", "slot_mapping"),
        rows=("qkv", "positions", "slot_mapping", "query"),
        exact=(*values, "recent_value"),
        slack=2.0**-7 if dtype.itemsize == 2 else 3e-6,
    )


def scattered(lengths, block_size, random):
    """(tables int32 [B, max_blocks], number of blocks): blocks in no order, some of them nobody's."""
    needed = [-(-length // block_size) for length in lengths]
    order = random.permutation(sum(needed) + 2)
    tables = np.zeros((len(lengths), max(1, *needed)), np.int32)
    for b, count in enumerate(needed):
        tables[b, :count] = order[sum(needed[:b]) : sum(needed[:b]) + count]
    return tables, len(order)


@describes
def quantize_groups(query_lens, context_lens, head_dim, kv_heads, block_size, dtype):
    """`query_lens` new tokens of sequences with `context_lens` in all complete groups of recent tokens.

    A context of 0 is padding with one row. The group under way, which must not be read, is NaN.
    """
    form, starts = kv_format("kivi_int4", head_dim), np.subtract(context_lens, query_lens)
    groups = sum(max(0, context // TOKEN_GROUP - start // TOKEN_GROUP) for context, start in zip(context_lens, starts.tolist()))

    def arrays(noise):
        recent_lens = [max(0, context - int(window_start(start, WINDOW))) for start, context in zip(starts, context_lens)]
        tables, blocks = scattered(context_lens, block_size, noise.random)
        recent_tables, recent_blocks = scattered(recent_lens, TOKEN_GROUP, noise.random)
        given = {f"recent_{name}": noise.array((recent_blocks, TOKEN_GROUP, kv_heads, head_dim), dtype) for name in ("key", "value")}
        for b, length in enumerate(recent_lens):
            if length % TOKEN_GROUP:
                for array in given.values():
                    array[recent_tables[b, length // TOKEN_GROUP], length % TOKEN_GROUP :] = np.nan
        rows = [max(1, query) if not context else query for query, context in zip(query_lens, context_lens)]
        batch = dict(query_start=np.cumsum([0, *rows]), context_lens=context_lens, block_tables=tables)
        batch |= dict(recent_lens=recent_lens, recent_tables=recent_tables)
        given |= quantized_arrays(noise, form, blocks, block_size, kv_heads, by_channel=True)
        return given | {name: np.asarray(array, np.int32) for name, array in batch.items()}

    def run(function, a, **stream):
        options = dict(stream, max_query_len=max(1, *query_lens)) if stream else {}
        batch = (a.query_start, a.context_lens, a.block_tables, a.recent_lens, a.recent_tables)
        function(a.recent_key, a.recent_value, *quantized_caches(form, vars(a), by_channel=True), *batch, **options)

    rows = groups * TOKEN_GROUP * kv_heads
    moved = dict.fromkeys(("recent_key", "recent_value"), rows * head_dim * dtype.itemsize) | dict.fromkeys(CODES, rows * form.code_bytes)
    moved |= dict(key_scales=groups * kv_heads * head_dim * 4, value_scales=rows * form.groups * 4)
    return Launch(
        arrays,
        **both(run, launch_quantize_groups, quantize_groups_reference, "key_codes", "value_codes", *SCALES),
        moved=Moved(moved),
        indices=("query_start", "context_lens", "block_tables", "recent_lens", "recent_tables"),
        exact=True,
    )
