"""The scheduler's side of the KV cache: room for the tokens of a step.

A cache policy (cache/policy.py) assigns blocks and keeps one block table per sequence. It is called once per block rather than once per
token: room is made up to the end of a block, and the policy is told a block's tokens when the next block begins. The first decode step is
an exception: completions of one prompt share its last block, and the first of them to write must copy it.
"""

from minllm.cache.block_pool import blocks_needed
from minllm.cache.offload import SwapSpace
from minllm.cache.policy import CachePolicy
from minllm.engine.requests.sequence import Sequence
from minllm.engine.scheduling.length_prediction import LengthPrediction
from minllm.errors import OutOfMemoryError


class KVCacheManager:
    """Assigns a cache policy's blocks to sequences, and frees them. prediction: how many future tokens of a sequence get room."""

    def __init__(self, policy: CachePolicy, prediction: LengthPrediction):
        self.policy, self.prediction = policy, prediction
        self.block_size = policy.block_size
        self._noted: dict[Sequence, int] = {}  # sequence -> number of its tokens reported to the policy

    def check_fits(self, sequence: Sequence) -> None:
        """Raise OutOfMemoryError if not even the empty cache could hold this sequence."""
        if sequence.num_reserved_tokens > self.policy.max_sequence_tokens:
            raise OutOfMemoryError(
                f"A prompt of {len(sequence.prompt_token_ids)} tokens and max_tokens={sequence.max_tokens} need room for "
                f"{sequence.num_reserved_tokens} tokens, and the KV cache has room for {self.policy.max_sequence_tokens} of a sequence: "
                "lower max_tokens or shorten the prompt."
            )

    def admit(self, sequence: Sequence) -> int:
        """Reserve blocks for a sequence's known tokens and room for predicted ones; returns the number of tokens already cached.

        Raises OutOfMemoryError if there is no room now.
        """
        known = sequence.token_ids(0, sequence.num_tokens)
        found = self.policy.reserve(sequence, known, self._promise(sequence), sequence.cache_salt)
        self._noted[sequence] = len(known)
        return found

    def swap_out(self, sequence: Sequence, swap_space: SwapSpace) -> None:
        """Copy a sequence's computed tokens to the host and free its blocks. Raises OutOfMemoryError if the host has no room."""
        self.note(sequence)
        swap_space.swap_out(sequence, self._noted[sequence])
        swap_space.release(sequence)
        del self._noted[sequence]

    def swap_in(self, sequence: Sequence, swap_space: SwapSpace) -> int:
        """Bring a sequence back; returns the number of its computed tokens. Raises OutOfMemoryError if there is no room now."""
        num_computed = swap_space.swap_in(sequence, self._promise(sequence), tenant=sequence.cache_salt)
        self._noted[sequence] = num_computed
        return num_computed

    def fork(self, parent: Sequence, child: Sequence) -> bool:
        """Admit `child` with the blocks of `parent`, sharing its computed tokens. False if there is no room."""
        self.note(parent)
        try:
            self.policy.fork(parent, child)
        except OutOfMemoryError:
            return False
        self._noted[child] = self._noted[parent]
        return True

    def make_room_to_decode(self, sequence: Sequence, num_tokens: int = 1) -> bool:
        """Make room for the next tokens of a sequence; returns whether its block table changed. Raises OutOfMemoryError."""
        position = sequence.num_computed_tokens
        if num_tokens == 1 and position % self.block_size and position != sequence.num_prefill_tokens:
            return False
        self.note(sequence)
        end = position + num_tokens
        return self.policy.make_room(sequence, max(end, min(self._end_of_block(end), sequence.num_reserved_tokens)))

    def trim(self, sequence: Sequence) -> None:
        """Free the blocks of a sequence beyond what launched steps may write, after drafts were rejected."""
        self.policy.trim(sequence, self._end_of_block(sequence.num_computed_tokens))

    def _end_of_block(self, num_tokens: int) -> int:
        """This number of tokens rounded up to whole blocks."""
        return blocks_needed(num_tokens, self.block_size) * self.block_size

    def note(self, sequence: Sequence) -> None:
        """Report newly computed tokens to the policy, and let other prompts share their blocks."""
        noted, known = self._noted[sequence], min(sequence.num_tokens, sequence.num_computed_tokens)
        if noted < known:
            self.policy.append(sequence, sequence.token_ids(noted, known))
            self._noted[sequence] = known
        self.commit(sequence)

    def commit(self, sequence: Sequence) -> None:
        """Let other prompts share the computed blocks of a sequence."""
        self.policy.commit(sequence, min(self._noted[sequence], sequence.num_computed_tokens))

    def free(self, sequence: Sequence) -> None:
        """Free all blocks of a sequence; they may stay in the prefix cache."""
        self.note(sequence)
        del self._noted[sequence]
        self.policy.free(sequence)

    def _promise(self, sequence: Sequence) -> int:
        """Tokens beyond the known ones that are guaranteed to fit."""
        left = sequence.max_tokens - len(sequence.output_token_ids)
        return min(left, self.prediction.remaining_tokens(sequence))
