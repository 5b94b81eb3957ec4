"""The contiguous policy: every sequence gets the model's longest context.

It corresponds to a tensor [sequences, max_model_len, ...], as in engines before paging: one block per sequence, as long as the model's
context. The unfilled part is wasted: Kwon et al. (2023, section 3.1) found that tokens filled between 20.4 % and 38.2 % of such a cache.
It is the baseline for the other policies.
"""

from minllm.cache.paged import PagedPolicy


class ContiguousPolicy(PagedPolicy):
    """`num_sequences` blocks of `max_model_len` tokens. A fork shares its parent's block until one of them writes."""

    def __init__(self, num_sequences: int, max_model_len: int, bytes_per_sequence: int | None = None):
        super().__init__(num_sequences, max_model_len, bytes_per_sequence)

    @property
    def max_sequence_tokens(self) -> int:
        """The tokens of one block."""
        return self.block_size
