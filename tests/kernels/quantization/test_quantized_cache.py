"""Quantised caches in NumPy: what is written at a slot is what attention reads there."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.reference import attention_reference, gather_context
from minllm.kernels.kv.reference import append_reference
from minllm.kernels.quantization.cache import allocate, check_same_format
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format
from minllm.kernels.quantization.reference import dequantize_by_channel, dequantize_reference, quantize_by_channel, quantize_reference

BLOCK_SIZE, KV_HEADS, HEAD_DIM = 4, 2, 32


def empty_cache(name, num_blocks=6):
    return allocate(kv_format(name, HEAD_DIM), num_blocks, BLOCK_SIZE, KV_HEADS, np.zeros, lambda array: array)


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_attention_sees_the_dequantised_numbers(name):
    """Two sequences in scattered blocks, a token that is not written, against attention over a plain cache of the same numbers."""
    random = np.random.default_rng(2)
    slots = np.array([20, 21, 22, 23, 0, 1, -1, 9, 10], np.int32)
    key, value = random.standard_normal((2, 9, KV_HEADS, HEAD_DIM)).astype(ml_dtypes.bfloat16)
    caches, plain = [empty_cache(name), empty_cache(name)], np.zeros((2, 6, BLOCK_SIZE, KV_HEADS, HEAD_DIM), np.float32)
    append_reference(key, value, *caches, slots)
    for new, cache, at in zip((key, value), caches, plain, strict=True):
        numbers = dequantize_reference(
            *quantize_reference(new, cache.format, cache.scales if cache.format.is_float else None), cache.format
        )
        at.reshape(-1, KV_HEADS, HEAD_DIM)[slots[slots >= 0]] = numbers[slots >= 0]
    query = random.standard_normal((5, 4, HEAD_DIM)).astype(np.float32)
    batch = (np.array([0, 3, 5]), np.array([6, 3]), np.array([[5, 0], [2, 0]]), 0.2)
    found = attention_reference(query, *caches, *batch)
    np.testing.assert_array_equal(found, attention_reference(query, *plain, *batch))
    assert caches[0].shape == (6, BLOCK_SIZE, KV_HEADS, HEAD_DIM)


def test_caches_of_two_formats_are_refused():
    with pytest.raises(KernelArgumentError, match="int8 .* and the value_cache not quantised"):
        check_same_format(empty_cache("int8"), np.zeros((6, BLOCK_SIZE, KV_HEADS, HEAD_DIM)))
    check_same_format(empty_cache("int4"), empty_cache("int4"))


def test_groups_of_keys_are_read_where_they_were_put():
    """Two groups in one block and one in another, keys across groups and blocks against the numbers of each group alone."""
    random, form = np.random.default_rng(5), kv_format("kivi_int4", HEAD_DIM)
    cache = allocate(form, 4, 64, KV_HEADS, np.zeros, lambda array: array, by_channel=True)
    x = random.standard_normal((3, 32, KV_HEADS, HEAD_DIM)).astype(np.float32)
    cache.put_groups(np.array([128, 160, 0]), x)  # both groups of block 2, and the first of block 0
    numbers = [dequantize_by_channel(codes, pairs[:, None]) for codes, pairs in (quantize_by_channel(y.swapaxes(0, 1), form) for y in x)]
    expected = np.concatenate([y.swapaxes(0, 1) for y in numbers])  # [96, kv_heads, head_dim]
    for start, stop in ((0, 96), (5, 33), (63, 65), (70, 71)):
        np.testing.assert_array_equal(gather_context(cache, np.array([2, 0]), start, stop), expected[start:stop])


def test_a_block_is_whole_groups():
    with pytest.raises(KernelArgumentError, match="groups of 32 tokens; a block of 48"):
        allocate(kv_format("kivi_int4", HEAD_DIM), 4, 48, KV_HEADS, np.zeros, lambda array: array, by_channel=True)
