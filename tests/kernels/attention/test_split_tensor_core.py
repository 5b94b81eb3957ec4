"""Decoding on tensor cores in the simulator: few blocks, so that runs of tiles end in the middle of heads, and one-warp blocks."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.arguments import AttentionSizes
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import BlockSizes
from minllm.kernels.attention.split_tensor_core.shape import shape_for, shape_of
from tests.kernels.attention.case_lists import (
    BFLOAT16,
    FLOAT16,
    RAGGED_CASES,
    SPLIT_CASES,
    SPLIT_SHAPES,
    TENSOR_COPY_CASES,
    TENSOR_COPY_OPTIONS,
    in_16_bits,
)
from tests.kernels.attention.cases import AttentionCase, make_arrays, run_variant


def run(device, case, **options):
    return run_variant(device, decode_step, case, workspace_options=options, **options)


@pytest.mark.detected("splits", "case.sliding_window")
@pytest.mark.parametrize(("case", "splits"), SPLIT_CASES, ids=str)
def test_fixed_splits(device, case, splits):
    run(device, in_16_bits(case), splits=splits, shape=SPLIT_SHAPES[0])


@pytest.mark.detected("blocks", "case.sliding_window")
@pytest.mark.covering("case", "blocks + case.dtype")
@pytest.mark.parametrize("case", [case for case, _ in SPLIT_CASES[1::2]] + RAGGED_CASES, ids=str)
@pytest.mark.parametrize("blocks", [1, 3])
def test_fair_shares(device, case, blocks):
    run(device, in_16_bits(case), sm_count=blocks, shape=SPLIT_SHAPES[0])


@pytest.mark.parametrize("shape", SPLIT_SHAPES[1:], ids=str)
def test_block_shapes(device, shape):
    run(device, RAGGED_CASES[0], sm_count=3, shape=shape)


@pytest.mark.covering("case", "options")
@pytest.mark.parametrize("case", TENSOR_COPY_CASES, ids=str)
@pytest.mark.parametrize("options", TENSOR_COPY_OPTIONS, ids=str)
def test_tensor_copies(device, case, options):
    run(device, case, **options)


def test_more_blocks_than_tiles(device):
    run(device, RAGGED_CASES[0], sm_count=100, shape=SPLIT_SHAPES[0])


def test_defaults(device):
    """The block and the grid that users get."""
    run(device, AttentionCase((1,), (70,), heads=4, head_dim=16, dtype=BFLOAT16))


def attend(arrays, sequences, **options):
    """The output of the batch's first sequences."""
    out = np.full(arrays.query[:sequences].shape, np.nan, arrays.query.dtype)
    cache = (arrays.key_cache, arrays.value_cache)
    batch = (arrays.query_start[: sequences + 1], arrays.context_lens[:sequences], arrays.block_tables[:sequences])
    decode_step.attention(arrays.query[:sequences], *cache, out, *batch, arrays.scale, shape=SPLIT_SHAPES[0], **options)
    return out


def test_fixed_splits_give_the_same_bits_in_any_batch():
    """A sequence alone, and the same sequence beside others."""
    arrays = make_arrays(AttentionCase((1, 1, 1), (77, 30, 100), head_dim=16, dtype=FLOAT16))
    assert np.array_equal(attend(arrays, 1, splits=3), attend(arrays, 3, splits=3)[:1])


def test_counts_are_zeros_again():
    """A workspace serves one call after another."""
    arrays = make_arrays(RAGGED_CASES[0])
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.ascontiguousarray(arrays.out))
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables)
    options = dict(sm_count=3, shape=SPLIT_SHAPES[0])
    shapes = decode_step.workspace_shapes(arrays.query, arrays.key_cache, arrays.block_tables, **options)
    workspace = {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}
    decode_step.attention(*inputs, *batch, arrays.scale, workspace=workspace, **options)
    assert workspace["part_sum"].any() and not workspace["arrivals"].any()


def test_what_it_does_not_take():
    arrays = make_arrays(AttentionCase((2,), (5,), dtype=BFLOAT16))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables)
    with pytest.raises(KernelArgumentError, match="one new token per sequence"):
        decode_step.attention(*inputs, arrays.scale)


def test_whole_boxes_are_fetched_by_tensor_copies():
    """On Hopper (which the simulator stands for), where blocks and heads consist of whole boxes; never for the unified maximum."""

    def by_tma(head_dim, block_size, unified=False):
        return shape_of(AttentionSizes(1, 32, 8, head_dim, block_size, 1, 10), unified=unified).tensor_copies

    assert by_tma(64, 16) and by_tma(128, 4096)
    assert not any((by_tma(80, 16), by_tma(128, 8), by_tma(128, 1000), by_tma(128, 16, unified=True)))


def test_shapes_fit_a_hopper_block():
    """As deep as shared memory allows, for every head size and group."""
    for head_dim in (8, 64, 80, 96, 128, 256):
        for group in (1, 4, 8, 16, 71):
            for heads in (1, 10000):
                shape = shape_for(head_dim, group, heads)
                assert shape.blocks * shape.warps * BlockSizes(head_dim, group, shape).ring_bytes <= 227 * 1024 and shape.stages >= 2
    assert (shape_for(128, 4, 8).stages, shape_for(128, 4, 512).blocks) == (4, 2)
    assert [shape_for(64, 4, heads, tensor_copies=True).blocks for heads in (8, 264, 512)] == [1, 2, 4]
