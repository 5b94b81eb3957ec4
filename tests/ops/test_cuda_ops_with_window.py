"""A residual window in the kernels' operations: a chunk of a prompt and a decode step in the simulator, against NumPy."""

from copy import deepcopy

import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.residual_window import window_room
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.kernels.quantization.formats import kv_format
from minllm.models.decoder import forward
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.ops import small_models
from tests.ops.decode_batches import decode_batch

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]

WINDOW, BLOCK_SIZE, RING, TABLE = 32, 32, 1, np.array([[2, 0, 3]], np.int32)
SHAPE = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=128)


def cache_after(ops, model, name, text):
    """A cache that has seen the text, in one chunk."""
    shape = CacheShape(model.config.num_hidden_layers, BLOCK_SIZE, 1, 32, ops.dtype, kv_format(name, 32), WINDOW)
    cache = KVCache(ops, shape, 4, window_room(WINDOW, 2, 64))
    batch = build_batch([NewTokens(text, 0, TABLE[0], RING)], [0], BLOCK_SIZE, WINDOW)
    forward(ops, model, batch, cache.layers)
    return cache


def logits_of(ops, model, cache, text, start):
    """Of a chunk that completes a group, and of a decode step behind it; and the keys' codes."""
    chunk = build_batch([NewTokens(text[start:-1], start, TABLE[0], RING)], [len(text) - start - 2], BLOCK_SIZE, WINDOW)
    last = (np.array(text[-1:], np.int32), np.array([len(text) - 1], np.int32), TABLE)
    step = decode_batch(*last, BLOCK_SIZE, np.array([RING]), WINDOW)
    found = [ops.to_host(forward(ops, model, to_backend(batch, ops), cache.layers)) for batch in (chunk, step)]
    return found, ops.to_host(cache.layers[0].key.codes)


@pytest.mark.parametrize("name", ["int8", "kivi_int4"])
def test_forwards_agree_with_numpy(name, monkeypatch):
    monkeypatch.setitem(small_models.CONFIGS, "llama", small_models.CONFIGS["llama"] | SHAPE)
    ops, text = NumpyOps("float16"), [7 * i % 37 for i in range(66)]
    model = small_models.small_model("llama", ops)
    cache, simulated = cache_after(ops, model, name, text[:61]), CudaOps("float16", simulated=True)
    ours = logits_of(simulated, small_models.small_model("llama", simulated), deepcopy(cache), text, 61)
    theirs = logits_of(ops, model, cache, text, 61)
    for our, their in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(our, their, rtol=0, atol=1e-2 * np.abs(their).max())
    assert (theirs[1] != 0).any(axis=-1).sum() == (66 if name == "int8" else 64)
    assert (ours[1] == theirs[1]).mean() > 0.97  # keys that round differently before they are quantised
