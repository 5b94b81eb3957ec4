"""How long will the answer be? A running estimate, so that memory is mapped before it is needed and not much beyond.

The estimate is an exponential moving average of the answers so far: recent ones count most, because traffic changes. It is wrong for
single answers, of course: too short costs a wait while pages are mapped, too long costs pages that nobody fills. Both are counted.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class LengthEstimate:
    """The expected tokens of an answer. weight: of the newest answer against all before it."""

    tokens: float = 128.0
    weight: float = 1 / 16
    answers: int = 0
    too_short: int = 0  # answers that turned out longer than was estimated when they began

    def observe(self, answer_tokens: int, estimated: int) -> None:
        """Takes an answer into account that has ended, and what it had been estimated to be."""
        self.answers += 1
        self.too_short += answer_tokens > estimated
        self.tokens += self.weight * (answer_tokens - self.tokens)

    @property
    def miss_rate(self) -> float:
        """The share of answers that were longer than estimated, 0 to 1."""
        return self.too_short / self.answers if self.answers else 0.0
