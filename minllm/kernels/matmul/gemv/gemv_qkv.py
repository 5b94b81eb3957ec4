"""GEMV fused with its neighbours, from the residual stream to attention in one decode kernel: norm, QKV projection, RoPE, append.

    q, k, v = split(rms_norm(x) @ weight.T + bias)
    q, k    = rope(q, position), rope(k, position)
    key_cache[slot], value_cache[slot] = k, v            query = q

Unfused, these are three kernels, and in a decode step two of them move only a few kilobytes and cost a launch gap each. The GEMV is that of
gemv.py, with the same traffic: every weight once. Only the assignment of rows to warps differs: RoPE rotates component d of a head against
component d + D / 2, so a warp takes rows in such pairs and has both when its sums are done. Each lane then writes at most one pair of one
row of x to the query or cache (append_pair.py), whose position, slot and angles it loaded with x, long before they are needed. Nothing is
rounded between the norm and the end.
Supports RMSNorm, RoPE on the halves of a head (not interleaved pairs), and caches that are plain or of 8-bit floats; no norm per head,
which needs a head's sum, nor scales that need a head's extremes.
Source: kernels/kv/qkv_rope_append.py, kernels/matmul/gemv/gemv.py.
"""

import functools

import numpy as np
from numba import cuda, float32, int32, int64, uint32

from minllm.kernels.arguments import FLOAT_DTYPES, ceil_div, check_array, rows_begin_on
from minllm.kernels.kv.append_pair import AttentionForm, attention_of, make_append_pair
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
        pair = uint32(min(int32(first + (r >> 1)), last))
        return int64(pair + (pair // uint32(half) + uint32(r & 1)) * uint32(half))  # `half` pairs per head

    return row_of_pair


@functools.cache
def gemv_qkv_kernel(m: int, k: int, dtype: str, tiling: GemvTiling, vectorized: bool, form: AttentionForm):
    """The kernel for `m` rows of `k` elements of `dtype`; a warp computes tiling.rows / 2 pairs of components."""
    rows, warps, splits = tiling.rows, tiling.warps, tiling.splits
    groups, pairs, half = warps // splits, rows // 2, form.head_dim // 2
    begin, finish = make_sums(m, k, dtype, tiling, vectorized, make_row_of_pair(half))
    prepare, write = make_append_pair(form)

    bounds = (warps * WARP, RESIDENT_WARPS // warps) if m == 1 else warps * WARP

    @kernel(launch_bounds=bounds, dependent_launch=True, carveout=0)
    def matmul_gemv_qkv_kernel(x, norm, weight, arrays, epsilon):
        """x [M, K], norm [K], weight [N, K], arrays: an Attention; the grid covers the N / 2 pairs."""
        griddepcontrol_launch_dependents()
        lane = int32(cuda.threadIdx.x) & (WARP - 1)
        warp = int32(cuda.threadIdx.x) >> WARP_SHIFT
        first = int32((cuda.blockIdx.x * groups + warp // splits) * pairs)
        last = int32((arrays.query.shape[1] + 2 * arrays.key_cache.shape[1]) * half - 1)
        total, squares = cuda.local.array((m, rows), float32), cuda.local.array(m, float32)
        begin(x, norm, weight, total, squares, first, last, warp, lane)
        number = uint32(lane)  # of the pair that this lane writes, counted through the rows of x
        row, pair = min(uint32(number // uint32(pairs)), uint32(m - 1)), int32(first + number % uint32(pairs))
        prepared = prepare(arrays, arrays.positions[row], arrays.slot_mapping[row], pair)
        finish(x, norm, weight, total, squares, first, last, warp, lane, epsilon)
        low, high = float32(0), float32(0)
        for i in range(m):
            for p in range(pairs):
                if number == i * pairs + p:
                    low, high = total[i, 2 * p], total[i, 2 * p + 1]
        if number < m * pairs and pair <= last and warp % splits == 0:
            write(arrays, prepared, row, pair, low, high)

    return matmul_gemv_qkv_kernel


def choose_qkv_tiling(m: int, n: int, k: int, dtype, capability: tuple[int, int], has_codes: bool = False) -> GemvTiling:
    """The fastest of ten tilings on an H200, measured in whole decode steps of 1B and 8B models.

    For a half and a quarter of the 8B weight's rows, which two and four tensor ranks have, it is the fastest of 36, or within 0.2 % of it,
    in a rank's whole steps. Four rows per warp spill registers before Ada, in float32 before Hopper, and with has_codes, caches of 8-bit
    floats; if four warps share them, in float32 on every GPU.
    """
    if m > 1:
        return GemvTiling(rows=2, warps=4, unroll=2, splits=2)
    if k < 4096:
        return GemvTiling(rows=2, warps=8, unroll=4, splits=2)
    if has_codes or capability < (HOPPER if dtype == np.float32 else ADA):
        return GemvTiling(rows=2, warps=8, unroll=2, splits=2)
    if n >= 4096 or dtype == np.float32:
        return GemvTiling(rows=4, warps=8, unroll=2, splits=2)
    if n > 2048:
        return GemvTiling(rows=4, warps=4, unroll=2, splits=4)
    return GemvTiling(rows=4, warps=16, unroll=2, splits=4)  # one block per SM, whose warps have registers for the loads of two steps


def gemv_qkv_rope_append(
    x, norm, epsilon, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, stream=None, tiling=None
) -> None:
    """Write the queries of x [M, hidden] into `query` [M, heads, head_dim], and its keys and values into the caches; M is at most 8.

    norm [hidden] and epsilon: the RMSNorm's. weight [(heads + 2 kv_heads) * head_dim, hidden], queries first, then keys, then values; bias:
    one per row of weight, or None. positions, slot_mapping int32 [M], not checked; a slot of -1 writes nothing. cos_sin float32 [positions,
    head_dim], see rope_table. Caches: plain, or QuantizedCaches of 8-bit floats. All other arrays share one dtype: float32, float16 or
    bfloat16. Raises KernelArgumentError for shapes and dtypes that do not fit.
    """
    check_array("x", x, FLOAT_DTYPES, tokens=None, hidden=None)
    m, k = x.shape
    check(m <= MOST_ROWS_OF_GEMV, f"gemv multiplies up to {MOST_ROWS_OF_GEMV} rows of x, not {m}: project, turn and append apart")
    check_norm(norm, x)
    n = check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, takes_codes=True)
    check_array("weight", weight, (x.dtype,), rows=n, hidden=k)
    arrays, form = attention_of(bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache)
    tiling = GemvTiling(*(tiling or choose_qkv_tiling(m, n, k, x.dtype, capability_here(), form.kv_format is not None)))
    check(tiling.rows % 2 == 0, f"{tiling}: a warp computes pairs of components, so its rows are even")
    check(m * tiling.rows // 2 <= WARP, f"{tiling}: a warp has {WARP} lanes to write the pairs of {m} rows of x")
    check(tiling.warps % tiling.splits == 0, f"{tiling}: the warps of a block divide evenly into groups of `splits`")
    if m == 0 or n == 0:
        return
    vectorized = rows_begin_on(16, x, weight, norm)
    chosen = gemv_qkv_kernel(m, k, x.dtype.name, tiling, vectorized, form)
    grid = ceil_div(n // 2, tiling.rows // 2 * (tiling.warps // tiling.splits))
    launch(chosen, grid, tiling.warps * WARP, (x, norm, weight, arrays, float(epsilon)), stream)
