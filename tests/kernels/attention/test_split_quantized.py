"""Decoding over quantised caches in the simulator: what comes out is attention over the keys and values that the codes mean."""

import pytest

from minllm.kernels.attention import split_quantized
from tests.kernels.attention.quantized_cases import EVERY_FORMAT_CASES, FORMAT_CASES, FORMATS, SHAPES, run_quantized


def run(device, case, name, group_size=None, **options):
    return run_quantized(device, split_quantized, case, name, group_size, workspace_options=options, **options)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", EVERY_FORMAT_CASES, ids=str)
def test_fair_shares(device, case, name):
    run(device, case, name, sm_count=3, shape=SHAPES[0])


@pytest.mark.parametrize(("case", "name", "group_size"), FORMAT_CASES, ids=str)
def test_fixed_splits(device, case, name, group_size):
    run(device, case, name, group_size, splits=2, shape=SHAPES[0])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_block_shapes(device, shape, name):
    run(device, EVERY_FORMAT_CASES[1], name, sm_count=3, shape=shape)
