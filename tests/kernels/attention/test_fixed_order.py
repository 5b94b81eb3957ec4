"""Attention whose sums do not depend on the company: a row's bits in a chunk, as a decode step, and beside other sequences."""

import numpy as np
import pytest

from minllm.kernels.attention import VARIANTS
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16

pytestmark = pytest.mark.results_only
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 2, 1, 16, 8  # two heads of queries share keys
CONTEXT = 137  # keys: three tiles


def rows(spans, dtype, sliding_window):
    """The output of spans (first position, tokens) of one text, each the end of a sequence of its own: [tokens, heads, head_dim]."""
    generator = np.random.default_rng(0)
    query = generator.standard_normal((CONTEXT, HEADS, HEAD_DIM)).astype(dtype)
    blocks = -(-CONTEXT // BLOCK)
    caches = [generator.standard_normal((blocks, BLOCK, KV_HEADS, HEAD_DIM)).astype(dtype) for _ in range(2)]
    queries = np.concatenate([query[start : start + length] for start, length in spans])
    starts = np.cumsum([0] + [length for _, length in spans]).astype(np.int32)
    ends = np.array([start + length for start, length in spans], np.int32)
    tables = np.broadcast_to(np.arange(blocks, dtype=np.int32), (len(spans), blocks)).copy()
    out = np.full_like(queries, np.nan)
    longest = max(length for _, length in spans)
    VARIANTS["fixed_order"].attention(queries, *caches, out, starts, ends, tables, HEAD_DIM**-0.5, sliding_window, longest)
    return np.split(out, starts[1:-1])


@pytest.mark.parametrize("dtype, sliding_window", [(BFLOAT16, 0), (FLOAT16, 50)])
def test_a_row_is_the_same_in_any_company(dtype, sliding_window):
    [chunk] = rows([(120, 17)], dtype, sliding_window)
    alone, verified, prompt, late = rows([(128, 1), (126, 5), (60, 7), (136, 1)], dtype, sliding_window)
    np.testing.assert_array_equal(alone, chunk[8:9])
    np.testing.assert_array_equal(verified, chunk[6:11])
    np.testing.assert_array_equal(late, chunk[16:])
    [first] = rows([(65, 1)], dtype, sliding_window)
    np.testing.assert_array_equal(prompt[5:6], first)


def test_in_float32():
    [chunk] = rows([(60, 6)], np.float32, 0)
    alone, verified = rows([(63, 1), (61, 3)], np.float32, 0)
    np.testing.assert_array_equal(alone, chunk[3:4])
    np.testing.assert_array_equal(verified, chunk[1:4])
