"""Penalties and the ban on stop tokens, against transformers' processors and plain loops in float64."""

import numpy as np
import pytest

from minllm.errors import InvalidRequestError
from minllm.kernels.sampling import build_sampling_tensors
from minllm.kernels.sampling.penalties import penalize, penalize_reference
from minllm.kernels.sampling.tensors import TokenFlag
from tests.kernels.sampling.cases import PENALTIES, logits_of, parameters, slots_of, tensors


def oracle(logits, rules, step):
    """The definitions, token by token."""
    rows, vocab = logits.shape
    sampling = tensors(rules, vocab, step)
    out = logits.astype(np.float64)
    for row, rule in enumerate(parameters(**rule) for rule in rules):
        for token in range(vocab):
            count = int(sampling.output_counts[row, token])
            if count or sampling.token_flags[row, token] & TokenFlag.IN_PROMPT:
                out[row, token] *= 1 / rule.repetition_penalty if out[row, token] > 0 else rule.repetition_penalty
            out[row, token] -= rule.frequency_penalty * count + rule.presence_penalty * (count > 0)
        for token in np.flatnonzero(sampling.token_flags[row] & TokenFlag.ENDS):
            if step < rule.min_tokens:
                out[row, token] = -np.inf
    return out


@pytest.mark.parametrize("step", [0, 1, 2, 5])
@pytest.mark.parametrize("vocab", [3, 111, 257])
def test_reference_and_kernel_follow_the_definitions(vocab, step):
    logits = logits_of("normal", len(PENALTIES), vocab)
    sampling, before = tensors(PENALTIES, vocab, step), logits.copy()
    expected = oracle(logits, PENALTIES, step)
    np.testing.assert_allclose(penalize_reference(logits, sampling, slots_of(logits)), expected, rtol=1e-5, atol=1e-5)
    out = np.full_like(logits, np.nan)
    penalize(logits, sampling, slots_of(logits), out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(logits, before)
    penalize(logits, sampling, slots_of(logits), logits)
    np.testing.assert_array_equal(logits, out)


def test_repetition_penalty_is_that_of_transformers():
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    logits = logits_of("normal", 1, 111)
    prompt, output = [4, 9, 9], [4, 30]
    rule = parameters(repetition_penalty=1.7)
    ours = penalize_reference(logits, build_sampling_tensors([rule], 111, [prompt], [output]), slots_of(logits))
    theirs = transformers.RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([prompt + output]), torch.from_numpy(logits))
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)


def test_a_row_without_penalties_is_untouched_beside_one_with():
    logits = logits_of("huge", 2, 111)
    sampling = tensors([dict(), dict(repetition_penalty=2.0)], 111)
    np.testing.assert_array_equal(penalize_reference(logits, sampling, slots_of(logits))[0], logits[0])


def test_a_ban_alone():
    logits = logits_of("normal", 2, 111)
    sampling = build_sampling_tensors([parameters(min_tokens=2), parameters()], 111, stop_token_ids=[[3, 5], [7]])
    expected = logits.copy()
    expected[0, [3, 5]] = -np.inf
    np.testing.assert_array_equal(penalize_reference(logits, sampling, slots_of(logits)), expected)
    out = np.full_like(logits, np.nan)
    penalize(logits, sampling, slots_of(logits), out)
    np.testing.assert_array_equal(out, expected)


def test_what_a_rule_needs_must_be_given():
    with pytest.raises(InvalidRequestError, match="prompts"):
        build_sampling_tensors([parameters(presence_penalty=0.5)], 111)
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        build_sampling_tensors([parameters(min_tokens=1)], 111)
