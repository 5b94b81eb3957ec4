"""Launchers of the flat GEMMs that are fused with their neighbours in a decode step: 2 to 64 sequences on Hopper.

    linear_add         x @ weight.T + residual, and the first part of the norm after it (deferred_norm.py)
    gated              silu(gate) * up of a stream with an unfinished norm
    qkv_rope_append    from the stream to queries and the cache (rope_append.py)

A layer then takes five kernels, attention included, instead of eight. Each kernel less saves the wait between two kernels, during which
memory is idle except for loads of the next weights. `minllm bench step --parts` measures the waits that remain.
"""

from collections.abc import Callable

from minllm.kernels.arguments import ceil_div, check_array, rows_begin_on
from minllm.kernels.kv.layout import by_slot
from minllm.kernels.matmul.arguments import FLOAT32, HALF_DTYPES, check_arguments, check_gated_arguments, has_wgmma, padded_rows
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm, deferred_norm_kernel
from minllm.kernels.matmul.flat.mainloop import launch_flat_wgmma
from minllm.kernels.matmul.flat.rope_append import rope_append_kernel
from minllm.kernels.matmul.flat.wgmma_tiling import TILE_K, FlatWgmmaTiling, choose_tiling, deepest
from minllm.kernels.matmul.qkv_arguments import check_qkv
from minllm.runtime.device import sms_here
from minllm.runtime.kernel import check
from minllm.tiles.warpgroup import ROWS

FEWEST_ROWS = 2  # gemv.py has the same fusions for one row
MOST_ROWS = 64  # registers hold what the epilogue of two items per thread loads


def fits_fused(x, weight) -> bool:
    """Whether these kernels take x and weight on a GPU that has wgmma: 16 bits, few rows, and outputs in whole tiles that TMA can load."""
    few = FEWEST_ROWS <= x.shape[0] <= MOST_ROWS and x.dtype in HALF_DTYPES
    return few and weight.shape[0] % 256 == 0 and rows_begin_on(16, x, weight)


def choose_fused_tiling(m: int, n: int, k: int, gated: bool = False, most_rows: int = 256) -> FlatWgmmaTiling:
    """The tiling for m rows of x and n outputs, with at most most_rows rows of weight per block."""
    tokens = padded_rows(m)
    tiling = choose_tiling(tokens, n, k, gated)
    if gated and 2 * n <= 2 * ROWS * sms_here():
        return deepest(2, tokens, 1)  # all blocks at once
    if gated or not isinstance(tiling, FlatWgmmaTiling) or tiling.sharers > 1:
        return deepest(1, tokens, 1, blocks=2)
    return tiling if tiling.rows <= most_rows else deepest(1, tokens, tiling.splits)


def check_fused(m: int, *arrays) -> None:
    """Raise KernelArgumentError on a GPU without wgmma, for too many rows, or rows that do not begin on multiples of 16 bytes."""
    check(has_wgmma(arrays[0]), "fused flat GEMMs need a GPU of compute capability 9.0")
    check(m <= MOST_ROWS, f"fused flat GEMMs take up to {MOST_ROWS} rows of x, not {m}")
    check(rows_begin_on(16, *arrays), "rows must begin on multiples of 16 bytes")


def linear_add(
    x, weight, bias, residual, norm, epsilon: float, empty: Callable, stream=None, tiling: FlatWgmmaTiling | None = None
) -> DeferredNorm:
    """The DeferredNorm of x @ weight.T + bias + residual: x [M, K], weight [N, K], bias [N] or None, residual [M, N], norm [N].

    empty(shape, dtype) makes arrays. One dtype, float16 or bfloat16. Raises KernelArgumentError for shapes and dtypes that do not fit.
    """
    m, n, k = check_arguments(x, weight, residual, bias, HALF_DTYPES)
    check_array("residual", residual, (x.dtype,), M=m, N=n)
    check_array("norm", norm, (x.dtype,), N=n)
    check_fused(m, x, weight, residual, norm)
    tiling = tiling or choose_fused_tiling(m, n, k)
    check(n % tiling.rows == 0, f"weight has {n} rows; {tiling} takes multiples of {tiling.rows}")
    tokens, tiles = padded_rows(m, tiling.sharers), n // tiling.rows
    out, scaled = empty((m, n), x.dtype), empty((m, n), x.dtype)
    squares = empty((tiles, m), FLOAT32)
    chosen = deferred_norm_kernel(tokens, tiling, x.dtype.name, False, 0)
    arguments = (bias, None, residual, norm, out, scaled, squares, ceil_div(k, TILE_K), n, float(epsilon))
    launch_flat_wgmma(chosen, x, weight, arguments, tokens, tiling, tiles, False, stream)
    return DeferredNorm(out, scaled, squares, epsilon)


def gated(x: DeferredNorm, gate_up, out, stream=None, tiling: FlatWgmmaTiling | None = None) -> None:
    """Write silu(y @ gate.T) * (y @ up.T) into `out` [M, I], y being the finished norm of x; gate_up [2 * I, K] as in gated_flat."""
    check_gated_arguments(x.scaled, gate_up, out, HALF_DTYPES)
    (m, n), k = out.shape, x.scaled.shape[1]
    check_fused(m, x.scaled, gate_up, out)
    tiling = tiling or choose_fused_tiling(m, n, k, gated=True)
    columns = tiling.rows // 2
    check(n % columns == 0, f"out has {n} columns; {tiling} takes multiples of {columns}")
    tokens = padded_rows(m, tiling.sharers)
    chosen = deferred_norm_kernel(tokens, tiling, out.dtype.name, True, x.squares.shape[0])
    arguments = (None, x.squares, None, None, out, None, None, ceil_div(k, TILE_K), k, float(x.epsilon))
    launch_flat_wgmma(chosen, x.scaled, gate_up, arguments, tokens, tiling, n // columns, True, stream)


def qkv_rope_append(
    x, weight, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache, stream=None, tiling: FlatWgmmaTiling | None = None
) -> None:
    """Write the queries of x into `query` [M, heads, head_dim], and its keys and values into the caches.

    x: normalised rows [M, hidden], or a DeferredNorm. weight [(heads + 2 kv_heads) * head_dim, hidden], queries first, then keys, then
    values; bias: one per row of weight, or None. positions, slot_mapping int32 [M], not checked; a slot of -1 writes nothing. cos_sin
    float32 [positions, head_dim], see rope_table. Raises KernelArgumentError for shapes and dtypes, and heads that are no multiple of 64.
    """
    squares, epsilon = (x.squares, x.epsilon) if isinstance(x, DeferredNorm) else (None, 0.0)
    x = x.scaled if isinstance(x, DeferredNorm) else x
    check_array("x", x, HALF_DTYPES, tokens=None, hidden=None)
    (m, k), dtype = x.shape, x.dtype
    n, head_dim = check_qkv(x, bias, positions, slot_mapping, cos_sin, query, key_cache, value_cache), query.shape[2]
    check_array("weight", weight, (dtype,), rows=n, hidden=k)
    check_fused(m, x, weight, query, cos_sin)
    check(head_dim % 64 == 0, f"query has heads of {head_dim} components; a block takes 32 pairs, so head_dim is a multiple of 64")
    tiling = tiling or choose_fused_tiling(m, n, k, most_rows=head_dim)
    columns = tiling.rows // 2
    check(head_dim // 2 % columns == 0, f"{tiling} takes {columns} pairs of a head, which has {head_dim // 2}")
    tokens, caches = padded_rows(m, tiling.sharers), (by_slot(key_cache), by_slot(value_cache))
    chosen = rope_append_kernel(tokens, tiling, dtype.name, head_dim, 0 if squares is None else squares.shape[0])
    arguments = (bias, squares, positions, slot_mapping, cos_sin, query, *caches, ceil_div(k, TILE_K), k, float(epsilon))
    launch_flat_wgmma(chosen, x, weight, arguments, tokens, tiling, n // (2 * columns), True, stream)
