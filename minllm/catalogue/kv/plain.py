"""The launches that write plain caches: T tokens of D components and KV heads, of b bytes; and the residual window's."""

import numpy as np

from minllm.catalogue.launch import Launch, Moved, both, calls, describes, in_place, returns
from minllm.catalogue.rope import table
from minllm.kernels.kv.compact_path import compact_path as launch_compact_path
from minllm.kernels.kv.compact_path import compact_path_reference
from minllm.kernels.kv.copy_blocks import copy_blocks_of_layers, copy_blocks_reference
from minllm.kernels.kv.ladder.append import append as launch_append
from minllm.kernels.kv.layout import layer_of
from minllm.kernels.kv.move_window import move_window as launch_move_window
from minllm.kernels.kv.move_window import window_of_rows
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append as launch_qkv_rope_append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_reference
from minllm.kernels.kv.reference import append_reference
from minllm.kernels.quantization.groups import TOKEN_GROUP

EPSILON = 1e-6
POSITIONS = 50  # in the tables of angles of small launches


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
        **both(run, launch_append, append_reference, "value_cache", "key_cache"),
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
    """Queries, keys and values of one product: split, normalised, rotated, and appended.

    unaligned: qkv begins in the middle of a vector.
    """
    size, item = tokens * head_dim * dtype.itemsize, dtype.itemsize
    rotated, all_heads = heads + kv_heads, heads + 2 * kv_heads

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
    asked |= dict(cos_sin=tokens * rotated * rotary_dim * 4) if rotary_dim else {}
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
