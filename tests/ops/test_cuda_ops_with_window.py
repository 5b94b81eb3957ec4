"""A residual window in the kernels' operations: a prompt in chunks and a decode step in the simulator, against NumPy, codes to the bit."""

import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.residual_window import window_room
from minllm.engine.batch_arrays import Span, build_batch, decode_batch, to_backend
from minllm.kernels.quantization.formats import kv_format
from minllm.models.decoder import forward
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.ops import small_models

WINDOW, BLOCK_SIZE, RING = 32, 32, 1
SHAPE = dict(num_attention_heads=2, num_key_value_heads=1, head_dim=32, max_position_embeddings=128)


def logits_of(ops, model, name):
    """Of the last rows of two chunks and of two decode steps of one sequence; and the keys' codes."""
    form = kv_format(name, 32)
    shape = CacheShape(model.config.num_hidden_layers, BLOCK_SIZE, 1, 32, ops.dtype, form, WINDOW)
    cache, table = KVCache(ops, shape, 4, window_room(WINDOW, 2, 64)), np.array([[2, 0, 3]], np.int32)
    text, found = [7 * i % 37 for i in range(66)], []
    for start, end in ((0, 60), (60, 65)):
        batch = build_batch([Span(text[start:end], start, table[0], RING)], [end - start - 1], BLOCK_SIZE, WINDOW)
        found.append(ops.to_host(forward(ops, model, to_backend(batch, ops), cache.layers)))
    for position in (65,):
        arrays = (np.array([text[position]], np.int32), np.array([position], np.int32), table)
        batch = decode_batch(*arrays, BLOCK_SIZE, np.array([RING]), WINDOW)
        found.append(ops.to_host(forward(ops, model, to_backend(batch, ops), cache.layers)))
    return found, ops.to_host(cache.layers[0].key.codes)


@pytest.mark.parametrize("name", ["int8", "kivi_int4"])
def test_forwards_agree_with_numpy(name, monkeypatch):
    monkeypatch.setitem(small_models.CONFIGS, "llama", small_models.CONFIGS["llama"] | SHAPE)
    ours, theirs = (
        logits_of(ops, small_models.small_model("llama", ops), name) for ops in (CudaOps("float16", simulated=True), NumpyOps("float16"))
    )
    for our, their in zip(ours[0], theirs[0], strict=True):
        np.testing.assert_allclose(our, their, rtol=0, atol=1e-2 * np.abs(their).max())
    written = (theirs[1] != 0).any(axis=-1)
    assert written.sum() > 50 and (ours[1] == theirs[1]).mean() > 0.97  # keys that round differently before they are quantised
