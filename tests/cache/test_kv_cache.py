"""The KV cache: shapes, zeros and bytes."""

import ml_dtypes
import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.kernels.quantization.formats import TOKEN_FORMATS, kv_format
from minllm.ops.numpy_ops import NumpyOps


class ZerosOnly:
    """The operations that the cache asks of a backend."""

    @staticmethod
    def zeros(shape, dtype):
        return np.zeros(shape, dtype)

    @staticmethod
    def array(host_array):
        return host_array


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


@pytest.mark.parametrize("name", [None, "int8", "fp8"])
def test_blocks_are_copied_in_every_layer_one_after_the_other(name):
    """Codes and scales alike. The second copy reads what the first has written."""
    kv = None if name is None else kv_format(name, 64)
    cache = KVCache(NumpyOps(), CacheShape(2, 4, 3, 64, np.dtype(np.float32), kv), num_blocks=5)
    halves = [half for layer in cache.layers for half in (layer.key, layer.value)]
    arrays = halves if name is None else [half.codes for half in halves]
    arrays += [half.scales for half in halves] if name == "int8" else []
    for part, of_all in zip(arrays, [part for array in cache.arrays for part in array], strict=True):
        assert np.shares_memory(part, of_all)
    for array in arrays:
        array[:] = np.arange(5).reshape(5, *[1] * (array.ndim - 1))
    cache.copy_blocks(NumpyOps(), [(4, 1), (1, 2), (0, 4)])
    for array in arrays:
        assert [np.unique(block).tolist() for block in array] == [[0], [4], [4], [3], [0]]


def test_a_llama_1b_token_takes_32_kib():
    shape = CacheShape(num_layers=16, block_size=1, kv_heads=8, head_dim=64, dtype=np.dtype(ml_dtypes.bfloat16))
    assert shape.bytes_per_block == 32 * 1024


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_bytes_of_quantised_caches(name):
    """Codes and the scales of every token count; what a layer has once (the scales of fp8, offsets) does not."""
    shape = CacheShape(3, 16, 2, 64, np.dtype(np.float32), kv_format(name, 64))
    cache = KVCache(ZerosOnly, shape, num_blocks=5)
    halves = [half for layer in cache.layers for half in (layer.key, layer.value)]
    scales = 0 if name.startswith("fp8") else sum(half.scales.nbytes for half in halves)
    assert cache.num_bytes == sum(half.codes.nbytes for half in halves) + scales
    assert all(half.shape == (5, 16, 2, 64) for half in halves)


def test_calibration_reaches_every_layer():
    cache = KVCache(ZerosOnly, CacheShape(2, 4, 3, 64, np.dtype(np.float32), kv_format("fp8", 64)), num_blocks=1)
    smoothing, scales = np.arange(1152, dtype=np.float32).reshape(2, 3, 3, 64), np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    cache.calibrate(smoothing, scales, ZerosOnly)
    for i, layer in enumerate(cache.layers):
        assert (layer.key.smoothing == smoothing[i]).all() and layer.value.smoothing is None
        assert (layer.key.scales == scales[i, 0]).all() and (layer.value.scales == scales[i, 1]).all()
