"""Predict the length of an answer, which decides how many sequences are admitted at a time.

    none    no room is kept for the answer: most sequences run together, and some are preempted when their answers grow
    limit   room is kept for max_tokens: no sequence is ever preempted, and memory that short answers do not use stays empty
    mean    room is kept for the mean of past answers to prompts of about this length: a running mean per power of two of prompt length
"""  # fmt: skip

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable

from minllm.cache.virtual.length_estimate import LengthEstimate
from minllm.engine.requests.sequence import Sequence


class LengthPrediction(ABC):
    """Predicts the number of tokens that a sequence will still generate."""

    @abstractmethod
    def remaining_tokens(self, sequence: Sequence) -> int:
        """The prediction, 0 or more; the scheduler cuts it at max_tokens."""

    def observe(self, sequence: Sequence) -> None:  # noqa: B027 - predictions that learn nothing do nothing
        """Update the prediction with a sequence that has ended by itself."""


class NoPrediction(LengthPrediction):
    """Keeps no room for the answer."""

    def remaining_tokens(self, sequence: Sequence) -> int:
        """See LengthPrediction."""
        return 0


class LimitPrediction(LengthPrediction):
    """Keeps room for max_tokens."""

    def remaining_tokens(self, sequence: Sequence) -> int:
        """See LengthPrediction."""
        return sequence.max_tokens - len(sequence.output_token_ids)


class MeanPrediction(LengthPrediction):
    """Keeps room for the mean length of earlier answers to prompts of about this length."""

    def __init__(self):
        self._estimates: dict[int, LengthEstimate] = defaultdict(LengthEstimate)

    def remaining_tokens(self, sequence: Sequence) -> int:
        """See LengthPrediction. An answer longer than the mean is expected to grow by half of its present length."""
        made = len(sequence.output_token_ids)
        return max(round(self._estimate_of(sequence).tokens) - made, made // 2)

    def observe(self, sequence: Sequence) -> None:
        """See LengthPrediction."""
        estimate = self._estimate_of(sequence)
        estimate.observe(len(sequence.output_token_ids), round(estimate.tokens))

    def _estimate_of(self, sequence: Sequence) -> LengthEstimate:
        return self._estimates[len(sequence.prompt_token_ids).bit_length()]


LENGTH_PREDICTIONS: dict[str, Callable[[], LengthPrediction]] = {"none": NoPrediction, "limit": LimitPrediction, "mean": MeanPrediction}
