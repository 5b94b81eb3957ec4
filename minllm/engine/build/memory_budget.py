"""How much of this machine's memory the model and its KV cache may take, and what a user can do if it is too little.

The advice is part of the budget because it depends on the memory: options of LLM() divide a GPU's memory, other programs decide how much of
a host's memory is free.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.capacity import CacheBudget, activation_bytes
from minllm.costs.parameters import widest_activation
from minllm.costs.step_limits import STEP_LIMITS
from minllm.engine.options import BLOCK_SIZE, EngineOptions
from minllm.errors import OutOfMemoryError
from minllm.kernels.slots.state import slot_layout
from minllm.machine.host import available_host_bytes
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.weights.format import WeightFormat

MAX_HOST_BYTES = 4 * 2**30  # the largest cache in the host's memory, unless kv_cache_memory_bytes is given
SLOT_OBJECTS = 48  # bytes of Python's objects per slot
HOST_WEIGHT = np.dtype(np.float32)  # NumPy multiplies by float32 weights, whatever dtype they were rounded to


def check_weights_fit(device: str, ops: Any, config: ModelConfig, weight_format: WeightFormat | None = None) -> None:
    """Raises OutOfMemoryError if the weights alone exceed the free memory, before any of them is loaded.

    weight_format: the format of the layers' matrices; None is plain. Raises InvalidOptionError if a matrix does not fit it.
    """
    itemsize, free = HOST_WEIGHT.itemsize, 0
    if device == "cpu":
        free, owner, advice = available_host_bytes(), "this machine's memory", "end other programs"
    else:
        itemsize, (free, _) = ops.dtype.itemsize, ops.device_memory()
        owner, advice = "the GPU's memory", "end other programs on the GPU"
    layout = layout_of(config, weight_format=weight_format)
    layout.check_format()
    needed = layout.weight_bytes(itemsize)
    if needed > free:
        each = f"{itemsize} for each of {needed // itemsize:,} numbers" if weight_format is None else f"most of it as {weight_format.name}"
        raise OutOfMemoryError(
            f"The weights of this model take {needed:,} bytes, {each}, and {free:,} of {owner} are free: take a smaller model, or {advice}."
        )


def check_sizes_fit(device: str, ops: Any, config: ModelConfig, options: EngineOptions, max_model_len: int) -> None:
    """Raises OutOfMemoryError if an option alone asks for more than the free memory, by its name, before any of it is allocated."""
    host = available_host_bytes()
    words = sum(field.size for field in slot_layout(1, blocks_needed(max_model_len, options.block_size or BLOCK_SIZE)).values())
    free = host if device == "cpu" else min(host, ops.device_memory()[0])
    most = min(free // (4 * words + SLOT_OBJECTS), (2**31 - 1) // words)  # the words of all slots have int32 indices
    if options.max_num_seqs > most:
        raise OutOfMemoryError(
            f"max_num_seqs={options.max_num_seqs} takes {options.max_num_seqs * (4 * words + SLOT_OBJECTS):,} bytes for the state of the "
            f"sequences, and {free:,} are free: lower it to {most:,} or less."
        )
    if options.preemption in ("swap", "auto") and options.swap_space_bytes > host:
        raise OutOfMemoryError(
            f"swap_space_bytes={options.swap_space_bytes:,} is more than the {host:,} bytes of memory that this machine has free: lower it."
        )
    tokens = min(options.max_num_batched_tokens, options.max_num_seqs * max_model_len)
    if device == "cpu" and tokens > STEP_LIMITS.tokens:  # on a GPU the budget of the KV cache has it
        each = activation_bytes(1, 0, config.hidden_size, widest_activation(config), config.vocab_size, HOST_WEIGHT.itemsize)
        if tokens * each > host:
            raise OutOfMemoryError(
                f"max_num_batched_tokens={options.max_num_batched_tokens} allows steps of {tokens:,} tokens, which take {tokens * each:,} "
                f"bytes, and {host:,} of this machine's memory are free: lower it to {host // each:,} or less."
            )


@contextmanager
def naming_memory_options(options: EngineOptions) -> Iterator[None]:
    """Turns a MemoryError into an OutOfMemoryError: a container or a limit may leave less than the system reports as free."""
    try:
        yield
    except OutOfMemoryError:
        raise
    except MemoryError as error:
        names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_cache_memory_bytes", "swap_space_bytes")
        given = ", ".join(f"{name}={getattr(options, name)}" for name in names)
        raise OutOfMemoryError(f"The system has refused memory for this model and its cache ({error}): lower one of {given}.") from error


def check_logits_fit(num_tokens: int, vocab_size: int) -> None:
    """Raises OutOfMemoryError if the float32 logits would take more than half of the free host memory.

    Logits are computed in parts and then concatenated, so that they need their memory twice.
    """
    needed, free = num_tokens * vocab_size * 4, available_host_bytes()
    if 2 * needed > free:
        raise OutOfMemoryError(
            f"The logits of {num_tokens} tokens take {needed:,} bytes, a float32 for each of {vocab_size:,} of the vocabulary, twice "
            f"while they are put together, and {free:,} of this machine's memory are free: give {free // (8 * vocab_size)} tokens or fewer."
        )


def cache_budget(
    device: str, ops: Any, config: ModelConfig, options: EngineOptions, weight_format: WeightFormat | None = None
) -> CacheBudget:
    """The memory for the KV cache, after the weights have been loaded.

    weight_format: the format of the layers' matrices; None is plain.
    """
    if options.kv_cache_memory_bytes is not None:
        return _given_budget(device, ops, options.kv_cache_memory_bytes)
    if device == "cpu":
        half = available_host_bytes() // 2
        if half > MAX_HOST_BYTES:
            return CacheBudget(MAX_HOST_BYTES, f"take a GPU, because on a CPU the KV cache takes at most {MAX_HOST_BYTES:,} bytes")
        return CacheBudget(half, "end other programs, because on a CPU the KV cache takes half of the memory that is free")
    sizes = config.hidden_size, widest_activation(config), config.vocab_size, ops.dtype.itemsize
    reserved = activation_bytes(options.max_num_batched_tokens, options.max_num_logits, *sizes)
    if weight_format is not None:
        rows = max(options.max_num_batched_tokens, options.max_num_seqs)
        reserved += max(weight_format.workspace_bytes(rows, *matrix, ops.dtype.itemsize) for matrix in layout_of(config).matrices())
    free, total = ops.device_memory()
    return CacheBudget(
        int(total * options.gpu_memory_utilization) - (total - free) - reserved,
        f"raise gpu_memory_utilization={options.gpu_memory_utilization}, lower max_num_batched_tokens={options.max_num_batched_tokens} or "
        f"max_num_seqs={options.max_num_seqs}, or end other programs on the GPU",
    )


def _given_budget(device: str, ops: Any, num_bytes: int) -> CacheBudget:
    """The budget that kv_cache_memory_bytes sets. Raises OutOfMemoryError if fewer bytes are free."""
    free = available_host_bytes() if device == "cpu" else ops.device_memory()[0]
    if num_bytes > free:
        owner = "this machine's memory" if device == "cpu" else "the GPU's memory"
        raise OutOfMemoryError(f"kv_cache_memory_bytes={num_bytes:,} is more than the {free:,} bytes of {owner} that are free: lower it.")
    return CacheBudget(num_bytes, f"raise kv_cache_memory_bytes={num_bytes}")
