"""Decide when a draft model makes drafts: while they are worth its time, and in occasional trials.

A draft model takes the same time whether its drafts are right or wrong, and runs for all sequences of a step, so the decision is made per
step, from the acceptance of all drafts so far and the number of sequences that decode. During a pause, steps are plain decode steps, and
the draft model computes prompts only. It computes the tokens that it has missed before it makes drafts again (Speculation.unseen).
"""

import functools
from collections.abc import Callable

from minllm.costs.speculation import TRIAL_STEPS

HOPE = 0.8  # the estimate of acceptance before the first draft
FEWEST, MOST = 10, 60  # drafts over which acceptance is averaged: FEWEST at the start and in a trial, growing to MOST


class DraftPauses:
    """Decides for each step whether the draft model makes drafts.

    best: (acceptance rate, number of sequences) -> the best number of drafts, 0 if drafts are not worth their time. trial_interval: number
    of sequences -> the steps of a pause before a trial of TRIAL_STEPS steps; None for no trial.
    """

    def __init__(self, best: Callable[[float, int], int], trial_interval: Callable[[int], int | None]):
        self._best, self._trial_interval = best, functools.cache(trial_interval)
        self.acceptance, self._num_averaged = HOPE, FEWEST
        self.makes_drafts = self.made_drafts = True  # whether the planned step, and the step before it, make drafts
        self.num_ended = 0  # number of pauses that have ended
        self._num_paused = 0  # steps since drafts were last worth their time

    @property
    def is_trial(self) -> bool:
        """Whether the planned step makes drafts although they do not seem to be worth their time."""
        return self.makes_drafts and self._num_paused > 0

    def plan(self, num_sequences: int) -> None:
        """Decide whether the next step, in which this number of sequences decode, makes drafts."""
        self.made_drafts, self.makes_drafts = self.makes_drafts, self._is_worth_it(max(1, num_sequences))
        self.num_ended += self.makes_drafts > self.made_drafts

    def count(self, tried: int, right: int) -> None:
        """Update the acceptance rate with a verification that accepted `right` of the `tried` drafts up to the first wrong one."""
        self._num_averaged = min(self._num_averaged + tried, MOST)
        self.acceptance += (right - tried * self.acceptance) / self._num_averaged

    def _is_worth_it(self, num_sequences: int) -> bool:
        if self._best(self.acceptance, num_sequences):
            self._num_paused = 0
            return True
        self._num_paused += 1
        interval = self._trial_interval(num_sequences)
        if interval is not None and self._num_paused % (interval + TRIAL_STEPS) >= interval:
            return True
        self._num_averaged = FEWEST
        return False
