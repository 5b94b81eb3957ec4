"""The memory that a cache policy allocates for a sequence, and how much of it holds no token.

    contiguous  max_model_len tokens for every sequence, whatever its length: no block table, but most of it stays empty
    paged       whole blocks of block_size tokens: at most block_size - 1 tokens of the last block stay empty
    virtual     whole pages of 2 MiB of keys and of values, all layers of a token side by side: at most a page of each stays empty

With t tokens of k bytes each (keys and values of all layers) and a page of P bytes that is

    contiguous  max_model_len k        paged  ceil(t / block_size) block_size k        virtual  2 ceil(t k / 2 P) P

Sequences with a common prefix can share the blocks that it fills, which are then stored once.

Sources: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 3 and figure 2;
Prabhu et al. 2024, "vAttention: Dynamic Memory Management for Serving LLMs without PagedAttention", sections 5 and 6.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from minllm.errors import InvalidOptionError, shown

POLICIES = ("contiguous", "paged", "virtual")
MOST = 10**9  # the most tokens, sequences or GPUs of a plan: products of larger numbers do not fit a float
PAGE_BYTES = 2 * 2**20  # the smallest unit of physical memory that a GPU's driver maps


@dataclass(frozen=True)
class AllocationPolicy:
    """A policy and its sizes. Only paged uses block_size; only contiguous uses max_model_len, and requires it."""

    name: str = "paged"
    block_size: int = 16
    max_model_len: int | None = None

    def __post_init__(self) -> None:
        if self.name not in POLICIES:
            raise InvalidOptionError(f"kv-policy {self.name} is not allowed: it is one of {', '.join(POLICIES)}.")
        for name, tokens in (("block-size", self.block_size), ("max-model-len", self.max_model_len)):
            if tokens is not None and not 1 <= tokens <= MOST:
                raise InvalidOptionError(f"{name} {shown(tokens)} is not allowed: it is from 1 to {MOST:,}.")
        if self.name == "contiguous" and self.max_model_len is None:
            raise InvalidOptionError("A contiguous cache sets max-model-len tokens aside for every sequence: say how many.")

    def allocated_bytes(self, tokens: int, token_bytes: int) -> int:
        """Bytes allocated for `tokens` tokens. Raises InvalidOptionError if max_model_len is too short."""
        if self.name == "virtual":
            return 2 * _whole(tokens * token_bytes, 2 * PAGE_BYTES) * PAGE_BYTES
        if self.name == "paged":
            return _whole(tokens, self.block_size) * self.block_size * token_bytes
        if tokens > self.max_model_len:
            raise InvalidOptionError(
                f"{tokens:,} tokens do not fit a contiguous cache of {self.max_model_len:,} per sequence: raise max-model-len, or lower "
                "context."
            )
        return self.max_model_len * token_bytes


def batch_bytes(policy: AllocationPolicy, lengths: Iterable[int], token_bytes: int, shared_prefix: int = 0) -> int:
    """Bytes allocated for sequences of these lengths.

    shared_prefix: tokens that all sequences begin with; a paged cache stores their full blocks once.
    """
    lengths = list(lengths)
    # exercise: costs.batch_bytes
    allocated = sum(policy.allocated_bytes(length, token_bytes) for length in lengths)
    if policy.name != "paged" or not lengths:
        return allocated
    shared_blocks = min(shared_prefix, *lengths) // policy.block_size
    return allocated - (len(lengths) - 1) * shared_blocks * policy.block_size * token_bytes
    # end exercise


def wasted_share(policy: AllocationPolicy, lengths: Iterable[int], token_bytes: int) -> float:
    """The share, 0 to 1, of the memory allocated for sequences of these lengths that holds no token."""
    lengths = list(lengths)
    return 1 - sum(lengths) * token_bytes / batch_bytes(policy, lengths, token_bytes)


def _whole(size: int, step: int) -> int:
    """size / step, rounded up."""
    return -(-size // step)
