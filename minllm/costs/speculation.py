"""The speed-up by speculation, from the acceptance rate and the cost of steps with more rows.

Each draft is accepted with probability a if all drafts before it are. Of k drafts, the first i are accepted with probability a^i, so a step
yields 1 + a + a^2 + .. + a^k tokens on average:

    E(a, k) = (1 - a^(k + 1)) / (1 - a)
    speed-up = E(a, k) t(n) / (t(n (1 + k)) + K d(n) + d(n (1 + k)))        for n sequences

t(rows) is the time of a step without reading attention's keys, which takes the same time with and without drafts. d is that of the draft
model, which computes the rows of the step and then K rows per sequence, one by one; d = 0 for n-grams. K is k, unless the draft model makes
more drafts than are verified.

As a floor (StepCosts, serving.py), t is the longer of reading the weights and arithmetic. Up to the ridge it does not grow with the rows,
so drafts are free; beyond it each wasted row costs as much as a useful one, and the speed-up falls below 1 unless a is near 1. Kernels do
not reach that floor: each row costs time long before the ridge, and beyond 256 rows each whole tile does. So the engine chooses the number
of drafts, and its benchmark predicts the speed-up, with StepTimes (step_time.py).

Source: Leviathan, Kalman, Matias 2023, equation 1 and theorem 3.8, which counts a step of more rows as free.
"""

import math
from typing import Protocol

TRIAL_STEPS = 8
TRIAL_SHARE = 0.01


class LinearCosts(Protocol):
    """The times of a model's steps without reading attention's keys: StepCosts or StepTimes."""

    def linear_seconds(self, tokens: int, rows: int) -> float:
        """Seconds of everything but attention, for `tokens` tokens, of which `rows` get logits."""

    def other_seconds(self, verifies: bool) -> float:
        """Seconds of all other launches of a step, with or without drafts to verify."""


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """E(a, k): mean tokens of a step that verifies num_drafts drafts, each accepted with this probability."""
    return sum(acceptance**i for i in range(num_drafts + 1))


def wasted_share(acceptance: float, num_drafts: int) -> float:
    """The mean share of a verification's rows that yield no token, 0 to 1."""
    return 1 - expected_tokens(acceptance, num_drafts) / (1 + num_drafts)


def step_seconds(
    costs: LinearCosts, num_sequences: int, num_drafts: int, draft: LinearCosts | None = None, num_made: int | None = None
) -> float:  # fmt: skip
    """Seconds of a step that verifies num_drafts drafts per sequence and drafts the next ones.

    num_made: drafts that the draft model makes if num_drafts > 0; None: num_drafts.
    """
    rows = num_sequences * (1 + num_drafts)
    seconds = costs.linear_seconds(rows, rows) + costs.other_seconds(verifies=num_drafts > 0)
    if draft is not None and num_drafts:
        made, launches = num_made or num_drafts, draft.other_seconds(verifies=False)
        seconds += draft.linear_seconds(rows, 0) + launches + made * (draft.linear_seconds(num_sequences, num_sequences) + launches)
    return seconds


def speed_up(
    costs: LinearCosts, acceptance: float, num_sequences: int, num_drafts: int, draft: LinearCosts | None = None,
    num_made: int | None = None,
) -> float:  # fmt: skip
    """Tokens per second relative to decoding without drafts. num_made: see step_seconds."""
    plain = step_seconds(costs, num_sequences, 0)
    return expected_tokens(acceptance, num_drafts) * plain / step_seconds(costs, num_sequences, num_drafts, draft, num_made)


def best_num_drafts(
    costs: LinearCosts, acceptance: float, num_sequences: int, most: int, draft: LinearCosts | None = None, num_made: int | None = None
) -> int:  # fmt: skip
    """The number of drafts, 0 to `most`, with the largest speed-up; 0 if no speed-up is above 1."""
    return max(range(most + 1), key=lambda k: (speed_up(costs, acceptance, num_sequences, k, draft, num_made), -k))


def trial_interval(costs: LinearCosts, num_sequences: int, most: int, draft: LinearCosts, catch_up: float) -> int | None:
    """Steps between two trials of a draft model, so that trials take at most TRIAL_SHARE of the time.

    A trial is TRIAL_STEPS steps that verify `most` drafts, none of which is accepted, after `catch_up` seconds in which the draft model
    computes the tokens that it has not seen. None if drafts would not pay even if all were accepted.
    """
    if not best_num_drafts(costs, 1.0, num_sequences, most, draft, most):
        return None
    plain = step_seconds(costs, num_sequences, 0)
    lost = catch_up + TRIAL_STEPS * (step_seconds(costs, num_sequences, most, draft) - plain)
    return math.ceil(lost / (TRIAL_SHARE * plain))
