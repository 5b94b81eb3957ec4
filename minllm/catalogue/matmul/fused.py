"""GEMMs with what engines fuse around them: norms, residual streams, and queries, keys and values on the way to their places."""

import numpy as np

from minllm.catalogue.launch import Launch, Moved, calls, describes, in_place, returns
from minllm.catalogue.matmul.places import CODED, PLAIN, cache_arrays, caches_of, in_their_places, places_moved
from minllm.catalogue.matmul.products import EPSILON, lost, matmul_flops, normed
from minllm.catalogue.rope import table
from minllm.catalogue.rows import BFLOAT16, FLOAT32
from minllm.kernels.activation.silu import silu_and_multiply_reference
from minllm.kernels.matmul.flat import fused
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.kernels.matmul.gemv.gemv_qkv import gemv_qkv_rope_append as launch_gemv_qkv
from minllm.kernels.matmul.reference import matmul_reference


@describes
def gemv_qkv_rope_append(
    m, heads, kv_heads, head_dim, k, dtype=BFLOAT16, bias=False, skip=True, tiling=None, codes=None, smooth=False
):  # fmt: skip
    """Queries, rotated, and keys and values in the cache, from the RMSNorm of x. skip: the last of several tokens has no slot.

    codes: the 8-bit float format of the cache; None: a plain one. smooth: its keys are smoothed.
    """
    width = (heads + 2 * kv_heads) * head_dim

    def arrays(noise):
        x, norm, weight = noise.array((m, k), dtype), noise.array((k,), dtype), noise.array((width, k), dtype)
        slots = noise.random.permutation(12)[:m].astype(np.int32)
        slots[m - 1 :] = -1 if skip and m > 1 else slots[m - 1]
        places = dict(positions=np.arange(m, dtype=np.int32)[::-1].copy(), slot_mapping=slots, cos_sin=table(m, head_dim))
        caches = cache_arrays(noise, kv_heads, head_dim, k, dtype, codes, smooth)
        given = dict(x=x, norm=norm, weight=weight, bias=noise.array((width,), dtype) if bias else None)
        return given | places | dict(query=noise.unwritten((m, heads, head_dim), dtype)) | caches

    def call(ops, **arrays):
        key, value, given = caches_of(arrays, codes)
        launch_gemv_qkv(**given, key_cache=key, value_cache=value, epsilon=EPSILON, stream=ops.stream, tiling=tiling)

    def reference(x, norm, weight, bias, **places):
        return in_their_places(matmul_reference(normed(x, norm), weight, bias, np.float32), codes=codes, **places)

    return Launch(
        arrays,
        call,
        reference=in_place(reference, *(CODED if codes else PLAIN)),
        moved={} if skip else qkv_gemv_moved(m, heads, kv_heads, head_dim, k, dtype.itemsize, tiling, codes, smooth),
        lost=lost(k),
    )


def qkv_gemv_moved(m, heads, kv_heads, head_dim, k, b, tiling, codes, smooth):
    """What it moves if no warps share a row of weight: each warp asks for x and the norm, each lane for the angles of a pair."""
    n = (heads + 2 * kv_heads) * head_dim
    warps, threads = n // tiling.rows, 32 * n // tiling.rows
    asked = dict(x=m * k * b * warps, norm=m * k * b * warps, weight=n * k * b)
    other, different = places_moved(m, heads, kv_heads, head_dim, b, threads, codes, smooth)
    return Moved(asked | other, dict(x=m * k * b, norm=k * b) | different)


# Each thread of the fused kernels' epilogue asks for an item of eight outputs before it knows whether the item is its own.
EPILOGUE_THREADS = 128


@describes
def linear_add(m, n, k, dtype=BFLOAT16, bias=False, tiling=None):
    """A flat GEMM of whole numbers, whose result is added to the residual stream; its norm is left unfinished."""

    def arrays(noise):
        shapes = dict(x=(m, k), weight=(n, k), residual=(m, n), norm=(n,))
        given = {name: noise.whole_numbers(shape, dtype) for name, shape in shapes.items()}
        return given | dict(bias=noise.whole_numbers((n,), dtype) if bias else None)

    def reference(x, weight, bias, residual, norm):
        stream = (matmul_reference(x, weight, bias, np.float32) + residual.astype(np.float32)).astype(dtype)
        rows, rounded = fused.choose_fused_tiling(m, n, k).rows if tiling is None else tiling.rows, stream.astype(np.float32)
        squares = np.square(rounded).reshape(m, -1, rows).sum(axis=2).T.copy()
        return stream, (rounded * norm.astype(np.float32)).astype(dtype), squares

    call = calls(fused.linear_add, epsilon=EPSILON, tiling=tiling)
    moved = {} if tiling is None else linear_add_moved(m, n, k, dtype.itemsize, tiling)
    return Launch(arrays, call, returns(("stream", "scaled", "squares"), reference), moved, exact=True)


def linear_add_moved(m, n, k, b, tiling):
    """What it moves, if tiles are whole."""
    tiles, out = n // tiling.rows, m * n * b
    items = tiles * tiling.splits * EPILOGUE_THREADS * 8 * b
    asked = dict(x_map=m * k * b * tiles, weight_map=n * k * b, residual=items, norm=items, out=out, scaled=out, out_squares=4 * m * tiles)
    return Moved(asked, dict(x_map=m * k * b, residual=out, norm=n * b), matmul_flops(m, n, k))


def deferred(scaled, squares=None):
    """A DeferredNorm for GEMMs, which do not read its stream; `scaled` itself without squares."""
    return scaled if squares is None else DeferredNorm(scaled, scaled, squares, EPSILON)


def finished(scaled, squares=None):
    """The norm of a DeferredNorm in float32."""
    x = scaled.astype(np.float32)
    return x if squares is None else x / np.sqrt(squares.sum(axis=0)[:, None] / x.shape[1] + np.float32(EPSILON))


def unfinished(noise, m, k, parts, dtype):
    """The rows of x, of whole numbers, and squares in parts if there are any."""
    squares = dict(squares=np.abs(noise.array((parts, m), FLOAT32)) + FLOAT32.type(1)) if parts else {}
    return dict(scaled=noise.whole_numbers((m, k), dtype)) | squares


@describes
def gated_of_deferred_norm(m, n, k, parts, dtype=BFLOAT16, tiling=None):
    """silu(y @ gate.T) * (y @ up.T), y being a norm with squares in parts that the kernel finishes."""

    def arrays(noise):
        gate_up = noise.array((2 * n, k), dtype, k**-0.5)  # float16 has room for the products of gates and ups
        return unfinished(noise, m, k, parts, dtype) | dict(gate_up=gate_up, out=noise.unwritten((m, n), dtype))

    def call(ops, gate_up, out, **x):
        fused.gated(deferred(**x), gate_up, out, stream=ops.stream, tiling=tiling)

    def reference(scaled, squares, gate_up):
        return silu_and_multiply_reference(matmul_reference(finished(scaled, squares), gate_up, out_dtype=np.float32)).astype(dtype)

    return Launch(arrays, call, returns(("out",), reference), moved={}, lost=lost(k))


@describes
def flat_qkv_rope_append(m, heads, kv_heads, head_dim, k, parts=0, dtype=BFLOAT16, bias=False, skip=False, tiling=None):
    """Queries, rotated, and keys and values in the cache; of normalised rows, or of a norm with squares in parts, which is finished here.

    skip: the last token has no slot, and slots and positions are in no order.
    """
    width = (heads + 2 * kv_heads) * head_dim

    def arrays(noise):
        slots = np.arange(m, dtype=np.int32)
        positions = slots % 4
        if skip:
            slots, positions = noise.random.permutation(slots), noise.random.permutation(positions)
            slots[-1] = -1
        caches = {name: noise.array((-(-m // 4), 4, kv_heads, head_dim), dtype) for name in PLAIN}
        places = dict(positions=positions, slot_mapping=slots, cos_sin=table(4, head_dim))
        given = unfinished(noise, m, k, parts, dtype) | dict(weight=noise.whole_numbers((width, k), dtype))
        given |= dict(bias=noise.array((width,), dtype) if bias else None)
        return given | places | dict(query=noise.unwritten((m, heads, head_dim), dtype)) | caches

    def call(ops, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, **x):
        places = positions, slot_mapping, cos_sin, query, key_cache, value_cache
        fused.qkv_rope_append(deferred(**x), weight, bias, *places, stream=ops.stream, tiling=tiling)

    def reference(scaled, weight, bias, squares=None, **places):
        return in_their_places(matmul_reference(finished(scaled, squares), weight, bias, np.float32), **places)

    moved = {} if tiling is None or skip else flat_qkv_moved(m, heads, kv_heads, head_dim, k, dtype.itemsize, tiling)
    return Launch(arrays, call, in_place(reference, *PLAIN), moved, lost=lost(k))


def flat_qkv_moved(m, heads, kv_heads, head_dim, k, b, tiling):
    """What it moves, if tiles are whole, of eight tokens at four positions."""
    n, kept = (heads + 2 * kv_heads) * head_dim, m * kv_heads * head_dim * b
    blocks, rotated = (count * head_dim // tiling.rows * tiling.splits for count in (heads + 2 * kv_heads, heads + kv_heads))
    index = 4 * EPILOGUE_THREADS * blocks
    asked = dict(x_map=m * k * b * n // tiling.rows, weight_map=n * k * b, positions=index, slot_mapping=index)
    asked |= dict(cos_sin=EPILOGUE_THREADS * 16 * 4 * rotated, query=m * heads * head_dim * b, key_cache=kept, value_cache=kept)
    different = dict(x_map=m * k * b, positions=4 * m, slot_mapping=4 * m, cos_sin=4 * head_dim * 4)
    return Moved(asked, different, matmul_flops(m, n, k))
