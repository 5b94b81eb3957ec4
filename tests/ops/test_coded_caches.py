"""A decode step of one sequence with a cache of codes: fused with the projection where a pair of components becomes codes, else apart."""

import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import NewTokens, build_batch
from minllm.kernels.quantization.formats import kv_format
from minllm.models.decoder import forward
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.formats import WEIGHT_FORMATS
from tests.ops.decode_batches import decode_batch
from tests.ops.small_models import small_model

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]

BLOCK_SIZE, TABLE, TEXT = 16, np.array([[2, 0]], np.int32), [7 * i % 37 for i in range(20)]


def calibrated_cache(ops, model, name):
    """A cache of smoothed keys for "llama, wide", empty."""
    config, random = model.config, np.random.default_rng(5)
    cache = KVCache(ops, CacheShape(config.num_hidden_layers, BLOCK_SIZE, 1, 64, ops.dtype, kv_format(name, 64)), 3)
    factor = random.uniform(0.7, 1.4, (config.num_hidden_layers, 1, 64)).astype(np.float32)
    smoothing = np.stack([random.normal(0, 0.2, factor.shape).astype(np.float32), factor, 1 / factor], axis=1)
    scales = random.uniform(0.01, 0.03, (config.num_hidden_layers, 2, 1)).astype(np.float32)
    cache.calibrate(smoothing, scales if name.startswith("fp8") else None, ops)
    return cache


def step(ops, weights, name):
    """The logits of the text's last token, behind the others, and what the layers' caches then hold at its slot."""
    model = small_model("llama, wide", ops, WEIGHT_FORMATS.get(weights))
    cache = calibrated_cache(ops, model, name)
    forward(NumpyOps(ops.dtype), small_model("llama, wide", NumpyOps(ops.dtype), WEIGHT_FORMATS.get(weights)), prompt(), cache.layers)
    last = len(TEXT) - 1
    batch = decode_batch(np.array(TEXT[last:], np.int32), np.array([last], np.int32), TABLE, BLOCK_SIZE)
    logits = ops.to_host(forward(ops, model, batch, cache.layers))
    at = TABLE[0, last // BLOCK_SIZE], last % BLOCK_SIZE
    return logits, np.stack([one.read(lambda array: array[at]) for layer in cache.layers for one in (layer.key, layer.value)])


def prompt():
    """The batch of the text without its last token."""
    return build_batch([NewTokens(TEXT[:-1], 0, TABLE[0], 0)], [0], BLOCK_SIZE)


CASES = [(None, "fp8_e4m3", True), ("fp8", "fp8_e4m3", True), ("int4", "fp8_e5m2", True), (None, "int8", False)]


@pytest.mark.parametrize(("weights", "name", "fused"), CASES)
def test_the_projection_appends_codes_where_it_can(weights, name, fused, launches):
    ours = step(CudaOps("bfloat16", simulated=True), weights, name)
    assert any("qkv_rope_append" in one for one in launches) is not fused
    launches.clear()
    apart = step(CudaOps("bfloat16", {"matmul": "naive"}, simulated=True), weights, name)
    assert any("qkv_rope_append" in one for one in launches)
    theirs = step(NumpyOps("bfloat16"), weights, name)
    for logits, kept in (ours, apart):
        np.testing.assert_allclose(logits, theirs[0], rtol=0, atol=0.04 * np.abs(theirs[0]).max())
        np.testing.assert_allclose(kept, theirs[1], rtol=0.26, atol=0.03 * np.abs(theirs[1]).max())  # the next code at most
        assert np.abs(kept - theirs[1]).mean() < 0.04 * np.abs(theirs[1]).mean()  # and few of them
