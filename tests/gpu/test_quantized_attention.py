"""Decoding over quantised caches on a GPU: the simulator's cases, blocks of all sizes, contexts of real sizes."""

import dataclasses

import numpy as np
import pytest

from minllm.kernels.attention import split_quantized
from tests.kernels.attention.case_lists import BFLOAT16, REAL_DECODES, in_16_bits
from tests.kernels.attention.cases import AttentionCase
from tests.kernels.attention.quantized_cases import EVERY_FORMAT_CASES, FORMAT_CASES, FORMATS, SHAPES, run_quantized

# head_dim of whole chunks in every format, and blocks of whole chunks of scales.
DECODES = [in_16_bits(case) for case in REAL_DECODES if case.head_dim % 32 == 0 and case.block_size % 4 == 0]


@pytest.mark.parametrize(("case", "name", "group_size"), FORMAT_CASES, ids=str)
def test_formats(device, case, name, group_size):
    for options in (dict(splits=3, shape=SHAPES[0]), dict(sm_count=3, shape=SHAPES[1]), {}):
        run_quantized(device, split_quantized, case, name, group_size, workspace_options=options, **options)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", EVERY_FORMAT_CASES, ids=str)
def test_small_blocks(device, case, name):
    for shape in SHAPES:
        for options in (dict(splits=3, shape=shape), dict(sm_count=3, shape=shape)):
            run_quantized(device, split_quantized, case, name, workspace_options=options, **options)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", DECODES, ids=str)
def test_real_sizes(device, case, name):
    first, second = (run_quantized(device, split_quantized, case, name) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("head_dim", [64, 96, 128, 256])
@pytest.mark.parametrize("block_size", [8, 16, 32, 64, 128, 256])
def test_pages_of_all_sizes(device, block_size, head_dim, name):
    case = AttentionCase((1,) * 5, (1, 600, 37, 0, 1501), heads=16, kv_heads=4, head_dim=head_dim, block_size=block_size, dtype=BFLOAT16)
    run_quantized(device, split_quantized, case, name)
    run_quantized(device, split_quantized, dataclasses.replace(case, sliding_window=130), name)
