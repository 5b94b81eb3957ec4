"""The number of blocks of the KV cache: as many as fit the memory, but no more than the engine can use."""

from dataclasses import dataclass, replace

from minllm.cache import residual_window
from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape, SlidingLayers
from minllm.cache.window_blocks import WindowRoom
from minllm.errors import OutOfMemoryError

CONTEXT_WINDOWS = 4  # windows in the context of a sequence for which memory is divided between local blocks and the others


@dataclass(frozen=True, slots=True)
class CacheBudget:
    """Memory for a cache. advice: how to get more memory, as the end of an error message."""

    num_bytes: int
    advice: str


def activation_bytes(num_tokens: int, num_logits: int, hidden: int, widest: int, vocab_size: int, itemsize: int) -> int:
    """An upper bound of a forward's memory beside weights and cache, in bytes.

    It has five activations of the widest layer, four of the hidden size, and two float32 copies of the logits (model's and sampler's).
    """
    return num_tokens * itemsize * (5 * widest + 4 * hidden) + 2 * 4 * num_logits * vocab_size


def num_blocks_that_fit(shape: CacheShape, budget: CacheBudget, max_num_seqs: int, max_model_len: int) -> int:
    """The number of blocks that fit the budget and can be used. Raises OutOfMemoryError if none fits."""
    useful = max_num_seqs * blocks_needed(max_model_len, shape.tokens_per_entry)
    fitting = budget.num_bytes // shape.bytes_per_block
    if fitting < 1:
        tokens = max(0, budget.num_bytes) // _bytes_per_token(shape)
        smaller = f"take block_size={tokens} or less, " if tokens else ""
        raise OutOfMemoryError(
            f"No memory is left for the KV cache: a block of {shape.block_size} tokens takes {shape.bytes_per_block:,} bytes, and "
            f"{max(0, budget.num_bytes):,} are left, which hold {tokens} tokens: {smaller}take a smaller model, or {budget.advice}."
        )
    return min(useful, fitting)


def local_blocks_that_fit(
    shape: CacheShape, sliding: SlidingLayers, budget: CacheBudget, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
) -> WindowRoom:  # fmt: skip
    """The local blocks, for as many sequences as the budget bears if each has four windows of context, and room for one of the longest.

    sliding: the shape's layers with local blocks. Short contexts need relatively more memory for windows and long ones for the rest.
    Raises OutOfMemoryError if not one window fits.
    """
    room = WindowRoom(sliding.window, shape.block_size, min(max_num_batched_tokens, max_num_seqs * max_model_len))
    window = room.blocks_of(max_model_len) * shape.bytes_per_local_block
    left = budget.num_bytes - room.blocks_of_a_step * shape.bytes_per_local_block
    context = min(max_model_len, CONTEXT_WINDOWS * room.window)
    sequences = min(max_num_seqs, left // (window + blocks_needed(context, shape.block_size) * shape.bytes_per_block))
    beside_longest = (left - blocks_needed(max_model_len, shape.block_size) * shape.bytes_per_block) // window
    sequences = max(1, min(sequences, beside_longest))
    if left < window + shape.bytes_per_block:
        raise OutOfMemoryError(
            f"No memory is left for the KV cache: a sliding window of {room.window} tokens and a step of {room.step_tokens} take "
            f"{budget.num_bytes - left + window:,} bytes, and {max(0, budget.num_bytes):,} are left: lower max_num_batched_tokens, take a "
            f"smaller model, or {budget.advice}."
        )
    return replace(room, num_blocks=room.blocks_of_a_step + sequences * room.blocks_of(max_model_len))


def tokens_that_fit(shape: CacheShape, budget: CacheBudget) -> int:
    """The number of tokens with keys and values that fit the budget, at least 0; behind one window if there are local blocks."""
    of_window = 0
    if shape.sliding is not None:
        of_window = WindowRoom(shape.sliding.window, shape.block_size, 0).blocks_of(0) * shape.bytes_per_local_block
    return max(0, budget.num_bytes - of_window) // _bytes_per_token(shape) * shape.context_ranks


def one_block_per_sequence(shape: CacheShape, budget: CacheBudget, max_model_len: int) -> CacheShape:
    """The shape of a contiguous cache: blocks of up to `max_model_len` tokens.

    If keys are quantised by channel, the block size is a multiple of the group of tokens.
    """
    group = 1 if shape.format is None else shape.format.token_group
    fitting = budget.num_bytes // (group * _bytes_per_token(shape))
    return replace(shape, block_size=group * max(1, min(blocks_needed(max_model_len, group), fitting)))


def budget_beside(room: residual_window.WindowRoom | None, shape: CacheShape, budget: CacheBudget) -> CacheBudget:
    """The budget without the residual windows' memory. Raises OutOfMemoryError if the windows take all of it."""
    if room is None:
        return budget
    left = replace(budget, num_bytes=budget.num_bytes - room.bytes(shape))
    if left.num_bytes <= 0:
        raise OutOfMemoryError(
            f"The residual windows of {room.rings - 1} sequences take {room.bytes(shape):,} bytes, and {max(0, budget.num_bytes):,} are "
            f"there for the whole KV cache: lower kv_cache_residual_window or max_num_seqs, or {budget.advice}."
        )
    return left


def _bytes_per_token(shape: CacheShape) -> int:
    return replace(shape, block_size=1).bytes_per_block
