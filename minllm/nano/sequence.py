"""A request, and what has been computed of it."""

import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of a request are chosen; the names are vLLM's.

    temperature: 0 takes the likeliest token. top_k: only the k likeliest tokens; 0 for all. top_p: only the likeliest tokens whose
    probabilities add up to it. seed: makes the choice repeatable, in any company; None draws one. max_tokens: the most tokens to generate.
    ignore_eos: go on after an end of text.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 128
    ignore_eos: bool = False


@dataclass(eq=False)
class Sequence:
    """A prompt and its continuation. Of its tokens the first `num_computed_tokens` have keys and values in the blocks of `block_table`."""

    prompt_token_ids: list[int]
    params: SamplingParams
    output_token_ids: list[int] = field(default_factory=list)
    block_table: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    prefix: int = 0  # the number of the prefix that its shared blocks hold, see BlockPool
    num_shared_blocks: int = 0  # blocks at the start of block_table that others may find
    finish_reason: str | None = None  # "stop", "length", "error" or "abort"
    error: Exception | None = None

    def __post_init__(self):
        self.seed = secrets.randbits(63) if self.params.seed is None else self.params.seed

    @property
    def token_ids(self) -> list[int]:
        """All tokens known so far."""
        return self.prompt_token_ids + self.output_token_ids

    @property
    def num_tokens(self) -> int:
        """The number of tokens known so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)
