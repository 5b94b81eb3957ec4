"""Outputs of attention over parts of the keys, with their log-sum-exp, and a launch of the merge that is judged by its reference."""

import numpy as np

from minllm.kernels.attention.common.merge_states import merge_states, merge_states_reference
from tests.kernels.guarded import HALF_STEP, SLACK, poisoned


def attend_part(scores, values):
    """(output, log-sum-exp to base 2) of scores [..., keys], to base 2, and values [keys, head_dim], in float64."""
    largest = scores.max(axis=-1, initial=-np.inf)
    weights = np.exp2(scores - np.where(np.isneginf(largest), 0, largest)[..., None])
    total = weights.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return weights @ values / np.where(total == 0, 1, total)[..., None], largest + np.log2(total)


def make_states(tokens, heads, head_dim, dtype, seed=0):
    """Random outputs and log-sum-exps by the names of merge_states' arguments; in rows 0 to 2 the first, the second, both have no keys."""
    random = np.random.default_rng(seed)
    states = {}
    for name, empty in (("first", (0, 2)), ("second", (1, 2))):
        states[name] = random.standard_normal((tokens, heads, head_dim)).astype(dtype)
        states[f"{name}_lse"] = (5 * random.standard_normal((tokens, heads))).astype(np.float32)
        for row in empty:
            states[name][row : row + 1], states[f"{name}_lse"][row : row + 1] = 0, -np.inf
    return states


def run_merge(device, tokens, heads, head_dim, dtype, rows=None, place=None):
    """Merge random states, and judge the result; rows: of sequences; place: which of the inputs is the output."""
    states = make_states(tokens, heads, head_dim, dtype)
    rows = tokens if rows is None else rows
    expected = merge_states_reference(**states)
    arrays = {name: device.array(array) for name, array in states.items()}
    guarded = poisoned(device, states["first"].shape, dtype)
    out = arrays[place] if place else guarded.array
    query_start = device.array(np.array([0, 1, rows], np.int32))
    merge_states(**arrays, out=out, query_start=query_start)
    found = device.host(out) if place else guarded.result()
    untouched = states[place] if place else np.full_like(states["first"], np.nan)
    np.testing.assert_array_equal(found[rows:].view(np.uint16), untouched[rows:].view(np.uint16))
    error = np.abs(found[:rows].astype(np.float64) - expected[:rows])
    assert (error <= HALF_STEP[np.dtype(dtype)] * np.abs(expected[:rows]) + SLACK).all()
