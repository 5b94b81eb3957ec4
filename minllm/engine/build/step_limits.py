"""The numbers of sequences and tokens of a step that the options leave open."""

from dataclasses import replace
from typing import Any

from minllm.cache.capacity import CacheBudget
from minllm.cache.kv_cache import CacheShape
from minllm.costs.parameters import kv_bytes_per_token
from minllm.costs.step_limits import STEP_LIMITS, StepLimits, step_limits
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.share import RankShare
from minllm.machine.hardware import find_gpu
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.weights.format import WeightFormat
from minllm.weights.formats import plain_format


def with_step_limits(
    options: EngineOptions, device: str, ops: Any, part: ModelConfig, weight_format: WeightFormat | None, shape: CacheShape,
    share: RankShare | None,
) -> EngineOptions:  # fmt: skip
    """The options with max_num_seqs and max_num_batched_tokens, which are the given ones, or else costs/step_limits.py's for the device.

    part: the model, or a rank's part. If several ranks share the model, the rank with the least memory decides for all. A given
    max_num_seqs raises the tokens of a step on a GPU above itself.
    """
    sequences, tokens = options.max_num_seqs, options.max_num_batched_tokens
    if sequences is not None and tokens is not None:
        return options
    limits = STEP_LIMITS if device == "cpu" else _gpu_limits(options, ops, part, weight_format, shape, share)
    if tokens is None:
        tokens = limits.tokens if sequences is None or device == "cpu" else max(limits.tokens, sequences + 1)
    return replace(options, max_num_seqs=limits.sequences if sequences is None else sequences, max_num_batched_tokens=tokens)


def _gpu_limits(
    options: EngineOptions, ops: Any, part: ModelConfig, weight_format: WeightFormat | None, shape: CacheShape, share: RankShare | None
) -> StepLimits:  # fmt: skip
    from minllm.runtime.device import current_device

    free, total = ops.device_memory()
    weights = layout_of(part, weight_format=weight_format).weight_bytes(ops.dtype.itemsize)
    room = int(total * options.gpu_memory_utilization) - (total - free) - weights
    if share is not None:
        room = share.agreed(CacheBudget(room, ""), "cuda", options).num_bytes
    kv_token_bytes = kv_bytes_per_token(part, shape.bytes_per_head / shape.head_dim)
    return step_limits(part, weight_format or plain_format(ops.dtype), kv_token_bytes, room, find_gpu(current_device().name))
