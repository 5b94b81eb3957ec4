"""Decoding over quantised caches in the simulator: what comes out is attention over the keys and values that the codes mean."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.arguments import AttentionSizes
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.split_quantized import layout_of, shape_for, shape_of
from minllm.kernels.attention.split_tensor_core.shape import fits, head_tiles_of
from minllm.kernels.quantization.formats import kv_format
from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.quantized_cases import (
    EVERY_FORMAT_CASES,
    FETCHED_CASES,
    FETCHED_SHAPES,
    FORMAT_CASES,
    FORMATS,
    SHAPES,
    quantize_case,
    run_quantized,
)


def run(device, case, name, group_size=None, **options):
    return run_quantized(device, split_quantized, case, name, group_size, workspace_options=options, **options)


@pytest.mark.detected("name")
@pytest.mark.covering("case", "name", "name + case.dtype")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("case", EVERY_FORMAT_CASES, ids=str)
def test_fair_shares(device, case, name):
    run(device, case, name, sm_count=3, shape=SHAPES[0])


@pytest.mark.detected("name", "case.dtype")
@pytest.mark.parametrize(("case", "name", "group_size"), FORMAT_CASES, ids=str)
def test_fixed_splits(device, case, name, group_size):
    run(device, case, name, group_size, splits=2, shape=SHAPES[0])


@pytest.mark.detected("shape")
@pytest.mark.covering("shape", "name")
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_block_shapes(device, shape, name):
    run(device, EVERY_FORMAT_CASES[1], name, sm_count=3, shape=shape)


@pytest.mark.detected("shape", "group_size")
@pytest.mark.covering("case", "shape")
@pytest.mark.parametrize("shape", FETCHED_SHAPES, ids=str)
@pytest.mark.parametrize(("case", "name", "group_size"), FETCHED_CASES, ids=str)
def test_fetched_codes(device, case, name, group_size, shape):
    run(device, case, name, group_size, sm_count=3, shape=shape)


def test_defaults(device):
    """The block and the grid that users get."""
    run(device, AttentionCase((1,), (70,), heads=4, head_dim=32, dtype=BFLOAT16), "int8")


def inputs_of(case, name):
    """The arguments of a launch in the simulator, by name."""
    arrays = make_arrays(case)
    key_cache, value_cache, _ = quantize_case(arrays, name)
    batch = dict(query_start=arrays.query_start, context_lens=arrays.context_lens, block_tables=arrays.block_tables, scale=arrays.scale)
    return dict(query=arrays.query, key_cache=key_cache, value_cache=value_cache, out=np.ascontiguousarray(arrays.out), **batch)


@pytest.mark.parametrize("power", [-60, -20, 20, 60])
def test_queries_of_any_size(power):
    """The same result, bit by bit, for queries 2**power times as large and a scale as much smaller: float16 would not hold them."""
    inputs = inputs_of(AttentionCase((1,), (37,), heads=2, head_dim=32, dtype=BFLOAT16), "int8")
    outs = []
    for factor in (0, power):
        query = np.ldexp(inputs["query"].astype(np.float32), factor).astype(BFLOAT16)
        changed = dict(inputs, query=query, scale=inputs["scale"] * 2.0**-factor)
        split_quantized.attention(**changed, sm_count=2, shape=SHAPES[0])
        outs.append(changed["out"].copy())
    np.testing.assert_array_equal(*outs)


@pytest.mark.parametrize("largest", [2.0**-24, 60000.0])
def test_scales_of_any_size(largest):
    """Weights times scales stay within float16 from its smallest to its largest number: the output follows the values' scales."""
    inputs = inputs_of(AttentionCase((1,), (37,), heads=2, head_dim=32, dtype=BFLOAT16), "int8")
    outs = []
    for scale in (1.0, largest):
        scales = inputs["value_cache"].scales.copy()
        scales[..., 0], scales[..., 1] = np.where(np.isnan(scales[..., 0]), np.nan, scale), 0
        changed = dict(inputs, value_cache=replace(inputs["value_cache"], scales=scales))
        split_quantized.attention(**changed, sm_count=2, shape=SHAPES[0])
        outs.append(changed["out"].astype(np.float64) / scale)
    np.testing.assert_allclose(*outs, rtol=2.0**-7)


def test_what_it_does_not_take():
    case = AttentionCase((1,), (5,), head_dim=32, dtype=BFLOAT16)
    inputs, plain = inputs_of(case, "int8"), make_arrays(case)

    def refused(match, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            split_quantized.attention(**(inputs | changes))

    refused("key_cache is not quantised", key_cache=plain.key_cache)
    refused("must have one format", value_cache=inputs_of(case, "fp8_e4m3")["value_cache"])
    refused("one new token per sequence", max_query_len=2)
    refused("of float16 or bfloat16", query=inputs["query"].astype(np.float32), out=inputs["out"].astype(np.float32))
    gaps = replace(inputs["key_cache"], scales=inputs["key_cache"].scales[:, :, ::-1])
    refused("without gaps", key_cache=gaps)
    with pytest.raises(KernelArgumentError, match="blocks of 5 tokens"):
        split_quantized.attention(**inputs_of(replace(case, block_size=5), "int8"))


def test_whole_lines_are_fetched_by_tma():
    """On Hopper (which the simulator stands for), where lines hold whole keys and boxes whole repeats of the swizzle."""

    def by_tma(name, head_dim, block_size):
        form = kv_format(name, head_dim)
        return shape_of(AttentionSizes(1, 32, 8, head_dim, block_size, 1, 10), form).tensor_copies

    assert by_tma("int8", 128, 8) and by_tma("int4", 128, 16) and by_tma("fp8_e4m3", 64, 4096)
    assert not any((by_tma("int8", 96, 16), by_tma("int4", 128, 8), by_tma("int8", 256, 16), by_tma("int8", 128, 20)))


def test_shapes_fit_a_hopper_block():
    """As many bytes under way as shared memory allows, for every format, head size and group."""
    for name in FORMATS:
        for head_dim in (64, 96, 128, 256):
            for group in (1, 4, 8, 16, 71):
                for line_heads in (1, 10000):
                    form = kv_format(name, head_dim)
                    for tensor_copies in (False, True):
                        shape = shape_for(form, group, line_heads, tensor_copies=tensor_copies)
                        _, heads = head_tiles_of(group, head_dim)
                        ring_bytes = layout_of(form, shape).ring_bytes
                        assert fits(shape, head_dim, heads, ring_bytes, 227 * 1024) and shape.stages >= 2
