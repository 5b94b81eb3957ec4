"""Refuse options and models that cannot be split, before any process starts."""

from minllm.costs.parallel import shard
from minllm.engine.build.engine import model_config
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError
from minllm.kernels.arguments import ceil_div
from minllm.parallel.context_parallel import check_context_ranks
from minllm.parallel.grid import check_stages
from minllm.parallel.nccl import bindings
from minllm.parallel.ranks_per_gpu import RANKS_PER_GPU, ranks_per_gpu
from minllm.runtime.device import device_names


def check_split(options: EngineOptions, ranks_here: int | None = None) -> None:
    """Raise InvalidOptionError for options or a model that ranks cannot share.

    ranks_here: the number of ranks that need a GPU of this host; None: all.
    """
    tensor, pipeline = options.tensor_parallel_size, options.pipeline_parallel_size
    sizes = [f"tensor_parallel_size={tensor}"] * (tensor > 1) + [f"pipeline_parallel_size={pipeline}"] * (pipeline > 1)
    together = f"is not allowed together with {' and '.join(sizes)}"
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
    if pipeline > 1 and options.speculative_config is not None:
        raise InvalidOptionError(
            f"speculative_config {together}: drafts would have to pass through all stages before the next are made. Leave it out, or take "
            "tensor_parallel_size alone."
        )
    device = options.resolved_device()
    if device == "cpu" and options.kernel_variants:
        raise InvalidOptionError("kernel_variants chooses among GPU kernels by name, and this LLM runs on the CPU: leave names out.")
    if device == "cuda":
        check_gpus(options.num_ranks if ranks_here is None else ranks_here)
    config = model_config(options)
    shard(config, tensor)
    if options.decode_context_parallel_size > 1:
        check_context_ranks(config, tensor, options.decode_context_parallel_size)
        check_shared_contexts(options)
    check_stages(config.num_hidden_layers, pipeline)


def check_shared_contexts(options: EngineOptions) -> None:
    """Raise InvalidOptionError for options that are not implemented for ranks that share contexts."""
    refused = {
        f"kv_cache_policy={options.kv_cache_policy!r}": (options.kv_cache_policy != "paged", 'take "paged"'),
        f"kv_cache_dtype={options.kv_cache_dtype!r}": (options.kv_cache_dtype != "auto", 'take "auto"'),
        "kernel_variants of attention": ("attention" in (options.kernel_variants or {}), "leave it out"),
        "speculative_config with a draft model": (
            options.speculation is not None and options.speculation.method == "draft_model", "take ngram drafts"
        ),
    }  # fmt: skip
    for what, (is_given, advice) in refused.items():
        if is_given:
            size = options.decode_context_parallel_size
            raise InvalidOptionError(f"{what} is not allowed together with decode_context_parallel_size={size}: {advice}.")


def check_gpus(ranks: int) -> None:
    """Raise InvalidOptionError unless there are GPUs of one kind for so many ranks, and NCCL's bindings if each has one of its own."""
    names, each = device_names(), ranks_per_gpu()
    used = names[: ceil_div(ranks, each)]
    if ranks > len(names) * each:
        raise InvalidOptionError(
            f"{ranks} ranks need {ceil_div(ranks, each)} GPUs, {'one' if each == 1 else f'{each} ranks'} each, and this machine shows "
            f"{len(names)} ({', '.join(names)}): lower tensor_parallel_size or pipeline_parallel_size, let CUDA_VISIBLE_DEVICES show more, "
            f"or, to try ranks on fewer GPUs, slowly, set {RANKS_PER_GPU}={ceil_div(ranks, max(1, len(names)))}."
        )
    if len(set(used)) > 1:
        raise InvalidOptionError(
            f"{ranks} ranks need GPUs of one kind, which compute the same bits, and these are {', '.join(used)}: choose some with "
            "CUDA_VISIBLE_DEVICES."
        )
    if each == 1:
        bindings()
