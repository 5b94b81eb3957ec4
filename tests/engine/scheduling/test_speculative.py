"""How many drafts a step verifies, as the rate of acceptance and the number of sequences change."""

from types import SimpleNamespace

import numpy as np
import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import TRIAL_STEPS, best_num_drafts
from minllm.engine.scheduling.speculative import PROBE, Speculation
from minllm.engine.scheduling.step import Span, Verified
from minllm.models.shapes import named_config
from tests.engine.scheduling.scripted_runner import scripted

COSTS = StepCosts.of(named_config("llama-3.1-8b"), 4.25, 781)


def best(acceptance, num_sequences):
    """By the roofline of the 8B shape on an H200."""
    return best_num_drafts(COSTS, acceptance, num_sequences, 8)


def running(speculation, tokens=5):
    """A sequence that decodes, with eight drafts in its slot."""
    [sequence] = scripted("a", range(4), range(100), 1000)
    sequence.output_token_ids += range(tokens)
    sequence.num_computed_tokens, sequence.slot = 4 + tokens - 1, 0
    speculation.drafted(sequence).num_drafts = 8
    return sequence


def verify(speculation, sequence, drafted, accepted):
    """A step that verifies drafts."""
    memory = SimpleNamespace(trim=lambda sequence: None)
    span = Span(sequence, sequence.num_computed_tokens, 1 + drafted, True, (sequence,))
    speculation.take([span], Verified([1 + accepted], [8]), memory)


def test_a_sequence_whose_drafts_are_wrong_in_a_large_batch_stops_and_tries_again():
    speculation = Speculation(8, best=best)
    sequence, other = running(speculation), running(speculation, tokens=9)
    assert speculation.num_drafts(sequence, 1) == 8 and speculation.num_drafts(sequence, 16) > 0
    for _ in range(PROBE + 8):
        verify(speculation, sequence, 4, 0)
        speculation.drafted(other).acceptance = 0.0
    assert speculation.drafted(sequence).acceptance < 0.05
    tried = []
    for _ in range(2 * PROBE):
        tried.append([speculation.num_drafts(each, 256) for each in (sequence, other)])
        verify(speculation, sequence, 0, 0)
    assert sorted(tried) == [[0, 0]] * (2 * PROBE - 2) + [[1, 1]] * 2, "all try in the same step"
    for _ in range(40):
        verify(speculation, sequence, 1, 1)
    assert speculation.drafted(sequence).acceptance > 0.9 and speculation.num_drafts(sequence, 1) == 8


def test_a_draft_model_pauses_and_is_tried_now_and_then():
    """The share of steps that make drafts is that of trials, until drafts are right again, and then all do."""
    speculation = Speculation(8, needs_room=True, best=lambda rate, count: 8 * (rate > 0.5), trial_interval=lambda count: 40)
    sequence, made = running(speculation), []

    def steps(count, accepted):
        for _ in range(count):
            drafted = speculation.num_drafts(sequence, 1) if speculation.plan(1) else 0
            made.append(speculation.makes_drafts)
            verify(speculation, sequence, drafted, min(drafted, accepted))

    while not made or made[-1]:
        steps(1, accepted=0)
    assert 1 < len(made) < 20, "hope dies fast"
    steps(480, accepted=0)
    assert sum(made[-480:]) == 10 * TRIAL_STEPS, "each 48 steps"
    steps(50, accepted=8)
    assert all(made[-4:]) and speculation.num_drafts(sequence, 1) == 8
    newest = running(speculation)
    assert speculation.drafted(newest).acceptance > 0.5, "a sequence begins with what the others have found"


def test_drafts_that_are_never_worth_their_time_are_never_made():
    speculation = Speculation(8, needs_room=True, best=lambda rate, count: 0, trial_interval=lambda count: None)
    for _ in range(100):
        assert not speculation.plan(0)


def test_what_a_draft_model_has_not_seen():
    speculation = Speculation(8, needs_room=True, best=lambda rate, count: 8 * (count > 1), trial_interval=lambda count: None)
    sequence = running(speculation)  # of 9 tokens, the newest of which is computed next, and 4 of which are its prompt
    sequence.num_prefill_tokens = 4
    spans = []
    for step in range(6):
        if speculation.plan(1 + step // 5):
            spans.append(speculation.unseen(Span(sequence, sequence.num_computed_tokens, 1, True, (sequence,))))
        sequence.num_computed_tokens += 1
        sequence.output_token_ids.append(step)
    [span] = spans
    assert (span.start, span.length, span.decodes) == (4, 9, False), "the prompt is seen, and token 13, the newest, is in the step itself"
    assert speculation.unseen(Span(sequence, 14, 1, True, (sequence,))) is None
    for step in range(4):
        assert speculation.plan(1 + step // 3) == (step == 3)
        sequence.num_computed_tokens += 1
        sequence.output_token_ids.append(step)
    span = speculation.unseen(Span(sequence, sequence.num_computed_tokens, 1, True, (sequence,)))
    assert (span.start, span.start + span.length) == (14, sequence.num_computed_tokens), "14 was known when it last took part"


def test_no_more_drafts_than_are_found_or_needed():
    speculation = Speculation(8, best=best)
    sequence = running(speculation)
    speculation.drafted(sequence).num_drafts = 3
    assert speculation.num_drafts(sequence, 1) == 3
    sequence.max_tokens = 7  # two more, the last of which is never computed
    assert speculation.num_drafts(sequence, 1) == 1
    sequence.max_tokens, sequence.num_in_flight = 1000, 1
    assert speculation.num_drafts(sequence, 1) == 8, "what an unread step has left is not known"
    sequence.num_in_flight, sequence.num_preemptions = 0, 1
    assert speculation.num_drafts(sequence, 1) == 0, "whoever was preempted comes back to another slot"


@pytest.mark.parametrize("share", [0.3, 0.7, 0.95])
def test_the_estimate_approaches_the_rate(share):
    speculation, random = Speculation(8), np.random.default_rng(1)
    sequence = running(speculation)
    estimates = []
    for _ in range(600):
        verify(speculation, sequence, 4, int(np.cumprod(random.random(4) < share).sum()))
        estimates.append(speculation.drafted(sequence).acceptance)
    assert np.mean(estimates[100:]) == pytest.approx(share, abs=0.08)
