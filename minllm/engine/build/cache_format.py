"""Check the requested KV cache against model, machine and options, and compute its shape."""

from dataclasses import replace

import numpy as np

from minllm.cache.kv_cache import CacheShape, SlidingLayers
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError, KernelArgumentError, UnsupportedModelError
from minllm.kernels.attention.common.arguments import MAX_HEAD_DIM, MOST_BLOCK_ELEMENTS
from minllm.kernels.attention.variants import QUANTIZED, VARIANTS
from minllm.kernels.quantization.formats import FP8_SINCE, full_name, kv_format
from minllm.models.config import ModelConfig


def cache_shape(
    config: ModelConfig, dtype: np.dtype, block_size: int, kv_cache_dtype: str = "auto", residual_window: int = 0
) -> CacheShape:
    """The shape of a model's cache. Raises InvalidOptionError if its heads cannot be cached in this format."""
    found = None
    if kv_cache_dtype != "auto":
        try:
            found = kv_format(kv_cache_dtype, config.head_dim)
        except KernelArgumentError as error:
            raise InvalidOptionError(f"kv_cache_dtype={kv_cache_dtype!r} is not allowed with this model: {error}") from error
    heads = (config.num_key_value_heads, config.head_dim)
    return CacheShape(config.num_hidden_layers, block_size, *heads, dtype=dtype, format=found, residual_window=residual_window)


def with_sliding_layers(shape: CacheShape, config: ModelConfig, options: EngineOptions) -> CacheShape:
    """The shape with local blocks for layers with a sliding window (cache/window_blocks.py), where the engine has them.

    That is in a plain paged cache of one rank whose sequences neither are swapped out nor verify drafts, for a model in which some layers
    have one common window and the others see the whole context. Elsewhere all layers keep the whole context, with the same results.
    """
    local = tuple(layer for layer, window in enumerate(config.sliding_windows) if window)
    plain = shape.format is None and options.kv_cache_policy == "paged" and options.preemption in ("recompute", "drop")
    if not plain or options.speculative_config is not None or not config.mixed_window:
        return shape
    return replace(shape, sliding=SlidingLayers(config.mixed_window, local))


def check_shape(device: str, shape: CacheShape) -> None:
    """Raise UnsupportedModelError or InvalidOptionError if kernels do not support heads or blocks of this size; NumPy supports any."""
    if device == "cpu":
        return
    if shape.head_dim % 8 or shape.head_dim > MAX_HEAD_DIM:
        raise UnsupportedModelError(
            f"The heads of this model have {shape.head_dim} components, and attention on a GPU takes multiples of 8 up to {MAX_HEAD_DIM}: "
            'device="cpu" runs it.'
        )
    most = MOST_BLOCK_ELEMENTS // (shape.kv_heads * shape.head_dim)
    if shape.block_size > most:
        raise InvalidOptionError(
            f"block_size={shape.block_size} is not allowed with this model: a layer's keys of a block are {shape.kv_heads} heads of "
            f"{shape.head_dim} for each token, and kernels address {MOST_BLOCK_ELEMENTS:,} within a block: take {most} or less, usually 16."
        )


def check_cache_dtype(device: str, dtype: str, options: EngineOptions) -> None:
    """Raise InvalidOptionError if device, dtype or the attention variant in kernel_variants does not support the requested cache."""
    wanted, attention = options.kv_cache_dtype, (options.kernel_variants or {}).get("attention")
    reads_codes = attention in VARIANTS.names(QUANTIZED)
    if wanted == "auto":
        if reads_codes:
            raise InvalidOptionError(f"The attention {attention!r} in kernel_variants reads a quantised cache: choose a kv_cache_dtype.")
        return
    if attention is not None and not reads_codes:
        raise InvalidOptionError(f"kv_cache_dtype={wanted!r} is not allowed: the attention in kernel_variants reads a plain cache.")
    if attention is not None and options.kv_cache_residual_window:
        raise InvalidOptionError(
            f"The attention {attention!r} in kernel_variants reads codes alone: leave it out, or take kv_cache_residual_window=0."
        )
    if device == "cpu":
        return
    from minllm.runtime.device import current_device

    if dtype == "float32":
        raise InvalidOptionError(f"kv_cache_dtype={wanted!r} goes with the dtypes float16 and bfloat16 on a GPU, and dtype is float32.")
    capability = current_device().compute_capability
    if full_name(wanted).startswith("fp8") and tuple(capability) < FP8_SINCE:
        raise InvalidOptionError(
            f"kv_cache_dtype={wanted!r} needs a GPU that converts to fp8, compute capability {FP8_SINCE[0]}.{FP8_SINCE[1]} or more, and "
            f"this one has {capability[0]}.{capability[1]}: take int8 or int4."
        )
