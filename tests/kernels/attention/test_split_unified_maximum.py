"""The unified maximum in the simulator: scores within the band, above it, below it, and one spike; and that the guard is what helps."""

import dataclasses

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.ladder import unified_maximum as split_unified_maximum
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16, RAGGED_CASES, SPLIT_SHAPES
from tests.kernels.attention.cases import AttentionCase, check_output, make_arrays, run_variant

OPTIONS = dict(sm_count=3, shape=SPLIT_SHAPES[0])


@pytest.mark.detected("case.sliding_window")
@pytest.mark.parametrize("case", RAGGED_CASES, ids=str)
def test_within_the_band(device, case):
    run_variant(device, split_unified_maximum, case, workspace_options=OPTIONS, **OPTIONS)


@pytest.mark.detected("dtype")
@pytest.mark.covering("phi", "dtype")
@pytest.mark.parametrize("phi", [-1000.0, -20.0, 20.0, 1000.0])
@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_any_phi_gives_the_answer(device, phi, dtype):
    case = AttentionCase((1, 1), (100, 37), heads=2, kv_heads=1, head_dim=16, dtype=dtype)
    run_variant(device, split_unified_maximum, case, workspace_options=OPTIONS, **OPTIONS, phi=phi)


def test_scores_of_all_sizes(device):
    case = AttentionCase((1,), (60,), heads=2, head_dim=16, dtype=BFLOAT16, magnitude=200.0)  # logits beyond 1e5
    run_variant(device, split_unified_maximum, case, workspace_options=OPTIONS, **OPTIONS)


def test_tensor_copies_are_refused():
    arrays = make_arrays(RAGGED_CASES[0])
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables)
    shape = dataclasses.replace(SPLIT_SHAPES[0], tensor_copies=True)
    with pytest.raises(KernelArgumentError, match="takes no tensor copies"):
        split_unified_maximum.attention(arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, *batch, arrays.scale, shape=shape)


def with_a_spike():
    """One key of one part whose score is far above all others."""
    case = AttentionCase((1,), (90,), heads=2, kv_heads=1, head_dim=16, dtype=FLOAT16)
    arrays = make_arrays(case)
    arrays.keys[0][70] = 8 * arrays.query[0, 0]
    block, slot = arrays.block_tables[0, 70 // case.block_size], 70 % case.block_size
    arrays.key_cache[block, slot] = arrays.keys[0][70]
    return case, arrays


def attend(arrays):
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables)
    split_unified_maximum.attention(arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, *batch, arrays.scale, **OPTIONS)


def test_one_spike():
    case, arrays = with_a_spike()
    attend(arrays)
    check_output(case, arrays, arrays.guarded_out)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_without_its_guard_a_spike_overflows(monkeypatch):
    """The band is what keeps float16 weights finite."""
    monkeypatch.setitem(split_unified_maximum.BANDS, "float16", (np.inf, 0.0))
    makers = (split_unified_maximum.make_unified_softmax, split_tensor_core.make_kernel)
    for made in makers:
        made.cache_clear()
    case, arrays = with_a_spike()
    attend(arrays)
    assert not np.isfinite(arrays.out.astype(np.float32)).all()
    for made in makers:
        made.cache_clear()
