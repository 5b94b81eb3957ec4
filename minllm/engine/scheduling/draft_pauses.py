"""When a draft model is asked for drafts: while they are worth the time that it takes, and for a trial now and then.

A draft model takes time for all sequences of a step alike, right or wrong, so the decision is for a step, by the acceptance of all drafts
so far and the number of sequences that decode. During a pause steps are those of plain decoding, and the draft model sees no tokens but
prompts. What it has not seen it computes before it is asked again (Speculation.unseen).
"""

import functools
from collections.abc import Callable

from minllm.costs.speculation import TRIAL_STEPS

HOPE = 0.8  # the estimate of acceptance before the first draft
FEWEST, MOST = 10, 60  # drafts over which acceptance is averaged: in the beginning and in a trial, and later


class DraftPauses:
    """best: the best number of drafts for a rate of acceptance and a number of sequences, 0 if they are not worth their time.

    trial_interval: the number of steps of a pause, for a number of sequences, before a trial of TRIAL_STEPS; None for no trial.
    """

    def __init__(self, best: Callable[[float, int], int], trial_interval: Callable[[int], int | None]):
        self._best, self._trial_interval = best, functools.cache(trial_interval)
        self.acceptance, self._num_averaged = HOPE, FEWEST
        self.makes_drafts = self.made_drafts = True  # whether the step that is planned, and the one before it, make drafts
        self.num_ended = 0  # pauses so far that have ended
        self._num_paused = 0  # steps since drafts were last worth their time

    @property
    def is_trial(self) -> bool:
        """Whether the step that is planned makes drafts although they do not seem to be worth their time."""
        return self.makes_drafts and self._num_paused > 0

    def plan(self, num_sequences: int) -> None:
        """Decide whether the next step, in which this number of sequences decode, makes drafts."""
        self.made_drafts, self.makes_drafts = self.makes_drafts, self._is_worth_it(max(1, num_sequences))
        self.num_ended += self.makes_drafts > self.made_drafts

    def count(self, tried: int, right: int) -> None:
        """Learn from a verification, of whose drafts `right` were right and at most one was wrong, of `tried`."""
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
