"""Decoding over quantised caches in the simulator: numbers of any size, what it refuses, and the shapes of blocks that it chooses."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue.attention.codes import SHAPES
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.catalogue.kv.quantized import quantized_caches
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.arguments import AttentionSizes
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_quantized.split_quantized import layout_of, shape_for, shape_of
from minllm.kernels.attention.split_tensor_core.block_sizes import head_tiles_of
from minllm.kernels.attention.split_tensor_core.shape import fits
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format
from tests.kernels.guarded import BFLOAT16


def inputs_of(form, context=37, block_size=16):
    """The arguments of a step of one sequence, by name."""
    launch = quantized_attention("split_quantized", (1,), (context,), form, 2, 2, 32, block_size=block_size)
    arrays = launch.arrays(Noise(length=SHORT))
    codes = {name: arrays.pop(name) for name in ("key_codes", "key_scales", "value_codes", "value_scales")}
    caches = dict(zip(("key_cache", "value_cache"), quantized_caches(kv_format(form, 32), codes), strict=True))
    return arrays | caches | dict(scale=32**-0.5)


@pytest.mark.parametrize("power", [-60, -20, 20, 60])
def test_queries_of_any_size(power):
    """The same result, bit by bit, for queries 2**power times as large and a scale as much smaller: float16 would not hold them."""
    inputs = inputs_of("int8")
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
    inputs = inputs_of("int8")
    outs = []
    for scale in (1.0, largest):
        scales = inputs["value_cache"].scales.copy()
        scales[..., 0], scales[..., 1] = np.where(np.isnan(scales[..., 0]), np.nan, scale), 0
        changed = dict(inputs, value_cache=replace(inputs["value_cache"], scales=scales))
        split_quantized.attention(**changed, sm_count=2, shape=SHAPES[0])
        outs.append(changed["out"].astype(np.float64) / scale)
    np.testing.assert_allclose(*outs, rtol=2.0**-7)


def test_what_it_does_not_take():
    inputs = inputs_of("int8", 5)

    def refused(match, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            split_quantized.attention(**(inputs | changes))

    refused("key_cache is not quantised", key_cache=np.zeros((4, 16, 2, 32), BFLOAT16))
    refused("must have one format", value_cache=inputs_of("fp8_e4m3", 5)["value_cache"])
    refused("one new token per sequence", max_query_len=2)
    refused("of float16 or bfloat16", query=inputs["query"].astype(np.float32), out=inputs["out"].astype(np.float32))
    gaps = replace(inputs["key_cache"], scales=inputs["key_cache"].scales[:, :, ::-1])
    refused("without gaps", key_cache=gaps)
    with pytest.raises(KernelArgumentError, match="blocks of 5 tokens"):
        split_quantized.attention(**inputs_of("int8", 5, 5))


def test_whole_lines_are_fetched_by_tma():
    """On Hopper (which the simulator stands for), where lines hold whole keys and boxes whole repeats of the swizzle."""

    def by_tma(name, head_dim, block_size):
        form = kv_format(name, head_dim)
        return shape_of(AttentionSizes(1, 32, 8, head_dim, block_size, 1, 10), form).tensor_copies

    assert by_tma("int8", 128, 8) and by_tma("int4", 128, 16) and by_tma("fp8_e4m3", 64, 4096)
    assert not any((by_tma("int8", 96, 16), by_tma("int4", 128, 8), by_tma("int8", 256, 16), by_tma("int8", 128, 20)))


def test_shapes_fit_a_hopper_block():
    """As many bytes under way as shared memory allows, for every format, head size and group."""
    for name in TOKEN_FORMATS:
        for head_dim in (64, 96, 128, 256):
            for group in (1, 4, 8, 16, 71):
                for line_heads in (1, 10000):
                    form = kv_format(name, head_dim)
                    for tensor_copies in (False, True):
                        shape = shape_for(form, group, line_heads, tensor_copies=tensor_copies)
                        _, heads = head_tiles_of(group, head_dim)
                        ring_bytes = layout_of(form, shape).ring_bytes
                        assert fits(shape, head_dim, heads, ring_bytes, 227 * 1024) and shape.stages >= 2
