"""Attention in splits of a fixed size: against the reference, and bit by bit in a chunk, as a decode step, and beside other sequences."""

import numpy as np
import pytest
from ml_dtypes import finfo

from minllm.kernels.attention.fixed_split import fixed_split
from minllm.kernels.attention.fixed_split.merge import SPLIT_KEYS, make_merge_kernel
from minllm.kernels.attention.reference import attention_reference
from minllm.runtime.kernel import launch
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16

pytestmark = pytest.mark.results_only
CONTEXT, BLOCK = 2 * SPLIT_KEYS + 20, 8


def rows(spans, dtype, sliding_window=0, heads=4, kv_heads=2, head_dim=16, **options):
    """The output of spans (first position, tokens) of one text, each the end of a sequence of its own; held against the reference."""
    generator = np.random.default_rng(0)
    query = generator.standard_normal((CONTEXT, heads, head_dim)).astype(dtype)
    blocks = -(-CONTEXT // BLOCK)
    caches = [generator.standard_normal((blocks, BLOCK, kv_heads, head_dim)).astype(dtype) for _ in range(2)]
    queries = np.concatenate([query[start : start + length] for start, length in spans])
    starts = np.cumsum([0] + [length for _, length in spans]).astype(np.int32)
    ends = np.array([start + length for start, length in spans], np.int32)
    tables = np.broadcast_to(np.arange(blocks, dtype=np.int32), (len(spans), blocks)).copy()
    batch, longest = (starts, ends, tables), max(length for _, length in spans)
    out = np.full_like(queries, np.nan)
    fixed_split.attention(queries, *caches, out, *batch, head_dim**-0.5, sliding_window, longest, **options)
    exact = attention_reference(*(array.astype(np.float64) for array in (queries, *caches)), *batch, head_dim**-0.5, sliding_window)
    np.testing.assert_allclose(out.astype(np.float64), exact, rtol=0, atol=4 * float(finfo(dtype).eps))
    return np.split(out, starts[1:-1])


@pytest.mark.parametrize("dtype, sliding_window, heads, kv_heads", [(BFLOAT16, 0, 4, 2), (FLOAT16, 50, 2, 1)])
def test_a_row_is_the_same_in_any_company(dtype, sliding_window, heads, kv_heads):
    given = dtype, sliding_window, heads, kv_heads
    [chunk] = rows([(CONTEXT - 17, 17)], *given)
    alone, verified, prompt, last = rows([(CONTEXT - 9, 1), (CONTEXT - 11, 5), (60, 7), (CONTEXT - 1, 1)], *given)
    np.testing.assert_array_equal(alone, chunk[8:9])
    np.testing.assert_array_equal(verified, chunk[6:11])
    np.testing.assert_array_equal(last, chunk[16:])
    [first] = rows([(65, 1)], *given)
    np.testing.assert_array_equal(prompt[5:6], first)


def test_neither_parts_nor_warps_change_a_bit():
    spans = [(SPLIT_KEYS - 3, 9), (SPLIT_KEYS, 1), (0, 3)]
    found = [rows(spans, BFLOAT16, heads=2, kv_heads=1, parts=parts, warps=warps) for parts, warps in ((1, 1), (2, 1), (1, 4), (2, 2))]
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_more_splits_than_a_warp_has_lanes():
    """The merge takes 32 at a time; maxima that rise, fall and are equal, and weights that vanish."""
    splits, head_dim, generator = 70, 8, np.random.default_rng(0)
    maxima = generator.integers(-40, 40, (1, 1, splits)).astype(np.float32)
    maxima[0, 0, 3] = -np.inf
    sums, outs = generator.random((1, 1, splits), np.float32), generator.standard_normal((1, 1, splits, head_dim)).astype(np.float32)
    out, kernel = np.empty((1, 1, head_dim), np.float32), make_merge_kernel(head_dim)
    starts, lens = np.array([0, 1], np.int32), np.array([splits * SPLIT_KEYS - 5], np.int32)
    launch(kernel[0], (1, 1, 1), kernel[1], (maxima, sums, outs, out, starts, lens, 0.25, 0), None)
    largest, total, acc = np.float32(-np.inf), 0.0, np.zeros(head_dim)
    for one, weight, values in zip(maxima[0, 0], sums[0, 0], outs[0, 0], strict=True):
        merged = max(largest, one)
        old, new = np.exp2((largest - merged) * 0.25), np.exp2((one - merged) * 0.25)
        largest, total, acc = merged, total * old + weight * new, acc * old + values * new
    np.testing.assert_allclose(out[0, 0], acc / total, rtol=1e-5)


@pytest.mark.parametrize("heads, kv_heads, head_dim, parts", [(3, 1, 40, None), (2, 2, 136, None), (7, 1, 24, None)])
def test_groups_and_heads_of_other_sizes(heads, kv_heads, head_dim, parts):
    rows([(SPLIT_KEYS - 2, 5), (7, 2)], BFLOAT16, 0, heads, kv_heads, head_dim, parts=parts)


def test_without_memory_for_states_a_block_takes_all_keys(monkeypatch):
    [expected] = rows([(SPLIT_KEYS - 3, 9)], BFLOAT16, parts=2)
    monkeypatch.setattr(fixed_split, "MOST_SCRATCH", 100)
    for parts in (None, 2):
        [found] = rows([(SPLIT_KEYS - 3, 9)], BFLOAT16, parts=parts)
        np.testing.assert_array_equal(found, expected)


def test_padding_and_sequences_without_keys():
    """Rows of no sequence are not written; a sequence whose context is empty gets zeros."""
    cache = np.ones((4, BLOCK, 1, 16), BFLOAT16)
    for parts in (1, 2):
        out = np.full((4, 2, 16), 7, BFLOAT16)
        starts, ends = np.array([0, 2, 2, 3], np.int32), np.array([9, 0, 0], np.int32)
        tables = np.zeros((3, 4), np.int32)
        fixed_split.attention(np.ones_like(out), cache, cache, out, starts, ends, tables, 0.25, max_query_len=2, parts=parts)
        np.testing.assert_array_equal(out[:2], 1)
        np.testing.assert_array_equal(out[2], 0)
        np.testing.assert_array_equal(out[3], 7)


def test_large_batches_and_large_heads_take_no_memory_for_states():
    query, tables = np.empty((4096, 32, 128), BFLOAT16), np.empty((1, 1024), np.int32)
    cache = np.empty((1, 16, 8, 128), BFLOAT16)
    assert fixed_split.workspace_shapes(query, cache, tables) == {}
    assert fixed_split.workspace_shapes(np.empty((1, 32, 256), BFLOAT16), np.empty((1, 16, 8, 256), BFLOAT16), tables) == {}
    assert fixed_split.workspace_shapes(query[:1], cache, tables)["split_out"] == ((1, 32, 256, 128), "float32")


@pytest.mark.usefixtures("small_tiles")
def test_in_float32():
    [chunk] = rows([(61, 4)], np.float32, heads=2, kv_heads=1)
    alone, verified = rows([(63, 1), (61, 3)], np.float32, heads=2, kv_heads=1)
    np.testing.assert_array_equal(alone, chunk[2:3])
    np.testing.assert_array_equal(verified, chunk[:3])
