"""A launch that tells its log-sum-exp, judged by float64 over the keys that each row sees."""

import numpy as np

from minllm.catalogue.launch import on_device
from minllm.catalogue.noise import SHORT, Noise
from tests.kernels.attention.oracles import at, meaning, rows_of
from tests.kernels.launches import GuardedOps

LENS = ("query_start", "context_lens", "block_tables")


def expected_log_sum_exp(launch, arrays):
    """float64 [T, heads], to base 2; -inf for rows that see no key."""
    query, heads, kv_heads = arrays["query"], launch.shape["heads"], launch.shape["kv_heads"]
    codes = {name: array for name, array in arrays.items() if name.endswith(("codes", "scales"))}
    keys_of, lse = meaning(launch.shape, codes)[0] if codes else arrays["key_cache"], np.full(query.shape[:2], -np.inf)
    for row, position, table in rows_of(*(arrays[name] for name in LENS)):
        keys = at(keys_of, table, np.arange(position + 1)).repeat(heads // kv_heads, axis=1)
        scores = np.einsum("khd,hd->hk", keys, query[row].astype(np.float64)) / np.sqrt(launch.shape["head_dim"])
        lse[row] = np.logaddexp2.reduce(scores / np.log(2), axis=1)
    return lse


def check_log_sum_exp(device, launch):
    """Run the launch, and judge the log-sum-exp of every row."""
    arrays, ops = launch.arrays(Noise(length=SHORT)), GuardedOps(device)
    found = ops.host(launch.run(ops, {name: on_device(ops, one) for name, one in arrays.items()})["lse"])
    expected = expected_log_sum_exp(launch, arrays)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-3)
    assert np.isneginf(expected).any()
