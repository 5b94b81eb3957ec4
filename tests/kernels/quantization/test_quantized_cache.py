"""Quantised caches in NumPy: what is written at a slot is what attention reads there."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.kv.append import append_reference
from minllm.kernels.quantization.cache import allocate, check_same_format
from minllm.kernels.quantization.formats import KV_FORMATS, kv_format
from minllm.kernels.quantization.reference import dequantize_reference, quantize_reference

BLOCK_SIZE, KV_HEADS, HEAD_DIM = 4, 2, 32


def empty_cache(name, num_blocks=6):
    return allocate(kv_format(name, HEAD_DIM), num_blocks, BLOCK_SIZE, KV_HEADS, np.zeros, lambda array: array)


@pytest.mark.parametrize("name", KV_FORMATS)
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
