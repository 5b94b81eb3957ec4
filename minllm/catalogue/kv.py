"""The launches of the kernels that write the KV cache: T tokens of D components and KV heads, of b bytes."""

import numpy as np

from minllm.catalogue.launch import (
    FP8_TARGETS,
    MICROSECONDS,
    ONE_SET,
    TARGETS,
    WIDE,
    Launch,
    MachineCode,
    Measured,
    Moved,
    both_in_place,
    calls,
    describes,
    each,
    in_place,
    returns,
)
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16, DTYPES, FLOAT16, FLOAT32
from minllm.kernels.attention.residual_window.reference import window_start
from minllm.kernels.kv.append import append as launch_append
from minllm.kernels.kv.append import append_reference
from minllm.kernels.kv.compact_path import compact_path as launch_compact_path
from minllm.kernels.kv.compact_path import compact_path_reference
from minllm.kernels.kv.copy_blocks import copy_blocks_of_layers, copy_blocks_reference
from minllm.kernels.kv.layout import layer_of
from minllm.kernels.kv.move_window import move_window as launch_move_window
from minllm.kernels.kv.move_window import window_of_rows
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append as launch_qkv_rope_append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_reference
from minllm.kernels.kv.qkv_rope_append_vector import MANY_TOKENS
from minllm.kernels.kv.quantize_groups import quantize_groups as launch_quantize_groups
from minllm.kernels.kv.quantize_groups import quantize_groups_reference
from minllm.kernels.quantization.cache import QuantizedCache, allocate
from minllm.kernels.quantization.formats import kv_format
from minllm.kernels.quantization.groups import TOKEN_GROUP

EPSILON = 1e-6
POSITIONS = 50  # in the tables of angles of small launches
WINDOW = 64  # tokens of the residual window of quantize_groups
CODES, SCALES = ("key_codes", "value_codes"), ("key_scales", "value_scales")


def slots_of(noise, tokens, block_size, skip):
    """(blocks, a slot for each token in no order): more blocks than needed; skip: every third token has none."""
    blocks = -(-tokens // block_size) + 2
    slots = noise.random.permutation(blocks * block_size)[:tokens].astype(np.int32)
    slots[::3] = -1 if skip else slots[::3]
    return blocks, slots


def last_layer(cache, layers):
    """The cache of one layer: itself, or the last of layers that lie side by side."""
    return layer_of(cache, layers - 1) if layers else cache


def plain_caches(noise, blocks, block_size, layers, kv_heads, head_dim, dtype):
    """Caches of keys and values that nobody has written yet."""
    shape = (blocks, block_size, *((layers,) if layers else ()), kv_heads, head_dim)
    return dict(key_cache=noise.unwritten(shape, dtype), value_cache=noise.unwritten(shape, dtype))


@describes
def append(tokens, kv_heads, head_dim, dtype, block_size=16, skip=True, layers=0):
    """Keys and values into the caches of one layer; layers: of a token, that lie side by side in the cache."""
    used = (tokens - (-(-tokens // 3) if skip else 0)) * kv_heads * head_dim * dtype.itemsize

    def arrays(noise):
        blocks, slots = slots_of(noise, tokens, block_size, skip)
        given = {name: noise.array((tokens, kv_heads, head_dim), dtype) for name in ("key", "value")}
        return given | plain_caches(noise, blocks, block_size, layers, kv_heads, head_dim, dtype) | dict(slot_mapping=slots)

    def run(function, a, **stream):
        function(a.key, a.value, last_layer(a.key_cache, layers), last_layer(a.value_cache, layers), a.slot_mapping, **stream)

    return Launch(
        arrays,
        **both_in_place(run, launch_append, append_reference, "value_cache", "key_cache"),
        moved=Moved(dict.fromkeys(("key", "value", "key_cache", "value_cache"), used)),
        indices=("slot_mapping",),
        rows=("key", "value", "slot_mapping"),
        exact=True,
    )


@describes
def qkv_rope_append(
    tokens, kv_heads, head_dim, dtype, heads=4, rotary_dim=0, interleaved=False, norm=False, block_size=16, skip=True, layers=0,
    magnitude=1.0, unaligned=False, positions=POSITIONS,
):  # fmt: skip
    """Queries, keys and values of one product: split, normalised, turned, and appended.

    unaligned: qkv begins in the middle of a vector.
    """
    size, item = tokens * head_dim * dtype.itemsize, dtype.itemsize
    turned, all_heads = heads + kv_heads, heads + 2 * kv_heads

    def arrays(noise):
        blocks, slots = slots_of(noise, tokens, block_size, skip)
        norms = [noise.array((head_dim,), dtype) if norm else None for _ in range(2)]
        return dict(
            qkv=noise.array((int(unaligned) + tokens * all_heads * head_dim,), dtype, magnitude),
            positions=np.arange(tokens, dtype=np.int32) % positions, slot_mapping=slots,
            cos_sin=table(positions, rotary_dim) if rotary_dim else None, q_norm=norms[0], k_norm=norms[1],
            **plain_caches(noise, blocks, block_size, layers, kv_heads, head_dim, dtype),
            query=noise.unwritten((tokens, heads, head_dim), dtype),
        )  # fmt: skip

    def rows_of(qkv):
        return qkv[int(unaligned) :].reshape(-1, all_heads * head_dim)

    def reference(qkv, positions, slot_mapping, key_cache, value_cache, query, **options):
        caches = last_layer(key_cache, layers), last_layer(value_cache, layers)
        chosen = dict(options, interleaved=interleaved, epsilon=EPSILON)
        found = qkv_rope_append_reference(rows_of(qkv), positions, slot_mapping, *caches, heads, kv_heads, **chosen)
        return dict(query=found)

    def call(ops, qkv, positions, slot_mapping, key_cache, value_cache, query, **options):
        caches = last_layer(key_cache, layers), last_layer(value_cache, layers)
        chosen = dict(options, interleaved=interleaved, epsilon=EPSILON, stream=ops.stream)
        launch_qkv_rope_append(rows_of(qkv), positions, slot_mapping, *caches, query, **chosen)

    written = kv_heads * head_dim * item * (tokens - (-(-tokens // 3) if skip else 0))
    asked = dict(qkv=all_heads * size, query=heads * size, key_cache=written, value_cache=written)
    asked |= dict(cos_sin=tokens * turned * rotary_dim * 4) if rotary_dim else {}
    asked |= dict(q_norm=heads * size, k_norm=kv_heads * size) if norm else {}
    different = dict(cos_sin=min(tokens, positions) * rotary_dim * 4, q_norm=head_dim * item, k_norm=head_dim * item)
    return Launch(
        arrays,
        call,
        reference=in_place(reference, "key_cache", "value_cache"),
        moved=Moved(asked, {name: size for name, size in different.items() if name in asked}),
        indices=("positions", "slot_mapping"),
        exact=("value_cache",),
    )


@describes
def copy_blocks(copies, blocks, shape, dtype, layers=1, outward=False):
    """Blocks [*shape] of all layers to other blocks of their own, or to blocks of another array."""
    moved = layers * copies * int(np.prod(shape)) * dtype.itemsize

    def arrays(noise):
        order = noise.random.permutation(blocks)[: copies if outward else 2 * copies]
        targets = 1 + np.arange(copies) if outward else order[copies:]
        given = dict(
            cache=noise.array((layers, blocks, *shape), dtype), copies=np.stack([order[:copies], targets], axis=1).astype(np.int32)
        )
        return given | (dict(to=noise.array((layers, copies + 1, *shape), dtype)) if outward else {})

    def reference(cache, copies, to=None):
        for layer in range(layers):
            copy_blocks_reference(cache[layer], copies, None if to is None else to[layer])

    return Launch(
        arrays,
        call=lambda ops, cache, copies, to=None: copy_blocks_of_layers(cache, copies, ops.stream, to),
        reference=in_place(reference, "to" if outward else "cache"),
        moved=Moved(dict(cache=moved, to=moved)),
        indices=("copies",),
        rows=("copies",),
        exact=True,
    )


@describes
def compact_path(kv_heads, head_dim, dtype, layers=2):
    """The second node of a path moves to the place behind the first; the other rows stay."""
    token = 2 * kv_heads * head_dim * dtype.itemsize
    places = dict(slot_mapping=[7, 2, 4, 6], path=[0, 3, 2, 3], counts=[2, 0, 0, 0])
    return Launch(
        arrays=lambda noise: dict(
            cache=noise.array((layers, 4, 2, 2, kv_heads, head_dim), dtype), **{name: np.int32(one) for name, one in places.items()}
        ),
        call=calls(launch_compact_path),
        reference=in_place(compact_path_reference, "cache"),
        moved=Moved(dict(cache=2 * layers * token)),  # one token is read and written
        indices=("slot_mapping", "path", "counts"),
        exact=True,
    )


@describes
def move_window(rows, window):
    """The residual windows of rows at all kinds of positions, every fifth of them switched off."""
    written = ("slots", "recent_lens", "recent_tables")

    def arrays(noise):
        positions = noise.random.integers(0, 5 * window, rows).astype(np.int32)
        context_lens = np.where(np.arange(rows) % 5 == 3, 0, positions + 1).astype(np.int32)
        given = dict(positions=positions, context_lens=context_lens, rings=noise.random.permutation(rows).astype(np.int32))
        shapes = zip(written, window_of_rows(*given.values(), window), strict=True)
        return given | {name: noise.unwritten(array.shape, np.int32) for name, array in shapes}

    blocks = window // TOKEN_GROUP + 1
    return Launch(
        arrays,
        call=calls(launch_move_window, residual_window=window),
        reference=returns(written, window_of_rows, residual_window=window),
        moved=Moved(
            dict.fromkeys(("positions", "context_lens", "rings", "slots", "recent_lens"), 4 * rows) | dict(recent_tables=4 * rows * blocks)
        ),
        exact=True,
    )


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
        **both_in_place(run, launch_append, append_reference, *written),
        moved=Moved(asked, dict(smoothing=kv_heads * 2 * head_dim * 4) if smooth else {}),
        indices=("slot_mapping",),
        rows=("key", "value", "slot_mapping"),
        exact=True,
    )


@describes
def qkv_rope_append_quantized(
    tokens, kv_heads, head_dim, name, dtype=BFLOAT16, heads=4, norm=False, rotary=True, block_size=16, group_size=None, skip=True,
    smooth=True, recent=False, positions=POSITIONS,
):  # fmt: skip
    """The fused step with a quantised cache; recent: every token is also kept as it is, in plain caches.

    tests/kernels/kv compares the keys, whose norms and turns round differently.
    """
    found, all_heads = kv_format(name, head_dim, group_size), heads + 2 * kv_heads

    def arrays(noise):
        blocks, slots = slots_of(noise, tokens, block_size, skip)
        norms = [noise.array((head_dim,), dtype) if norm else None for _ in range(2)]
        given = dict(
            qkv=noise.array((tokens, all_heads * head_dim), dtype), positions=np.arange(tokens, dtype=np.int32) % positions,
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
        caches = quantized_caches(found, arrays | {name: arrays[name].copy() for name in ("key_codes", "key_scales")})
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
    kept = ("recent_key", "recent_value") if recent else ()
    return Launch(
        arrays,
        call,
        reference=in_place(reference, *values, *kept),
        moved=Moved(asked, different) if norm and rotary and smooth and not recent else {},
        indices=("positions", "slot_mapping"),
        rows=("qkv", "positions", "slot_mapping", "query"),
        scratch=("key_codes", "key_scales"),
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
        **both_in_place(run, launch_quantize_groups, quantize_groups_reference, "key_codes", "value_codes", *SCALES),
        moved=Moved(moved),
        indices=("query_start", "context_lens", "block_tables", "recent_lens", "recent_tables"),
        exact=True,
    )


# name: (head_dim, rotary_dim, interleaved, with QK norm), of heads that the kernel by elements serves.
HEADS = {
    "64": (64, 64, False, False),  # Llama 3.2
    "64_without_positions": (64, 0, False, False),  # GPT-2
    "256_with_norm": (256, 256, False, True),  # Gemma's size with Qwen3's norm: the most components per lane
    "80_interleaved_with_norm": (80, 40, True, True),
}
# The same for heads with halves of whole vectors.
VECTOR_HEADS = {
    "64": (64, 64, False, False),
    "128_without_positions": (128, 0, False, False),
    "128": (128, 128, False, False),
    "128_with_norm": (128, 128, False, True),
}
# (format, head_dim, dtype) of the kernels that write quantised caches.
QUANTIZED = (
    *(("int8", 128, BFLOAT16), ("int8", 96, FLOAT32), ("int4", 64, BFLOAT16), ("int4", 256, BFLOAT16)),
    *(("fp8_e4m3", 128, BFLOAT16), ("fp8_e5m2", 64, BFLOAT16)),
)


def compiled():
    """They are memory-bound: 12 blocks of 4 warps, three quarters of an SM's warps, or fewer with more loads per thread."""
    for dtype in DTYPES:
        yield MachineCode(f"kv/append/elements/{dtype}", append(1, 1, 7, dtype), blocks=12)
        yield MachineCode(f"kv/append/vectors/{dtype}", append(1, 1, 8, dtype), blocks=12, contains=WIDE)
        for name, head in HEADS.items():
            launch = qkv_rope_append(1, 8, head[0], dtype, 32, *head[1:], unaligned=True)
            yield MachineCode(f"kv/qkv_rope_append/{name}/{dtype}", launch, blocks=12)
        for name, head in VECTOR_HEADS.items():
            for heads_per_thread, tokens in ((1, 1), (2, MANY_TOKENS)):
                launch, blocks = qkv_rope_append(tokens, 8, head[0], dtype, 80, *head[1:]), 4 if head[3] else 5
                yield MachineCode(f"kv/qkv_rope_append/vectors/{name}/{heads_per_thread}/{dtype}", launch, blocks, WIDE)
        if dtype.itemsize == 2:  # the layers of a token lie side by side
            launch = qkv_rope_append(MANY_TOKENS, 8, 128, dtype, 32, 128, layers=2)
            yield MachineCode(f"kv/qkv_rope_append/strided/128/{dtype}", launch, blocks=5, contains=WIDE)
    yield MachineCode("kv/move_window", move_window(1, 64), blocks=12)
    yield MachineCode("kv/copy_blocks/bytes", copy_blocks(1, 2, (3, 7), FLOAT16), blocks=12)
    yield MachineCode("kv/copy_blocks/vectors", copy_blocks(1, 2, (16, 8), FLOAT16), blocks=12, contains=WIDE)
    yield MachineCode("kv/compact_path/elements", compact_path(1, 5, FLOAT32), blocks=6)
    yield MachineCode("kv/compact_path/vectors", compact_path(1, 8, FLOAT32), blocks=6, contains=WIDE)
    for name, head_dim, dtype in QUANTIZED:
        end, norm, wide = f"quantized/{name}/{head_dim}/{dtype}", head_dim == 128, WIDE[:1]
        targets = FP8_TARGETS if name.startswith("fp8") else TARGETS
        yield MachineCode(f"kv/append/{end}", append_quantized(1, 8, head_dim, name, dtype), 12, wide, targets=targets)
        step = qkv_rope_append_quantized(1, 8, head_dim, name, dtype, 32, norm)
        yield MachineCode(f"kv/qkv_rope_append/{end}", step, 8, wide, targets=targets)
        if name in ("int8", "fp8_e4m3") and norm:
            step = qkv_rope_append_quantized(1, 8, head_dim, name, dtype, 32, norm, recent=True)
            yield MachineCode(f"kv/qkv_rope_append/recent/{end}", step, 8, wide, targets=targets)
    for head_dim, dtype in ((64, BFLOAT16), (128, BFLOAT16), (256, FLOAT16), (96, FLOAT32)):
        launch = quantize_groups((1,), (32,), head_dim, 8, 32, dtype)
        yield MachineCode(f"kv/quantize_groups/{head_dim}/{dtype}", launch, blocks=4, contains=("LD*128*",))


APPENDED = (
    dict(tokens=3, kv_heads=2, head_dim=40, block_size=4),
    dict(tokens=5, kv_heads=3, head_dim=7, block_size=4),
    dict(tokens=1, kv_heads=9, head_dim=128, skip=False),  # 144 vectors of 8, a block has 128 threads
    dict(tokens=1, kv_heads=1, head_dim=1, block_size=1, skip=False),
    dict(tokens=1, kv_heads=1, head_dim=129, skip=False),
    dict(tokens=4, kv_heads=1, head_dim=8, block_size=1),
    dict(tokens=4, kv_heads=2, head_dim=8, block_size=2, layers=3),
    dict(tokens=3, kv_heads=1, head_dim=7, block_size=2, layers=2),
)
FUSED = (
    dict(tokens=3, kv_heads=2, head_dim=64, rotary_dim=64, norm=True, block_size=4),
    dict(tokens=2, kv_heads=1, head_dim=6, heads=3, rotary_dim=6, interleaved=True, norm=True, block_size=4),
    dict(tokens=1, kv_heads=1, head_dim=2, block_size=1, skip=False, heads=1, rotary_dim=2),
    dict(tokens=4, kv_heads=2, head_dim=64, heads=6, rotary_dim=64),
    dict(tokens=3, kv_heads=2, head_dim=64, heads=2, rotary_dim=64, unaligned=True),
    dict(tokens=2, kv_heads=2, head_dim=64, rotary_dim=64, interleaved=True, norm=True),
    dict(tokens=1, kv_heads=2, head_dim=128, skip=False, heads=2, rotary_dim=128, norm=True),
    dict(tokens=1, kv_heads=3, head_dim=128, skip=False, heads=45, rotary_dim=128, norm=True),  # several blocks a token
    dict(tokens=2, kv_heads=2, head_dim=64, block_size=4, heads=66, rotary_dim=64),  # threads without a head, or without one that turns
    dict(tokens=4, kv_heads=1, head_dim=80, block_size=8, heads=3, rotary_dim=32, norm=True),
    dict(tokens=1, kv_heads=1, head_dim=40, heads=2, rotary_dim=40, interleaved=True),
    dict(tokens=3, kv_heads=2, head_dim=7, block_size=2, heads=2, rotary_dim=6, norm=True),
    dict(tokens=2, kv_heads=1, head_dim=64, heads=1),
    dict(tokens=4, kv_heads=2, head_dim=16, block_size=2, rotary_dim=16, layers=3),
    dict(tokens=3, kv_heads=2, head_dim=7, block_size=2, heads=2, rotary_dim=6, layers=2),
    dict(tokens=1, kv_heads=1, head_dim=1, heads=1, norm=True),
    dict(tokens=1, kv_heads=1, head_dim=16, heads=3, rotary_dim=16, norm=True, magnitude=1e4),
)
COPIED = (
    dict(copies=2, blocks=4, shape=(16, 2, 40), layers=3),
    dict(copies=2, blocks=4, shape=(3, 7), layers=3),
    dict(copies=1, blocks=3, shape=(1, 1, 1)),
    dict(copies=3, blocks=7, shape=(4, 3, 7)),
    dict(copies=1, blocks=3, shape=(5, 1, 129)),
    dict(copies=2, blocks=5, shape=(16, 5, 64)),  # more vectors than one block of threads copies
    dict(copies=1, blocks=3, shape=(2050, 1)),  # more bytes than one block of threads copies
)
GROUPS = (
    ((69,), (69,), 64, 2, 64),  # two groups, the second in the second half of its block, and 5 tokens that wait for theirs to be whole
    ((1, 1, 1), (31, 32, 33), 64, 1, 32),  # only the second has a whole group
    ((1, 1, 0), (160, 128, 0), 32, 2, 64),
    ((70, 3), (70, 97), 96, 1, 96),  # two groups, and one that began before the chunk
    ((34,), (64,), 128, 2, 32),
    ((2,), (65,), 256, 1, 32),
)
QUANTIZED_SMALL = (  # (tokens, kv_heads, head_dim, format) and options of both launches
    dict(tokens=3, kv_heads=2, head_dim=64, name="int8", block_size=4),
    dict(tokens=2, kv_heads=3, head_dim=128, name="int8", smooth=False),
    dict(tokens=3, kv_heads=2, head_dim=96, name="int8", block_size=8),
    dict(tokens=2, kv_heads=1, head_dim=80, name="int8"),
    dict(tokens=8, kv_heads=2, head_dim=96, name="int8", smooth=False),
    dict(tokens=1, kv_heads=1, head_dim=128, name="int8", group_size=16, skip=False),
    dict(tokens=4, kv_heads=1, head_dim=64, name="int4", block_size=1, skip=False),
    dict(tokens=3, kv_heads=2, head_dim=128, name="int4", group_size=64),
    dict(tokens=2, kv_heads=2, head_dim=96, name="int4"),
    dict(tokens=2, kv_heads=1, head_dim=256, name="int4"),
    dict(tokens=4, kv_heads=2, head_dim=64, name="fp8_e4m3"),
    dict(tokens=2, kv_heads=2, head_dim=128, name="fp8_e5m2", smooth=False),
    dict(tokens=1, kv_heads=1, head_dim=256, name="fp8_e4m3", skip=False),
)


def small():
    """Shuffled slots, some of them -1, in caches of which every other number must stay as it is."""
    yield from each(append, APPENDED, dtype=DTYPES)
    yield from each(qkv_rope_append, FUSED, dtype=DTYPES)
    yield from each(copy_blocks, COPIED, dtype=DTYPES)
    yield from each(copy_blocks, COPIED[:4], dtype=(FLOAT16,), outward=[True])
    yield from each(compact_path, [(2, 40, BFLOAT16), (3, 7, BFLOAT16), (3, 8, FLOAT16), (1, 5, FLOAT32)])
    yield from each(move_window, [(3, 64), (1, 32), (7, 128), (129, 64)])
    yield from each(quantize_groups, GROUPS, dtype=(BFLOAT16,))
    yield from each(quantize_groups, GROUPS[4:5], dtype=(FLOAT32, FLOAT16))
    yield qkv_rope_append_quantized(3, 2, 64, "int4", norm=True, block_size=4, skip=False)
    yield from each(qkv_rope_append_quantized, [(3, 1, 32, name) for name in ("int8", "int4", "fp8_e4m3")], smooth=[False])
    yield from each(append_quantized, QUANTIZED_SMALL)
    yield from each(append_quantized, QUANTIZED_SMALL[:1], dtype=(FLOAT32, FLOAT16))


def large():
    """Heads of models, and more tokens than a grid's second axis may have blocks."""
    yield from each(append, [(2049, 8, 128), (130, 5, 67)], dtype=DTYPES)
    fused = (dict(tokens=MANY_TOKENS, kv_heads=12, head_dim=64, heads=12),  # GPT-2's
             dict(tokens=2049, kv_heads=8, head_dim=64, heads=32, rotary_dim=64),
             dict(tokens=130, kv_heads=8, head_dim=128, heads=64, rotary_dim=128, norm=True),
             dict(tokens=1, kv_heads=1, head_dim=256, heads=4, rotary_dim=256, norm=True),  # Gemma's
             dict(tokens=MANY_TOKENS, kv_heads=1, head_dim=256, heads=4, rotary_dim=256, norm=True),
             dict(tokens=33, kv_heads=2, head_dim=256, heads=7, rotary_dim=64, interleaved=True))  # fmt: skip
    yield from each(qkv_rope_append, fused, dtype=DTYPES)
    yield from each(copy_blocks, [(60, 130, (16, 8, 128)), (1, 3, (4096, 8, 64)), (9, 20, (16, 5, 67))], dtype=DTYPES)
    formats = [("int8", 128), ("int8", 96), ("int4", 64), ("int4", 128), ("fp8_e4m3", 128), ("fp8_e5m2", 256)]
    yield from each(append_quantized, [(1031, 8, head_dim, name) for name, head_dim in formats])
    many = ((1,) * 77, tuple(range(1, 540, 7)), 128, 8, 32), ((1000, 1, 333), (1000, 640, 4001), 128, 8, 64)
    yield from each(quantize_groups, many, dtype=(BFLOAT16,))
    yield from each(quantize_groups, GROUPS[3:4], dtype=(FLOAT32, FLOAT16))


def measured():
    """Arrays larger than any cache, in blocks of 16, relative to the rate of a copy."""
    yield Measured(append(65536, 8, 128, BFLOAT16, skip=False), "append", "65536x8x128, bfloat16")
    yield Measured(copy_blocks(4096, 8192, (16, 8, 128), BFLOAT16), "copy_blocks", "4096x16x8x128, bfloat16")
    width, tokens = (32 + 2 * 8) * 128, 10240
    plain = dict(case="10240x(32+2x8)x128, bfloat16", work=2 * tokens * width * 2, set_bytes=2 * tokens * width * 2)
    for variant, norm in (("qkv_rope_append", False), ("qkv_rope_append with norms", True)):
        launch = qkv_rope_append(tokens, 8, 128, BFLOAT16, 32, 128, norm=norm, skip=False, positions=tokens)
        yield Measured(launch, variant, **plain)
    for name in ("int8", "int4", "fp8_e4m3"):
        moved = 2 * 65536 * 8 * (128 * 2 + kv_format(name, 128).bytes_per_head)
        launch = append_quantized(65536, 8, 128, name, skip=False, smooth=False)
        yield Measured(launch, "append_quantized", f"65536x8x128, {name}, bfloat16", work=moved, set_bytes=moved)
        moved = tokens * ((width + 32 * 128) * 2 + 2 * 8 * kv_format(name, 128).bytes_per_head)
        launch = qkv_rope_append_quantized(tokens, 8, 128, name, heads=32, skip=False, smooth=False, positions=tokens)
        size = dict(work=moved, set_bytes=moved, tolerance=0.0)
        yield Measured(launch, "qkv_rope_append_quantized", f"10240x(32+2x8)x128, {name}, bfloat16", **size)
    yield from measured_windows()


def measured_windows():
    """Quantising the groups of a long prompt, and advancing the windows of 64 rows."""
    tokens = 2048 * TOKEN_GROUP
    moved = 2 * tokens * 8 * (128 * 2 + kv_format("kivi_int4", 128).bytes_per_head)
    launch = quantize_groups((tokens,), (tokens,), 128, 8, TOKEN_GROUP, BFLOAT16)
    yield Measured(launch, "quantize_groups", f"{tokens}x8x128, kivi_int4, bfloat16", work=moved, set_bytes=moved)
    yield Measured(move_window(64, 128), "move_window", "64 rows, 128 tokens", unit=MICROSECONDS, work=0, set_bytes=ONE_SET)
