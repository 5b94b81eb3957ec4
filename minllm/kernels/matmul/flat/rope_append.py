"""Flat GEMM of the QKV projection; its epilogue rotates queries and keys and appends keys and values to the cache.

    q, k, v = split(x @ weight.T + bias)           q, k = rope(q, position), rope(k, position)
    key_cache[slot], value_cache[slot] = k, v      query = q

RoPE rotates component d of a head against component d + D / 2. So a block owns rows of weight in two halves, half a head apart, and a
thread of the epilogue has eight pairs of one token. Positions, slots and angles are loaded while TMA loads x. Nothing is rounded between
the sums and the end. With `squares`, x is the scaled residual stream of a deferred RMSNorm (deferred_norm.py).

Bytes: the weights once, the outputs once, and for each token 4 D bytes of angles per tile of weight, from L2.

Source: kernels/kv/qkv_rope_append.py, which does the same to the output of a projection; Su et al. 2021, "RoFormer".
"""

import functools
from typing import NamedTuple

from numba import cuda, float32, int32, int64

from minllm import ptx
from minllm.kernels.matmul.flat.deferred_norm import items_per_thread, make_inverse_rms
from minllm.kernels.matmul.flat.mainloop import make_mainloop
from minllm.kernels.matmul.flat.output import PADDING
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.kernels.rope.rotate import make_rotate
from minllm.kernels.vector import vector_access
from minllm.runtime.array_protocol import Array
from minllm.runtime.kernel import kernel
from minllm.tiles.unrolled import unrolled
from minllm.tiles.warpgroup import THREADS, sync_blocks, wait_for_blocks


class Kept(NamedTuple):
    """What a thread loads for each of its items, a token's eight pairs, before the sums are done."""

    squares: Array  # [items] its shares of the sums of squares of x's rows
    slots: Array  # [items]
    cosines: Array  # [items, 8]
    sines: Array  # [items, 8]


def make_epilogue(columns: int, tokens: int, writers: int, dtype: str, head_dim: int, parts: int, added):
    """Device functions (prepare, write) of `writers` threads for `columns` pairs of rows; added: as in output.make_write."""
    half, stride, eights = head_dim // 2, 2 * columns + PADDING, columns // 8
    items, tokens_apart = items_per_thread(tokens, columns, writers), writers // eights
    _, _, store = vector_access(dtype)
    load_angles, rotate = make_rotate(dtype, head_dim)
    load_squares, _, inverse_rms = make_inverse_rms(columns, parts)

    @cuda.jit(device=True, forceinline=True)
    def prepare_item(i, kept, squares, positions, slot_mapping, cos_sin, rotated, first_pair, m, writer):
        token = min(int32(writer // eights + i * tokens_apart), int32(m - 1))
        position, kept.slots[i] = positions[token], slot_mapping[token]
        if squares is not None:
            kept.squares[i] = load_squares(squares, token, writer)
        if rotated:
            load_angles(cos_sin, int64(position), first_pair, kept.cosines[i], kept.sines[i])

    prepare_items = unrolled(prepare_item, items)

    @cuda.jit(device=True, forceinline=True)
    def prepare(kept, squares, positions, slot_mapping, cos_sin, rotated, first_pair, m, writer):
        """Load the operands of this thread's pairs; rotated: whether their head rotates."""
        ptx.griddepcontrol_wait()
        prepare_items(kept, squares, positions, slot_mapping, cos_sin, rotated, first_pair, m, writer)

    @cuda.jit(device=True, forceinline=True)
    def eight_sums(values, scale, bias, sums, start, place, row):
        """values[0:8] = scale * the sums at `place` of rows of weight from `row` on, plus bias."""
        for four in range(0, 8, 4):
            values[four], values[four + 1], values[four + 2], values[four + 3] = added(sums, start, place + four)
        for k in range(8):
            values[k] *= scale
            if bias is not None:
                values[k] += float32(bias[row + k])

    @cuda.jit(device=True, forceinline=True)
    def store_halves(array, element, a, b):
        store(array, element, a, 0)
        store(array, element + half, b, 0)

    @cuda.jit(device=True, forceinline=True)
    def write_item(
        i, kept, bias, squares, query, key_cache, value_cache, sums, start, head, first_pair, m, writer, width, epsilon
    ):  # fmt: skip
        heads, kv_heads = int32(query.shape[1]), int32(key_cache.shape[1])
        token = int32(writer // eights + i * tokens_apart)
        place, row = min(token, int32(m - 1)) * stride + writer % eights * 8, int32(head * head_dim + first_pair)
        a, b = cuda.local.array(8, float32), cuda.local.array(8, float32)
        scale = float32(1.0)
        if squares is not None:
            scale = inverse_rms(kept.squares[i], width, epsilon)
        eight_sums(a, scale, bias, sums, start, place, row)
        eight_sums(b, scale, bias, sums, start, place + columns, row + half)
        if head < heads + kv_heads:
            rotate(a, b, 0, kept.cosines[i], kept.sines[i])
        if token < m and head < heads:
            store_halves(query, int64(token * heads + head) * head_dim + first_pair, a, b)
        elif token < m and kept.slots[i] >= 0:
            # A cache that is a view of a larger array has gaps between its tokens.
            first = int64(kept.slots[i]) * ptx.token_stride(key_cache, int64(kv_heads * head_dim)) + first_pair
            if head < heads + kv_heads:
                store_halves(key_cache, first + (head - heads) * head_dim, a, b)
            else:
                store_halves(value_cache, first + (head - heads - kv_heads) * head_dim, a, b)

    return prepare, unrolled(write_item, items)


@functools.cache
def rope_append_kernel(tokens: int, tiling: FlatWgmmaTiling, dtype: str, head_dim: int, parts: int):
    """The kernel for x and weight of `dtype`, up to `tokens` rows of x, a multiple of 8, and heads of `head_dim` components.

    parts: rows of `squares`, if there are any.
    """
    splits, sharers, consumers = tiling.splits, tiling.sharers, tiling.warpgroups * THREADS
    cluster, columns, writers, half = splits * sharers, tiling.rows // 2, splits * consumers, head_dim // 2
    items, eights, tiles_of_head = items_per_thread(tokens, columns, writers), columns // 8, half // columns
    tile_of_block, open, begin, consume, produce, added = make_mainloop(tokens, tiling, dtype, halves=True)
    prepare, write = make_epilogue(columns, tokens, writers, dtype, head_dim, parts, added)

    @kernel(launch_bounds=(tiling.threads, 1), dependent_launch=True)
    def matmul_flat_rope_append_kernel(
        x_map,  # x [M, K] in boxes [tokens, 64]
        weight_map,  # weight [(heads + 2 * kv_heads) * head_dim, K] in boxes [rows / 2, 64]
        bias,  # a number per row of weight, or None
        squares,  # [parts, M], to divide the sums by the root mean square of rows of `width` elements; or None
        positions,  # [M]
        slot_mapping,  # [M]
        cos_sin,  # [positions, head_dim]
        query,  # [M, heads, head_dim]
        key_cache,  # [slots, kv_heads, head_dim]
        value_cache,  # the same
        k_steps,
        width,
        epsilon,
    ):
        ptx.griddepcontrol_launch_dependents()
        memory = cuda.shared.array(0, float32, 1024)
        thread, tile, m = int32(cuda.threadIdx.x), tile_of_block(), int32(query.shape[0])
        head, within = int32(tile // tiles_of_head), int32(tile % tiles_of_head * columns)
        row = int32(head * head_dim + within)
        share, ring, sums_at = open(memory, k_steps, row, int32(row + half), m)
        if thread == consumers:
            begin(weight_map, ring, share)
        sync_blocks(sharers)
        writer = int32(share.split * consumers + thread)
        first_pair = int32(within + writer % eights * 8)
        slots, shares = cuda.local.array(items, int32), cuda.local.array(items, float32)
        kept = Kept(shares, slots, cuda.local.array((items, 8), float32), cuda.local.array((items, 8), float32))
        if thread < consumers:
            rotated = head < query.shape[1] + key_cache.shape[1]
            prepare(kept, squares, positions, slot_mapping, cos_sin, rotated, first_pair, m, writer)
            consume(memory, sums_at, ring, share, thread)
        elif thread == consumers:
            produce(x_map, weight_map, ring, share)
        sync_blocks(cluster)
        if thread < consumers:
            arrays = (bias, squares, query, key_cache, value_cache)
            write(kept, *arrays, memory, sums_at, head, first_pair, m, writer, width, epsilon)
        if splits > 1:  # a block must not exit while others may read its shared memory
            wait_for_blocks()

    return matmul_flat_rope_append_kernel
