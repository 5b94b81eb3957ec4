"""What cannot be split, refused before any process starts."""

from minllm.costs.parallel import shard
from minllm.engine.loading import model_config
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError


def check_split(options: EngineOptions) -> None:
    """Raise InvalidOptionError for options or a model that tensor_parallel_size ranks cannot share."""
    ranks = options.tensor_parallel_size
    together = f"is not allowed together with tensor_parallel_size={ranks}"
    if options.kv_cache_policy == "virtual":
        raise InvalidOptionError(
            f'kv_cache_policy="virtual" {together}: its pages are mapped by the process that schedules. Take "paged" or "contiguous".'
        )
    if options.preemption in ("swap", "auto"):
        raise InvalidOptionError(
            f'preemption={options.preemption!r} {together}: swapping copies the cache of one process. Take "recompute" or "drop".'
        )
    if any(not isinstance(variant, str) for variant in (options.kernel_variants or {}).values()):
        raise InvalidOptionError(f"A launcher of your own in kernel_variants {together}: it cannot be sent to another process.")
    device = options.resolved_device()
    if device == "cpu" and options.kernel_variants:
        raise InvalidOptionError("kernel_variants chooses among GPU kernels by name, and this LLM runs on the CPU: leave names out.")
    shard(model_config(options), ranks)
