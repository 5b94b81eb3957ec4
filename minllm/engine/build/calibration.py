"""Calibrate a quantised cache for a model on a fixed text, while the engine loads.

    mean, deviation  of k over the text's tokens                for each layer, KV head and component
    factor           1 / deviation ** SHARE, normalised to around 1 within a head
    scale            HEADROOM * max |x| / largest fp8 number    for each layer and KV head, for keys and for values; for fp8 only

Some key components are large and nearly the same in every token, above all those that RoPE rotates slowly. They widen the range that
the codes have to cover without carrying information: q . (k - mean) is q . k minus a number that all keys of a row share, and softmax
cancels it. So keys are cached without their mean, and nothing has to be added when they are read (SageAttention's smoothing of K, with a
fixed mean so that cached tokens never change). Keys depend on their positions, so the text is as long as one window of the model's use.
Components with a large deviation set the step of their whole group; a factor scales them down, which leaves finer steps to the others, and
the query is divided by the factor (SmoothQuant's idea, applied as in QServe). All of this happens when keys are written: kernels that
read the cache are unaffected.

An fp8 number has the same relative error over many powers of two, so a scale need not be exact: it must only keep everything below the
format's largest number, with room for other texts, and well above its smallest. A fixed text, rather than the first prompt (vLLM's
calculate_kv_scales), makes answers independent of earlier requests.

Sources: Zhang et al. 2024, "SageAttention", section 4.2; Lin et al. 2024, "QServe", section 4.2; Micikevicius et al. 2022, "FP8 Formats
for Deep Learning", section 3.
"""

from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.kernels.quantization.reference import FLOAT8
from minllm.models.decoder import forward

TEXT = Path(__file__).parents[2] / "data" / "calibration.txt"  # English and code; every version of minllm has the same
HEADROOM = 2.0  # numbers twice as large as any in the text still fit
TOKENS = 1024
SHARE = 0.3  # 0 leaves components unchanged, 1 gives all the same deviation; for int4, 0.3 is the best of 0, 0.3 and 0.5


@dataclass(frozen=True)
class Calibration:
    """The constants of a quantised cache.

    smoothing: float32 [layers, 3, kv_heads, head_dim], the mean, factor and 1 / factor of keys. scales: float32 [layers, 2, kv_heads], of
    keys and values; None unless the format is fp8.
    """

    smoothing: np.ndarray
    scales: np.ndarray | None


def calibrate(ops, model, shape: CacheShape, tokenizer, max_tokens: int) -> Calibration | None:
    """The Calibration of a cache of this shape for a model that supports `max_tokens`.

    None for a cache that is not calibrated.
    """
    if not is_calibrated(shape):
        return None
    keys, values = cached_numbers(ops, model, shape, calibration_tokens(tokenizer, model.config.vocab_size, max_tokens))
    smoothing = smoothing_of(keys)
    if shape.format is None or not shape.format.is_float:
        return Calibration(smoothing, None)
    smoothed = (keys - smoothing[:, None, 0]) * smoothing[:, None, 1]
    largest = np.stack([np.abs(x).max(axis=(1, 3)) for x in (smoothed, values)], axis=1)  # [layers, 2, kv_heads]
    largest[largest == 0] = 1  # a head of only zeros works with any scale
    scales = HEADROOM * largest / float(ml_dtypes.finfo(FLOAT8[shape.format.name]).max)
    return Calibration(smoothing, scales.astype(np.float32))


def is_calibrated(shape: CacheShape) -> bool:
    """Whether a cache is quantised, but not by channel: there each group has its own zero and scale."""
    return shape.format is not None and not shape.format.keys_by_channel


def smoothing_of(keys: np.ndarray) -> np.ndarray:
    """float32 [layers, 3, kv_heads, head_dim] from keys [layers, tokens, kv_heads, head_dim]: mean, factor and 1 / factor."""
    mean, deviation = keys.mean(axis=1), keys.std(axis=1)
    deviation = np.maximum(deviation, 1e-3 * deviation.max(axis=-1, keepdims=True) + 1e-6)  # a floor for constant components
    logarithm = SHARE * np.log(deviation)
    logarithm -= logarithm.mean(axis=-1, keepdims=True)
    return np.stack([mean, np.exp(-logarithm), np.exp(logarithm)], axis=1).astype(np.float32)


def calibration_tokens(tokenizer, vocab_size: int, max_tokens: int) -> list[int]:
    """The first tokens of TEXT; ids are taken modulo the vocabulary."""
    token_ids = tokenizer.encode(TEXT.read_text(encoding="utf-8"))
    return [token % vocab_size for token in token_ids[: min(TOKENS, max_tokens)]]


def cached_numbers(ops, model, shape: CacheShape, token_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a text as in a plain cache, float32 [layers, tokens, kv_heads, head_dim] each."""
    tokens, block_size = len(token_ids), min(shape.block_size, TOKENS)
    blocks = blocks_needed(tokens, block_size)
    plain = KVCache(ops, CacheShape(shape.num_layers, block_size, shape.kv_heads, shape.head_dim, shape.dtype), blocks)
    batch = build_batch([NewTokens(token_ids, 0, range(blocks))], [tokens - 1], block_size)
    forward(ops, model, to_backend(batch, ops), plain.layers)

    def rows(cache) -> np.ndarray:
        return ops.to_host(cache).astype(np.float32).reshape(-1, shape.kv_heads, shape.head_dim)[:tokens]

    return np.stack([rows(layer.key) for layer in plain.layers]), np.stack([rows(layer.value) for layer in plain.layers])
