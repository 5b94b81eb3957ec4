"""How many drafts a step verifies, as the rate of acceptance and the number of sequences change."""

from types import SimpleNamespace

import numpy as np
import pytest

from minllm.costs.serving import StepCosts
from minllm.costs.speculation import best_num_drafts
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
