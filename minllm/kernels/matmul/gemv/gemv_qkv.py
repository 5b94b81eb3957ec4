"""GEMV fused with its neighbours, from the residual stream to attention in one decode kernel: norm, QKV projection, RoPE, append.

    q, k, v = split(rms_norm(x) @ weight.T + bias)
    q, k    = rope(q, position), rope(k, position)
    key_cache[slot], value_cache[slot] = k, v            query = q

Unfused, these are three kernels, and in a decode step two of them move only a few kilobytes and cost a launch gap each. The GEMV is that of
gemv.py, with the same traffic: every weight once. Only the assignment of rows to warps differs: RoPE rotates component d of a head against
component d + D / 2, so a warp takes rows in such pairs, has both when its sums are done, and writes them to the query or cache. Position,
slot and angles are loaded with x, long before they are needed. Nothing is rounded between the norm and the end.
Supports RMSNorm, and RoPE on the halves of a head (not interleaved pairs); no norm per head, which needs a head's sum.
Source: kernels/kv/qkv_rope_append.py, kernels/matmul/gemv/gemv.py.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array, rows_begin_on
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.matmul.arguments import MOST_ROWS_OF_GEMV, check_norm
from minllm.kernels.matmul.gemv.gemv import WARP_SHIFT
from minllm.kernels.matmul.gemv.sums import GemvTiling, make_sums
from minllm.kernels.matmul.qkv_arguments import check_qkv
from minllm.ptx import griddepcontrol_launch_dependents
from minllm.runtime.device import ADA, HOPPER, capability_here
from minllm.runtime.kernel import check, kernel, launch
from minllm.tiles.warp import WARP

RESIDENT_WARPS = 24  # warps per SM that have registers for their loads in flight


def make_row_of_pair(half: int):
    """The device function that gives a warp's r-th row of weight: of pair r // 2, the component in the first or second half."""

    @cuda.jit(device=True)
    def row_of_pair(first, r, last):
        pair = min(int64(first + (r >> 1)), last)
        return pair + (pair // half + (r & 1)) * half  # `half` pairs per head

    return row_of_pair


@functools.cache
def gemv_qkv_kernel(m: int, k: int, head_dim: int, dtype: str, tiling: GemvTiling, vectorized: bool):
    """The kernel for `m` rows of `k` elements of `dtype`; a warp computes tiling.rows / 2 pairs of components."""
    rows, warps, splits = tiling.rows, tiling.warps, tiling.splits
    groups, pairs, half = warps // splits, rows // 2, head_dim // 2
    begin, finish = make_sums(m, k, dtype, tiling, vectorized, make_row_of_pair(half))

    bounds = (warps * WARP, RESIDENT_WARPS // warps) if m == 1 else warps * WARP

    @kernel(launch_bounds=bounds, dependent_launch=True, carveout=0)
    def matmul_gemv_qkv_kernel(x, norm, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, epsilon):
        """x [M, K], norm [K], weight [N, K], bias [N] or None, positions, slot_mapping [M], cos_sin [positions, head_dim],
        query [M, heads, head_dim], caches [slots, kv_heads, head_dim]; the grid covers the N / 2 pairs."""
        griddepcontrol_launch_dependents()
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        first = (cuda.blockIdx.x * groups + warp // splits) * pairs
        heads, kv_heads = query.shape[1], key_cache.shape[1]
        last = (heads + 2 * kv_heads) * half - 1
        total, squares = cuda.local.array((m, rows), float32), cuda.local.array(m, float32)
        begin(x, norm, weight, total, squares, first, last, warp, lane)
        slots = cuda.local.array(m, int32)
        cosines, sines = cuda.local.array((m, pairs), float32), cuda.local.array((m, pairs), float32)
        for i in range(m):
            slots[i], position = slot_mapping[i], positions[i]
            for p in range(pairs):
                component = min(int64(first + p), last) % half
                cosines[i, p], sines[i, p] = cos_sin[position, component], cos_sin[position, half + component]
        finish(x, norm, weight, total, squares, first, last, warp, lane, epsilon)
        if lane == 0 and warp % splits == 0:
            for p in range(pairs):
                pair = int64(first + p)
                if pair <= last:
                    head, component = pair // half, pair % half
                    for i in range(m):
                        a, b = total[i, 2 * p], total[i, 2 * p + 1]
                        if bias is not None:
                            a += float32(bias[head * head_dim + component])
                            b += float32(bias[head * head_dim + half + component])
                        cosine, sine = cosines[i, p], sines[i, p]
                        if head < heads:
                            query[i, head, component] = a * cosine - b * sine
                            query[i, head, component + half] = b * cosine + a * sine
                        elif slots[i] >= 0:
                            if head < heads + kv_heads:
                                key_cache[slots[i], head - heads, component] = a * cosine - b * sine
                                key_cache[slots[i], head - heads, component + half] = b * cosine + a * sine
                            else:
                                value_cache[slots[i], head - heads - kv_heads, component] = a
                                value_cache[slots[i], head - heads - kv_heads, component + half] = b

    return matmul_gemv_qkv_kernel


def choose_qkv_tiling(m: int, k: int, dtype, capability: tuple[int, int]) -> GemvTiling:
    """The fastest of ten tilings on an H200, measured in whole decode steps of 1B and 8B models.

    Four rows per warp spill registers before Ada, in float32 before Hopper.
    """
    if m > 1:
        return GemvTiling(rows=2, warps=4, unroll=2, splits=2)
    if k < 4096:
        return GemvTiling(rows=2, warps=8, unroll=4, splits=2)
    return GemvTiling(rows=4 if capability >= (HOPPER if dtype == np.float32 else ADA) else 2, warps=8, unroll=2, splits=2)


def gemv_qkv_rope_append(
    x, norm, epsilon, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, stream=None, tiling=None
) -> None:
    """Write the queries of x [M, hidden] into `query` [M, heads, head_dim], and its keys and values into the caches; M is at most 8.

    norm [hidden] and epsilon: the RMSNorm's. weight [(heads + 2 kv_heads) * head_dim, hidden], queries first, then keys, then values; bias:
    one per row of weight, or None. positions, slot_mapping int32 [M], not checked; a slot of -1 writes nothing. cos_sin float32 [positions,
    head_dim], see rope_table. All other arrays share one dtype: float32, float16 or bfloat16. Raises KernelArgumentError for shapes and
    dtypes that do not fit.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    m, k = x.shape
    check(m <= MOST_ROWS_OF_GEMV, f"gemv multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: project, turn and append apart")
    check_norm(norm, x)
    n = check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache)
    check_array("weight", weight, (x.dtype,), rows=n, hidden=k)
    head_dim = query.shape[2]
    tiling = GemvTiling(*(tiling or choose_qkv_tiling(m, k, x.dtype, capability_here())))
    check(tiling.rows % 2 == 0, f"{tiling}: a warp computes pairs of components, so its rows are even")
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    if m == 0 or n == 0:
        return
    vectorized = rows_begin_on(16, x, weight, norm)
    chosen = gemv_qkv_kernel(m, k, head_dim, x.dtype.name, tiling, vectorized)
    grid = ceil_div(n // 2, tiling.rows // 2 * (tiling.warps // tiling.splits))
    arguments = (x, norm, weight, bias, positions, slot_mapping, cos_sin, query, by_slot(key_cache), by_slot(value_cache), float(epsilon))
    launch(chosen, grid, tiling.warps * WARP, arguments, stream)
