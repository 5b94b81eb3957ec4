"""How much of this machine's memory the model and its KV cache may take, and what a user can do where it is too little.

The advice is part of the budget because it depends on whose memory it is: a GPU's is shared out by options of LLM(), a host's is what other
programs leave.
"""

from typing import Any

import numpy as np

from minllm.cache.capacity import CacheBudget, activation_bytes
from minllm.costs.parameters import widest_activation
from minllm.engine.options import EngineOptions
from minllm.errors import OutOfMemoryError
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.weights.format import WeightFormat

MAX_HOST_BYTES = 4 * 2**30  # a cache in the host's memory takes at most this
HOST_WEIGHT = np.dtype(np.float32)  # NumPy multiplies by weights in float32, whatever they were rounded to


def available_host_bytes() -> int:
    """Memory that the operating system could give to this process now, in bytes."""
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def check_weights_fit(device: str, ops: Any, config: ModelConfig, weight_format: WeightFormat | None = None) -> None:
    """Raises OutOfMemoryError if the weights alone are more than the memory that is free: better now than half-way.

    weight_format: of the layers' matrices; None is plain.
    """
    itemsize, free = HOST_WEIGHT.itemsize, 0
    if device == "cpu":
        free, owner, advice = available_host_bytes(), "this machine's memory", "end other programs"
    else:
        itemsize, (free, _) = ops.dtype.itemsize, ops.device_memory()
        owner, advice = "the GPU's memory", "end other programs on the GPU"
    needed = layout_of(config, weight_format=weight_format).weight_bytes(itemsize)
    if needed > free:
        each = f"{itemsize} for each of {needed // itemsize:,} numbers" if weight_format is None else f"most of it as {weight_format.name}"
        raise OutOfMemoryError(
            f"The weights of this model take {needed:,} bytes, {each}, and {free:,} of {owner} are free: take a smaller model, or {advice}."
        )


def check_logits_fit(num_tokens: int, vocab_size: int) -> None:
    """Raises OutOfMemoryError where the logits of so many tokens, float32, are more than half of the host's memory that is free: they are
    made in parts, which are then put together."""
    needed, free = num_tokens * vocab_size * 4, available_host_bytes()
    if 2 * needed > free:
        raise OutOfMemoryError(
            f"The logits of {num_tokens} tokens take {needed:,} bytes, a float32 for each of {vocab_size:,} of the vocabulary, twice "
            f"while they are put together, and {free:,} of this machine's memory are free: give {free // (8 * vocab_size)} tokens or fewer."
        )


def cache_budget(device: str, ops: Any, config: ModelConfig, options: EngineOptions) -> CacheBudget:
    """What the cache may take, once the weights are loaded."""
    if device == "cpu":
        half = available_host_bytes() // 2
        if half > MAX_HOST_BYTES:
            return CacheBudget(MAX_HOST_BYTES, f"take a GPU, because on a CPU the KV cache takes at most {MAX_HOST_BYTES:,} bytes")
        return CacheBudget(half, "end other programs, because on a CPU the KV cache takes half of the memory that is free")
    sizes = config.hidden_size, widest_activation(config), config.vocab_size, ops.dtype.itemsize
    reserved = activation_bytes(options.max_num_batched_tokens, options.max_num_seqs, *sizes)
    free, total = ops.device_memory()
    return CacheBudget(
        int(total * options.gpu_memory_utilization) - (total - free) - reserved,
        f"raise gpu_memory_utilization={options.gpu_memory_utilization}, lower max_num_batched_tokens={options.max_num_batched_tokens} or "
        f"max_num_seqs={options.max_num_seqs}, or end other programs on the GPU",
    )
