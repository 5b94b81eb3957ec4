"""A running estimate of the length of answers, for mapping pages ahead.

The estimate is an exponential moving average of the lengths so far: recent answers count most, because traffic changes. If it is too short
for an answer, a step waits while pages are mapped; if it is too long, pages stay empty. Both are counted.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class LengthEstimate:
    """The expected number of tokens of an answer. weight: of the newest answer in the average."""

    tokens: float = 128.0
    weight: float = 1 / 16
    answers: int = 0
    too_short: int = 0  # answers that became longer than the estimate at their beginning

    def observe(self, answer_tokens: int, estimated: int) -> None:
        """Record the length of a finished answer, and the estimate that was made at its beginning."""
        self.answers += 1
        self.too_short += answer_tokens > estimated
        self.tokens += self.weight * (answer_tokens - self.tokens)
