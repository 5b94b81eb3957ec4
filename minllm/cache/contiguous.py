"""The contiguous policy: every sequence gets room for the longest one that the model takes, whatever it comes to need.

This is what a tensor [sequences, max_model_len, ...] is, and what engines did before paging: one block a sequence, as long as the
model's context. The part that no token ever fills is lost to everyone else. Kwon et al. (2023, section 3.1) found between 20.4 % and
38.2 % of such a cache filled with tokens. It is the baseline whose waste the other policies cut.
"""

from minllm.cache.paged import PagedPolicy


class ContiguousPolicy(PagedPolicy):
    """`num_sequences` blocks of `max_model_len` tokens. A fork still shares its parent's block until one of them writes."""

    def __init__(self, num_sequences: int, max_model_len: int, bytes_per_sequence: int | None = None):
        super().__init__(num_sequences, max_model_len, bytes_per_sequence)

    @property
    def max_sequence_tokens(self) -> int:
        """One block."""
        return self.block_size
