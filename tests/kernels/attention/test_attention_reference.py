"""The reference against float64 arithmetic and against torch: it is the oracle of all kernels and the CPU engine's attention."""

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.attention.reference import QUERY_CHUNK, attention_reference
from tests.kernels.attention.cases import AttentionCase, check_output, make_arrays, oracle

CASES = [
    AttentionCase((1,), (1,)),
    AttentionCase((1,), (17,), heads=6, kv_heads=2, head_dim=40),
    AttentionCase((1, 1, 1), (5, 0, 33), block_size=8),
    AttentionCase((2, 7, 1, 13), (2, 19, 31, 13), heads=8, kv_heads=1, block_size=1),
    AttentionCase((5,), (97,), block_size=256, sliding_window=4),
    AttentionCase((3, 0, 4), (3, 9, 40), sliding_window=7, head_dim=80),
    AttentionCase((QUERY_CHUNK + 3,), (QUERY_CHUNK + 20,), head_dim=8, sliding_window=50),
    AttentionCase((4,), (2,)),  # two rows lie before the first key: they see nothing
    AttentionCase((9,), (30,), magnitude=100.0),
]
DTYPES = [np.float32, np.float16, ml_dtypes.bfloat16]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_reference_agrees_with_float64(case, dtype):
    case = case.with_dtype(dtype)
    arrays = make_arrays(case)
    arrays.out[:] = run_reference(case, arrays)
    check_output(case, arrays, arrays.guarded_out)


def test_float64_input_is_computed_in_float64():
    case = AttentionCase((3,), (50,), dtype=np.float64)
    arrays = make_arrays(case)
    result = run_reference(case, arrays)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, oracle(case, arrays), rtol=0, atol=1e-14)


def test_rows_without_keys_and_rows_of_no_sequence_are_zero():
    case = AttentionCase((1, 2, 4), (0, 5, 2))
    arrays = make_arrays(case)
    query = np.concatenate([arrays.query, np.ones((2, 4, 64), np.float32)])  # two rows after the last sequence: padding of a batch
    result = attention_reference(
        query, arrays.key_cache, arrays.value_cache, arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale
    )
    assert (result[[0, 3, 4, 7, 8]] == 0).all()
    assert np.abs(result[[1, 2, 5, 6]]).min() > 0


def run_reference(case, arrays):
    return attention_reference(
        arrays.query,
        arrays.key_cache,
        arrays.value_cache,
        arrays.query_start,
        arrays.context_lens,
        arrays.block_tables,
        arrays.scale,
        case.sliding_window,
    )
