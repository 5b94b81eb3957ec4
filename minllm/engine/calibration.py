"""What a quantised cache has to know of a model before its first token: seen on a fixed text while the engine loads.

    offset = mean of k over the text's tokens                  for each layer, KV head and component; of keys only
    scale  = HEADROOM * max |x| / largest fp8 number           for each layer and KV head, of keys and of values; for fp8 only

Keys have components that are large and nearly the same in every token, those that RoPE turns slowly above all. They eat up the range that
the codes have to cover, and say nothing: q . (k - offset) is q . k less a number that all keys of a row share, and softmax does not see
it. So keys are cached without their offset, and nothing has to be added when they are read (SageAttention's smoothing of K, with a mean
that is fixed so that cached tokens never change). Positions matter: as many tokens are looked at as one window of the model's use.

An fp8 number has the same relative error over many powers of two, so a scale need not be exact: it must only keep everything below the
format's largest number, with room for other texts, and well above its smallest. A fixed text rather than the first prompt (vLLM's
calculate_kv_scales) makes one model give one answer to one question, whoever asked before.

Source: Zhang et al. 2024, "SageAttention", section 4.2; Micikevicius et al. 2022, "FP8 Formats for Deep Learning", section 3.
"""

import inspect
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.batch_arrays import Span, build_batch, to_backend
from minllm.kernels.quantization.reference import FLOAT8
from minllm.models import rope, safetensors_file
from minllm.models.decoder import forward

HEADROOM = 2.0  # what is twice as large as anything in the text still fits
TOKENS = 1024


@dataclass(frozen=True)
class Calibration:
    """offsets: float32 [layers, kv_heads, head_dim], of keys. scales: float32 [layers, 2, kv_heads], of keys and of values; for fp8."""

    offsets: np.ndarray
    scales: np.ndarray | None


def calibrate(ops, model, shape: CacheShape, tokenizer, max_tokens: int) -> Calibration | None:
    """The Calibration of a cache of this shape for this model, which takes at most `max_tokens`; None where nothing is quantised."""
    if shape.format is None:
        return None
    keys, values = cached_numbers(ops, model, shape, calibration_tokens(tokenizer, model.config.vocab_size, max_tokens))
    offsets = keys.mean(axis=1)  # [layers, kv_heads, head_dim]
    if not shape.format.is_float:
        return Calibration(offsets, None)
    largest = np.stack([np.abs(x).max(axis=(1, 3)) for x in (keys - offsets[:, None], values)], axis=1)  # [layers, 2, kv_heads]
    largest[largest == 0] = 1  # a head that says nothing takes any scale
    scales = HEADROOM * largest / float(ml_dtypes.finfo(FLOAT8[shape.format.name]).max)
    return Calibration(offsets, scales.astype(np.float32))


def calibration_tokens(tokenizer, vocab_size: int, max_tokens: int) -> list[int]:
    """Some English and code that every installation has: minllm's own. Ids beyond the vocabulary are folded into it."""
    text = inspect.getsource(rope) + inspect.getsource(safetensors_file)
    return [token % vocab_size for token in tokenizer.encode(text)[: min(TOKENS, max_tokens)]]


def cached_numbers(ops, model, shape: CacheShape, token_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a text as a plain cache holds them: float32 [layers, tokens, kv_heads, head_dim] each."""
    blocks, tokens = blocks_needed(len(token_ids), shape.block_size), len(token_ids)
    plain = KVCache(ops, CacheShape(shape.num_layers, shape.block_size, shape.kv_heads, shape.head_dim, shape.dtype), blocks)
    batch = build_batch([Span(token_ids, 0, range(blocks))], [tokens - 1], shape.block_size)
    forward(ops, model, to_backend(batch, ops), plain.layers)

    def rows(cache) -> np.ndarray:
        return ops.to_host(cache).astype(np.float32).reshape(-1, shape.kv_heads, shape.head_dim)[:tokens]

    return np.stack([rows(layer.key) for layer in plain.layers]), np.stack([rows(layer.value) for layer in plain.layers])
