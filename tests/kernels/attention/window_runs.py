"""A launch of attention with a residual window, with poisoned outputs and scratch, judged by the definition."""

from dataclasses import replace

import numpy as np

from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.residual_window import residual_window
from tests.kernels.attention.cases import GUARD_ROWS
from tests.kernels.attention.window_cases import expected_output, make_window_arrays

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # relative error per number, twice that of rounding to nearest


def poisoned(device):
    """make_workspace's functions: floats that are NaN, and counts."""
    return lambda shape, dtype: device.array(np.full(shape, np.nan, dtype)), lambda shape, dtype: device.array(np.zeros(shape, dtype))


def on_device(device, arrays):
    """The arrays of a WindowArrays, in their order, where kernels reach them."""
    caches = [replace(c, codes=device.array(c.codes), scales=device.array(c.scales)) for c in (arrays.key_cache, arrays.value_cache)]
    return [device.array(arrays.query), *caches, *map(device.array, arrays.arguments[3:])]


def run_window(device, case, seed=0):
    """Run a WindowCase, and judge what was written; returns the output."""
    arrays = make_window_arrays(case, seed)
    scale, longest = case.head_dim**-0.5, max(1, *case.query_lens)
    guarded = np.full((len(arrays.query) + 2 * GUARD_ROWS, *arrays.query.shape[1:]), np.nan, case.dtype)
    query, key_cache, value_cache, recent_key, recent_value, *batch = on_device(device, arrays)
    shapes = residual_window.workspace_shapes(
        arrays.query, arrays.key_cache, arrays.block_tables, arrays.recent_key, arrays.recent_tables, longest
    )
    guarded = device.array(guarded)
    residual_window.attention(
        query, key_cache, value_cache, recent_key, recent_value, guarded[GUARD_ROWS : GUARD_ROWS + len(arrays.query)], *batch,
        scale, case.residual_window, case.sliding_window, longest, make_workspace(shapes, *poisoned(device)),
    )  # fmt: skip
    guarded = np.asarray(device.host(guarded)).astype(np.float64)
    assert np.isnan(guarded[:GUARD_ROWS]).all() and np.isnan(guarded[-GUARD_ROWS:]).all(), "the kernel wrote outside of its output"
    check_window(case, arrays, guarded[GUARD_ROWS:-GUARD_ROWS])
    return guarded[GUARD_ROWS:-GUARD_ROWS]


def check_window(case, arrays, out):
    """Queries times scales, weights, both parts' outputs and the merged one are rounded: an error is a few roundings, the common one about
    one."""
    expected = expected_output(case, arrays, case.head_dim**-0.5)
    assert not np.isnan(out).any(), f"{np.isnan(out).sum()} elements are NaN: not written, or poison was read"
    error, rounding = np.abs(out - expected), ROUNDING[np.dtype(case.dtype).name]
    assert error.max(initial=0) <= 2 * rounding * np.abs(expected).max(initial=0)
    assert np.sqrt(np.mean(error**2)) <= 1.5 * rounding * np.sqrt(np.mean(expected**2))
