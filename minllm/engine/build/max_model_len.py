"""The longest sequence: what the options, the model and the memory allow."""

from minllm.cache.capacity import CacheBudget, tokens_that_fit
from minllm.cache.kv_cache import CacheShape
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError, OutOfMemoryError
from minllm.machine.host import available_host_bytes
from minllm.models.config import ModelConfig


def wanted_model_len(options: EngineOptions, config: ModelConfig, shape: CacheShape, budget: CacheBudget) -> int:
    """The requested length of the longest sequence; by default the model's, or what all free memory could cache if that is less.

    The table of rotary positions has this length: for models that claim ten million positions, it alone exceeds a machine's memory.
    Raises InvalidOptionError or OutOfMemoryError if the requested length exceeds the model's or the table does not fit.
    """
    if options.max_model_len is None:
        return min(config.max_position_embeddings, max(2, tokens_that_fit(shape, budget)))
    if options.max_model_len > config.max_position_embeddings:
        raise InvalidOptionError(
            f"max_model_len={options.max_model_len} is more than this model's {config.max_position_embeddings} positions: "
            "lower it, or leave it out for the most that the model allows."
        )
    tables = (config.rope is not None) + (config.local_rope is not None)
    needed, free = tables * 4 * config.head_dim * options.max_model_len, available_host_bytes()
    if needed > free:
        raise OutOfMemoryError(
            f"max_model_len={options.max_model_len} needs a table of rotary positions of {needed:,} bytes, and {free:,} of this machine's "
            f"memory are free: lower it to {free // (8 * tables * config.head_dim)} or less."
        )
    return options.max_model_len


def fitted_model_len(options: EngineOptions, wanted: int, cache_tokens: int, budget: CacheBudget) -> int:
    """The length of the longest sequence: the requested one, or by default what the cache holds.

    Raises OutOfMemoryError if the cache does not hold the requested length.
    """
    if cache_tokens < min(2, wanted):
        tiles = ' (kv_cache_policy="virtual" maps whole tiles; "paged" needs less)' if options.kv_cache_policy == "virtual" else ""
        raise OutOfMemoryError(
            f"The KV cache has memory for {cache_tokens} tokens of a sequence{tiles}, and a prompt and its first new token are 2: "
            f"take a smaller model, or {budget.advice}."
        )
    if options.max_model_len is not None and wanted > cache_tokens:
        raise OutOfMemoryError(
            f"max_model_len={wanted} does not fit the KV cache, which has memory for {cache_tokens} tokens: lower max_model_len to "
            f"{cache_tokens}, or {budget.advice}."
        )
    return min(wanted, cache_tokens)
