"""The KV cache: shapes, zeros and bytes."""

import ml_dtypes
import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache


class ZerosOnly:
    """The one operation that the cache asks of a backend."""

    @staticmethod
    def zeros(shape, dtype):
        return np.zeros(shape, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_shapes_and_bytes(dtype):
    shape = CacheShape(num_layers=3, block_size=16, kv_heads=2, head_dim=40, dtype=np.dtype(dtype))
    cache = KVCache(ZerosOnly, shape, num_blocks=5)
    assert len(cache.layers) == 3
    for layer in cache.layers:
        for array in (layer.key, layer.value):
            assert array.shape == (5, 16, 2, 40) and array.dtype == dtype and not array.any()
    assert cache.num_tokens == 80
    assert cache.num_bytes == sum(layer.key.nbytes + layer.value.nbytes for layer in cache.layers)


def test_a_llama_1b_token_takes_32_kib():
    shape = CacheShape(num_layers=16, block_size=1, kv_heads=8, head_dim=64, dtype=np.dtype(ml_dtypes.bfloat16))
    assert shape.bytes_per_block == 32 * 1024
