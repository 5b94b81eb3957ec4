"""Decoding over quantised caches on a GPU: the simulator's cases, blocks of all sizes, contexts of real sizes."""

import dataclasses

import numpy as np
import pytest

from minllm.kernels.attention.split_quantized import split_quantized
from tests.kernels.attention.case_lists import BFLOAT16, REAL_DECODES, in_16_bits
from tests.kernels.attention.cases import AttentionCase
from tests.kernels.attention.quantized_cases import (
    EVERY_FORMAT_CASES,
    FETCHED_CASES,
    FETCHED_SHAPES,
    FORMAT_CASES,
    FORMATS,
    SHAPES,
    run_quantized,
)

# head_dim of whole chunks in every format, and blocks of whole chunks of scales.
DECODES = [in_16_bits(case) for case in REAL_DECODES if case.head_dim % 32 == 0 and case.block_size % 4 == 0]
# Every kernel takes seconds to compile: integers meet all contexts, floats some, each format other pairs of block size and head_dim.
REAL_SIZES = [(case, name) for name in FORMATS for case in DECODES[:: 1 if name.startswith("int") else 3]]
PAGES = [(8, 64), (16, 96), (32, 128), (64, 256), (128, 96), (256, 64)]
PAGES_OF_FORMATS = [(*pages, name) for i, name in enumerate(FORMATS) for pages in PAGES[i % 2 :: 2]]


@pytest.mark.parametrize(("case", "name", "group_size"), FORMAT_CASES, ids=str)
def test_formats(device, case, name, group_size):
    run_quantized(device, split_quantized, case, name, group_size)


@pytest.mark.covering("case", "shape", "name")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("case", "shape"), list(zip(EVERY_FORMAT_CASES, [*SHAPES, SHAPES[1]], strict=True)), ids=str)
def test_small_blocks(device, case, shape, name):
    run_quantized(device, split_quantized, case, name, workspace_options=dict(sm_count=3, shape=shape), sm_count=3, shape=shape)


@pytest.mark.parametrize(("case", "name", "group_size"), FETCHED_CASES, ids=str)
def test_fetched_codes(device, case, name, group_size):
    for shape in FETCHED_SHAPES:
        options = dict(sm_count=3, shape=shape)
        run_quantized(device, split_quantized, case, name, group_size, workspace_options=options, **options)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_fixed_splits(device, name):
    options = dict(splits=3, shape=SHAPES[1])
    run_quantized(device, split_quantized, EVERY_FORMAT_CASES[1], name, workspace_options=options, **options)


@pytest.mark.covering("case", "name")
@pytest.mark.parametrize(("case", "name"), REAL_SIZES, ids=str)
def test_real_sizes(device, case, name):
    first, second = (run_quantized(device, split_quantized, case, name) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.covering("block_size", "head_dim", "name")
@pytest.mark.parametrize(("block_size", "head_dim", "name"), PAGES_OF_FORMATS)
def test_pages_of_all_sizes(device, block_size, head_dim, name):
    case = AttentionCase((1,) * 5, (1, 600, 37, 0, 1501), heads=16, kv_heads=4, head_dim=head_dim, block_size=block_size, dtype=BFLOAT16)
    run_quantized(device, split_quantized, case, name)
    run_quantized(device, split_quantized, dataclasses.replace(case, sliding_window=130), name)


@pytest.mark.parametrize("name", ["int8", "int4", "fp8_e4m3"])
def test_many_sequences(device, name):
    """As many heads as make the grid choose several blocks a multiprocessor."""
    case = AttentionCase((1,) * 40, tuple(1 + 37 * i % 900 for i in range(40)), heads=32, kv_heads=8, head_dim=128, dtype=BFLOAT16)
    run_quantized(device, split_quantized, case, name)
