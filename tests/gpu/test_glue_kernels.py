"""The small kernels on a device: two that agree to the bit, and arrays beyond 2**31 elements."""

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.embedding.lookup import embedding
from minllm.kernels.kv.copy_blocks import copy_blocks, copy_blocks_of_layers
from minllm.kernels.kv.ladder.append import append
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append
from minllm.kernels.kv.qkv_rope_append_vector import MANY_TOKENS
from minllm.kernels.rope.reference import rope_table
from tests.kernels.guarded import bits, poisoned, random


@pytest.mark.parametrize("norm", [False, True])
def test_few_tokens_and_many_give_the_same_bits(norm, device):
    """Of many tokens a thread has two heads, of few one: another kernel, and the same numbers."""
    many, few, heads, kv_heads, head_dim = MANY_TOKENS, 3, 32, 8, 128
    rows = random((many, (heads + 2 * kv_heads) * head_dim), ml_dtypes.bfloat16, 0)
    norms = [device.array(weight) for weight in random((2, head_dim), ml_dtypes.bfloat16, 1)] if norm else [None, None]
    table = device.array(rope_table(many, head_dim, 10000.0 ** (-np.arange(0, head_dim, 2) / head_dim)))
    results = []
    for tokens in (few, many):
        caches = [device.array(np.zeros((many // 16, 16, kv_heads, head_dim), ml_dtypes.bfloat16)) for _ in range(2)]
        query = device.array(np.zeros((tokens, heads, head_dim), ml_dtypes.bfloat16))
        places = [device.array(np.arange(tokens, dtype=np.int32)) for _ in range(2)]
        qkv_rope_append(device.array(rows[:tokens]), *places, *caches, query, table, False, *norms)
        results.append([bits(device.host(query))[:few], *(bits(device.host(cache)).reshape(many, -1)[:few] for cache in caches)])
    for of_few, of_many in zip(*results, strict=True):
        np.testing.assert_array_equal(of_few, of_many)
        assert of_few.any()


@pytest.fixture(scope="module")
def huge():
    """bfloat16 [2**17 + 2, 16, 8, 128]: 4 GiB, whose last blocks lie beyond 2**31 elements. Not initialised: nobody reads it all."""
    from minllm.runtime.memory import empty

    try:
        return [empty((2**17 + 2, 16, 8, 128), ml_dtypes.bfloat16) for _ in range(2)]
    except MemoryError as error:
        pytest.skip(f"two caches of 4 GiB do not fit this device: {error}")


@pytest.mark.xdist_group("gigabytes")
def test_offsets_into_a_cache_do_not_overflow(huge, device):
    key_cache, value_cache = huge
    last = (2**17 + 2) * 16 - 1
    slots = np.array([last, -1, last - 17], np.int32)
    key, value = random((2, 3, 8, 128), ml_dtypes.bfloat16, 0)
    append(device.array(key), device.array(value), key_cache, value_cache, device.array(slots))
    for cache, expected in ((key_cache, key), (value_cache, value)):
        tail = device.host(cache[2**17 :]).reshape(-1, 8, 128)
        np.testing.assert_array_equal(tail[[-1, -18]], expected[[0, 2]])

    copy_blocks(value_cache, device.array(np.array([[2**17 + 1, 2**17 - 1]], np.int32)))
    halves = value_cache.reshape(2, 2**16 + 1, *value_cache.shape[1:])
    copy_blocks_of_layers(halves, device.array(np.array([[2**16, 2**16 - 3]], np.int32)))  # in the second half: 2**17 + 1 to 2**17 - 2
    np.testing.assert_array_equal(device.host(value_cache[2**17 - 2 : 2**17])[:, -1], np.stack([value[0]] * 2))

    qkv, query = random((3, 24 * 128), ml_dtypes.bfloat16, 1), poisoned(device, (3, 8, 128), ml_dtypes.bfloat16)
    arrays = [device.array(array) for array in (qkv, np.zeros(3, np.int32), slots)]
    qkv_rope_append(*arrays, key_cache, value_cache, query.array)
    for cache, columns in ((key_cache, slice(8, 16)), (value_cache, slice(16, 24))):
        tail = device.host(cache[2**17 :]).reshape(-1, 8, 128)
        np.testing.assert_array_equal(tail[[-1, -18]], qkv.reshape(3, 24, 128)[[0, 2], columns])


@pytest.mark.xdist_group("gigabytes")
def test_offsets_into_a_table_do_not_overflow(huge, device):
    table = huge[0].reshape((2**17 + 2) * 16, 1024)
    rows = random((2, 1024), ml_dtypes.bfloat16, 2)
    last = table.shape[0] - 1
    append(*[device.array(rows.reshape(2, 8, 128))] * 2, *huge, device.array(np.array([last, last - 5], np.int32)))
    out = poisoned(device, (2, 1024), ml_dtypes.bfloat16)
    embedding(device.array(np.array([last, last - 5], np.int32)), table, out.array)
    np.testing.assert_array_equal(out.result(), rows)
