"""Preemption: a sequence that must give up its memory is recomputed later, swapped out, or dropped.

    recompute   its blocks are freed; when there is room again, its prompt and its output so far are computed like a prompt
    swap        its keys and values are copied to the host's memory and back (cache/offload.py)
    auto        whichever costs/swap.py predicts to be faster for its length
    drop        the request ends there, with an error

Source: Kwon et al. 2023, section 4.5.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from minllm.cache.offload import SwapSpace
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.kv_cache_manager import KVCacheManager
from minllm.errors import OutOfMemoryError, PreemptedError


@dataclass
class Preemption:
    """Takes memory from sequences and gives it back.

    swap_wins: for "auto", number of tokens -> whether swapping them is faster than recomputing them.
    """

    mode: str = "recompute"
    swap_space: SwapSpace | None = None
    swap_wins: Callable[[int], bool] = lambda num_tokens: True

    def evict(self, sequence: Sequence, memory: KVCacheManager) -> None:
        """Free a running sequence's blocks; with "drop", this also ends the sequence."""
        sequence.num_preemptions += 1
        if self.swap_space is not None and self._swaps(sequence):
            with contextlib.suppress(OutOfMemoryError):  # the swap space is full: recompute
                memory.swap_out(sequence, self.swap_space)
                return
        memory.free(sequence)
        if self.mode == "drop":
            sequence.abort("error", self._dropped(sequence))

    def restore(self, sequence: Sequence, memory: KVCacheManager) -> int:
        """Reserve blocks for a waiting sequence; returns the number of its computed tokens. Raises OutOfMemoryError without room."""
        if self.swap_space is not None and sequence in self.swap_space:
            return memory.swap_in(sequence, self.swap_space)
        return memory.admit(sequence)

    def holds(self, sequence: Sequence) -> bool:
        """Whether a sequence is in the swap space."""
        return self.swap_space is not None and sequence in self.swap_space

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence that will not come back."""
        if self.swap_space is not None and sequence in self.swap_space:
            self.swap_space.drop(sequence)

    def _swaps(self, sequence: Sequence) -> bool:
        if not sequence.is_prefilled or sequence.num_tokens < sequence.num_computed_tokens:
            return False  # drafts are in flight, so the number of tokens with keys is not known yet
        return self.mode == "swap" or self.swap_wins(sequence.num_tokens)

    def _dropped(self, sequence: Sequence) -> PreemptedError:
        return PreemptedError(
            f"The KV cache had no room left for {sequence} after {sequence.num_tokens} tokens, and "
            'preemption="drop" ends such requests: take preemption="recompute" or "swap", or send fewer requests at a time.'
        )
