"""Penalties and the ban on stop tokens, against transformers' processors and plain loops in float64."""

import numpy as np
import pytest

from minllm.errors import InvalidRequestError, KernelArgumentError
from minllm.kernels.sampling import build_sampling_tensors
from minllm.kernels.sampling.flags import Adjustment, TokenFlag
from minllm.kernels.sampling.parameters import kind_of, sampling_entries
from minllm.kernels.sampling.penalties import penalize, penalize_reference
from minllm.kernels.sampling.tensors import SamplingKind
from tests.kernels.sampling.cases import PENALTIES, logits_of, parameters, slots_of, tensors


def oracle(logits, rules, step):
    """The definitions, token by token."""
    rows, vocab = logits.shape
    sampling = tensors(rules, vocab, step)
    out = logits.astype(np.float64)
    for row, rule in enumerate(parameters(**rule) for rule in rules):
        for token, bias in (rule.logit_bias or {}).items():
            out[row, token] += bias
        for token in range(vocab):
            count = int(sampling.output_counts[row, token])
            if count or sampling.token_flags[row, token] & TokenFlag.IN_PROMPT:
                out[row, token] *= 1 / rule.repetition_penalty if out[row, token] > 0 else rule.repetition_penalty
            out[row, token] -= rule.frequency_penalty * count + rule.presence_penalty * (count > 0)
        for token in np.flatnonzero(sampling.token_flags[row] & TokenFlag.ENDS):
            if step < rule.min_tokens:
                out[row, token] = -np.inf
        if rule.allowed_token_ids is not None:
            out[row, np.setdiff1d(np.arange(vocab), rule.allowed_token_ids)] = -np.inf
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


def test_rows_name_their_slots_and_padding_rows_stay_as_they_are():
    logits = logits_of("normal", 4, 111)
    sampling, slots = tensors(PENALTIES, 111, 2), np.int32([3, -1, 1, 0])
    expected = logits.copy()
    for row in (0, 2, 3):
        expected[row] = penalize_reference(logits[row : row + 1], sampling, slots[row : row + 1])[0]
    np.testing.assert_array_equal(expected[[1, 3]], logits[[1, 3]])
    np.testing.assert_array_equal(penalize_reference(logits, sampling, slots), expected)
    out = np.full_like(logits, np.nan)
    penalize(logits, sampling, slots, out)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


def test_banned_tokens_are_never_allowed():
    entries = sampling_entries(parameters(allowed_token_ids=(3, 5, 7)), 9, banned_token_ids=[5])
    assert entries.words["adjustments"] == Adjustment.BANS and list(entries.vocabulary) == ["token_flags"]
    np.testing.assert_array_equal(np.flatnonzero(entries.vocabulary["token_flags"] & TokenFlag.BANNED == 0), [3, 7])


@pytest.mark.parametrize(
    ("rule", "banned", "kind"),
    [
        (dict(temperature=0.0), (), SamplingKind.GREEDY),
        (dict(temperature=0.5, top_k=3), (), SamplingKind.RANDOM),
        (dict(temperature=0.0), (1,), SamplingKind.ADJUSTED),
        (dict(temperature=0.0, logit_bias={}), (), SamplingKind.GREEDY),
        *((dict(one), (), SamplingKind.ADJUSTED) for one in PENALTIES[1:]),
    ],
)
def test_the_kind_of_a_request(rule, banned, kind):
    assert kind_of(parameters(**rule), banned) is kind


def test_kernels_need_the_vocabulary_arrays():
    sampling = tensors([dict(), dict()], 111)
    with pytest.raises(KernelArgumentError, match=r"token_flags is None; it must be \(2, 111\)"):
        penalize(np.zeros((2, 111), np.float32), sampling, slots_of(range(2)), np.zeros((2, 111), np.float32))


def test_what_a_rule_needs_must_be_given():
    with pytest.raises(InvalidRequestError, match="prompts"):
        build_sampling_tensors([parameters(presence_penalty=0.5)], 111)
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        build_sampling_tensors([parameters(min_tokens=1)], 111)
