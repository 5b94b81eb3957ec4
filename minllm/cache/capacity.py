"""How many blocks the KV cache gets: what the memory allows, and no more than the engine can ever use."""

from dataclasses import replace

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape
from minllm.errors import OutOfMemoryError

MAX_HOST_BYTES = 4 * 2**30  # a cache in the host's memory takes at most this


def activation_bytes(num_tokens: int, num_logits: int, hidden: int, widest: int, vocab_size: int, itemsize: int) -> int:
    """An upper bound of what one forward needs beside weights and cache: five activations of the widest layer, four of the hidden
    size, and the logits twice in float32 (as they come, and as the sampler rewrites them)."""
    return num_tokens * itemsize * (5 * widest + 4 * hidden) + 2 * 4 * num_logits * vocab_size


def available_host_bytes() -> int:
    """Memory that the operating system could give to this process now, in bytes."""
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024


def num_blocks_that_fit(shape: CacheShape, budget_bytes: int, max_num_seqs: int, max_model_len: int) -> int:
    """Blocks for `budget_bytes`, at most what `max_num_seqs` sequences of full length take. OutOfMemoryError when none fits."""
    useful = max_num_seqs * blocks_needed(max_model_len, shape.block_size)
    fitting = budget_bytes // shape.bytes_per_block
    if fitting < 1:
        raise OutOfMemoryError(
            f"No memory is left for the KV cache: one block of {shape.block_size} tokens takes {shape.bytes_per_block:,} bytes, and "
            f"{max(0, budget_bytes):,} are left. Raise gpu_memory_utilization, end other programs, or take a smaller model or block_size."
        )
    return min(useful, fitting)


def one_block_a_sequence(shape: CacheShape, budget_bytes: int, max_model_len: int) -> CacheShape:
    """The shape of a contiguous cache: blocks of `max_model_len` tokens, or of what `budget_bytes` hold if that is less.

    Of whole groups of tokens where keys are quantised by channel.
    """
    group = 1 if shape.format is None else shape.format.token_group
    fitting = budget_bytes // replace(shape, block_size=group).bytes_per_block
    return replace(shape, block_size=group * max(1, min(blocks_needed(max_model_len, group), fitting)))
