"""A launch that tells its log-sum-exp, judged by float64 over the keys that each row sees."""

from dataclasses import replace

import numpy as np

from minllm.kernels.attention.common.workspace import make_workspace
from tests.kernels.attention.cases import make_arrays
from tests.kernels.attention.quantized_cases import quantize_case
from tests.kernels.attention.window_runs import poisoned


def expected_log_sum_exp(case, arrays):
    """float64 [T, heads], to base 2; NaN for rows of no sequence."""
    lse, row, group = np.full(arrays.query.shape[:2], -np.inf), 0, case.heads // case.kv_heads
    for query_len, context, keys in zip(case.query_lens, case.context_lens, arrays.keys, strict=True):
        for position in range(context - query_len, context):
            for head in range(case.heads if position >= 0 else 0):
                scores = keys[: position + 1, head // group].astype(np.float64) @ arrays.query[row, head].astype(np.float64)
                lse[row, head] = np.logaddexp2.reduce(scores * arrays.scale / np.log(2))
            row += 1
    return lse


def run_log_sum_exp(device, module, case, name=None, **options):
    """Run a variant, over caches in format `name` if given, and judge the log-sum-exp of every row."""
    arrays = make_arrays(case)
    caches, meant = [arrays.key_cache, arrays.value_cache], arrays
    shaping = {} if "tiles" in options else options
    if name:
        *caches, meant = quantize_case(arrays, name)
    shapes = module.workspace_shapes(arrays.query, caches[0], arrays.block_tables, **shaping)
    if name:
        caches = [replace(cache, codes=device.array(cache.codes), scales=device.array(cache.scales)) for cache in caches]
    else:
        caches = [device.array(cache) for cache in caches]
    lse = device.array(np.full(arrays.query.shape[:2], np.nan, np.float32))
    batch = [device.array(getattr(arrays, field)) for field in ("query_start", "context_lens", "block_tables")]
    module.attention(
        device.array(arrays.query), *caches, device.array(np.zeros_like(arrays.query)), *batch, arrays.scale,
        max_query_len=max(1, *case.query_lens), workspace=make_workspace(shapes, *poisoned(device)), lse=lse, **options,
    )  # fmt: skip
    expected = expected_log_sum_exp(case, meant)
    np.testing.assert_allclose(device.host(lse), expected, rtol=0, atol=2e-3)
    assert np.isneginf(expected).any()
