"""Draws: kernels and reference pick the same tokens; frequencies are those of the renormalised distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.kernels.sampling import SamplingKind, build_sampling_tensors, sample_reference
from minllm.kernels.sampling.argmax import NOT_FINITE, NOTHING_ALLOWED
from tests.kernels.sampling.cases import (
    LOGITS,
    PENALTIES,
    RULES,
    SIMULATED_RULES,
    expected_tokens,
    kept_oracle,
    logits_of,
    parameters,
    run_sample,
    tensors,
)  # fmt: skip

DRAWS, ALL_DRAWS = 5_000, 20_000  # the second with --exhaustive


OTHER_VALUES = [pytest.param(kind, 111, marks=pytest.mark.results_only) for kind in LOGITS if kind != "normal"]


@pytest.mark.detected("vocab", "restricted")
@pytest.mark.covering("kind", "vocab", "restricted + vocab")
@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize(("kind", "vocab"), [("normal", 111), ("normal", 1), ("normal", 1003), ("peaked", 4100)] + OTHER_VALUES)
def test_kernels_pick_the_tokens_of_the_reference(kind, vocab, restricted, request):
    rules = SIMULATED_RULES if restricted else SIMULATED_RULES[:3]
    if restricted and vocab > 1000 and not request.config.option.exhaustive:
        rules = SIMULATED_RULES[2:]  # without a greedy row and one of temperature 0.8: rows are blocks of their own, and take seconds
    logits = logits_of(kind, len(rules), vocab)
    before = logits.copy()
    sampling = tensors(rules, vocab)
    np.testing.assert_array_equal(run_sample(logits, sampling), expected_tokens(logits, sampling))
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("step", [0, 3])
def test_kernels_pick_the_tokens_of_the_reference_with_penalties(step):
    logits = logits_of("normal", len(PENALTIES), 111)
    sampling = tensors(PENALTIES, 111, step)
    np.testing.assert_array_equal(run_sample(logits, sampling), expected_tokens(logits, sampling))


def test_a_ban_without_penalties_reaches_the_draw():
    logits = logits_of("normal", 2, 111)
    best = np.argmax(logits, axis=1)
    greedy = [parameters(temperature=0.0, min_tokens=1), parameters(temperature=0.0)]
    sampling = build_sampling_tensors(greedy, 111, stop_token_ids=[[t] for t in best])
    for tokens in (run_sample(logits, sampling), expected_tokens(logits, sampling)):
        assert tokens[0] == np.argsort(-logits[0])[1] and tokens[1] == best[1]


@pytest.mark.results_only
@pytest.mark.parametrize(("vocab", "rule"), [(5, dict()), (40, dict(temperature=0.0, repetition_penalty=2.0))])
def test_rows_without_a_choice_give_no_token(vocab, rule):
    logits = np.random.default_rng(vocab).normal(size=(5, vocab)).astype(np.float32)
    logits[0], logits[1], logits[2, vocab // 2], logits[3, -1] = -np.inf, np.nan, np.nan, np.inf
    sampling = tensors([rule] * 4 + [dict(temperature=1.0)], vocab)
    found = run_sample(logits, sampling)
    np.testing.assert_array_equal(found[:4], [NOTHING_ALLOWED, NOT_FINITE, NOT_FINITE, NOT_FINITE])
    np.testing.assert_array_equal(found, expected_tokens(logits, sampling))


@pytest.mark.results_only
def test_a_row_of_nan_is_found_under_a_threshold():
    """Radix selection finds no key among no members; the row's threshold is NaN itself."""
    logits, sampling = np.full((1, 9), np.nan, np.float32), tensors([dict(top_p=0.5)], 9)
    assert run_sample(logits, sampling) == expected_tokens(logits, sampling) == NOT_FINITE


@pytest.mark.results_only
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bans_and_penalties_may_leave_no_token(temperature):
    """All allowed tokens are banned; a penalty overflows; NaN counts only where a token is allowed."""
    logits = np.float32([[1, 2, 3], [1, 2, 3], [np.nan, 2, 3]])
    rules = [dict(allowed_token_ids=[1], min_tokens=1), dict(repetition_penalty=1e-40), dict(allowed_token_ids=[1])]
    rules = [parameters(temperature=temperature, **rule) for rule in rules]
    sampling = build_sampling_tensors(rules, 3, prompts=[[0]] * 3, stop_token_ids=[[1]] * 3)
    for found in (run_sample(logits, sampling), expected_tokens(logits, sampling)):
        np.testing.assert_array_equal(found, [NOTHING_ALLOWED, NOT_FINITE, 1])


@given(
    logits=st.lists(st.sampled_from([-np.inf, -3.5, 0.0, 0.25, 8.0, 3e38, np.inf, np.nan]), min_size=1, max_size=12),
    allowed=st.sets(st.integers(0, 11), min_size=1), banned=st.sets(st.integers(0, 11)), temperature=st.sampled_from([0.0, 0.01, 1.0, 2.0]),
    top_k=st.integers(0, 12), top_p=st.floats(0.01, 1), min_p=st.floats(0, 1), seed=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_only_allowed_tokens_are_chosen(logits, allowed, banned, temperature, **rule):
    x = np.float32([logits])
    allowed = {token for token in allowed if token < len(logits)} or {0}
    params = parameters(allowed_token_ids=sorted(allowed), min_tokens=1, temperature=temperature, **rule)
    sampling = build_sampling_tensors([params], len(logits), stop_token_ids=[sorted(t for t in banned if t < len(logits))])
    [found] = expected_tokens(x, sampling)
    left = [logits[token] for token in sorted(allowed - banned)]
    if not all(value < np.inf for value in left):
        assert found == NOT_FINITE
    elif not left or max(left) == -np.inf:
        assert found == NOTHING_ALLOWED
    else:
        assert found in allowed - banned and logits[found] > -np.inf


@pytest.mark.parametrize("kind", SamplingKind)
def test_rows_name_their_slots_and_padding_rows_give_token_0(kind):
    rules = {SamplingKind.GREEDY: [RULES[0]] * 4, SamplingKind.RANDOM: SIMULATED_RULES, SamplingKind.ADJUSTED: PENALTIES}[kind]
    sampling, logits = tensors(rules, 111, 2), logits_of("normal", 5, 111)
    assert sampling.kind is kind
    slots = np.int32([2, -1, 0, 3, -1])
    expected = sample_reference(logits, sampling, slots)
    for row, slot in enumerate(slots):
        alone = sample_reference(logits[row : row + 1], sampling, slots[row : row + 1])[0]
        assert expected[row] == (0 if slot < 0 else alone)
    np.testing.assert_array_equal(run_sample(logits, sampling, slots=slots), expected)


@pytest.mark.results_only
@pytest.mark.parametrize("choose", [run_sample, expected_tokens])
def test_a_later_kind_gives_the_tokens_of_an_earlier_one(choose):
    logits = logits_of("normal", 3, 111)
    for rules, kind in (([RULES[0]] * 3, SamplingKind.RANDOM), (SIMULATED_RULES[:3], SamplingKind.ADJUSTED)):
        sampling = tensors(rules, 111)
        tokens, wide = choose(logits, sampling), sampling.with_vocabulary_arrays(np.zeros, 111)
        np.testing.assert_array_equal(choose(logits, wide.of_kind(kind)), tokens)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(6)), st.integers(1, 6))
def test_a_sequence_draws_the_same_in_any_row_and_beside_any_other(order, rows):
    logits, sampling = logits_of("normal", 6, 97), tensors([RULES[i] for i in (0, 1, 2, 5, 7, 8)], 97)
    slots = np.array(order[:rows], np.int32)
    np.testing.assert_array_equal(sample_reference(logits[slots], sampling, slots), expected_tokens(logits, sampling)[slots])


DRAWN = [rule for rule in RULES if rule.get("temperature") != 0.0 and rule.get("top_k") != 1]
DRAWN = [(" and ".join(name for name in rule if name not in ("temperature", "seed")), rule) for rule in DRAWN]


def draws(logits, rule, count):
    """`count` tokens of one row under one rule, at the steps 0, 1, 2, ..."""
    sampling = tensors([rule] * count, len(logits), step=0)
    sampling.step[:] = np.arange(count)
    return expected_tokens(np.broadcast_to(logits, (count, len(logits))), sampling)


@pytest.mark.covering("restrictions")
@pytest.mark.parametrize(("restrictions", "rule"), DRAWN, ids=str)
def test_frequencies_are_those_of_the_renormalised_distribution(restrictions, rule, request):
    count = ALL_DRAWS if request.config.option.exhaustive else DRAWS
    logits = logits_of("normal", 1, 111, seed=3)[0] / 2
    kept, _ = kept_oracle(logits, parameters(**rule))
    expected = np.where(kept, np.exp((logits - logits.max()).astype(np.float64) / parameters(**rule).temperature), 0)
    expected *= count / expected.sum()
    observed = np.bincount(draws(logits, rule, count), minlength=111)
    assert not observed[expected == 0].any(), "a token of probability zero was drawn"
    assert observed @ expected / np.linalg.norm(observed) / np.linalg.norm(expected) > 0.99
    often = expected >= 5  # the rest as one cell
    cells = np.append(expected[often], expected[~often].sum()), np.append(observed[often], observed[~often].sum())
    cells = [cell[cells[0] > 0] for cell in cells]
    freedom = max(1, len(cells[0]) - 1)
    chi_squared = ((cells[1] - cells[0]) ** 2 / cells[0]).sum()
    assert chi_squared < freedom + 4 * np.sqrt(2 * freedom) + 6  # about 1 in 10,000, and the seeds are fixed


def test_seed_and_step_decide_whatever_stands_beside():
    logits = logits_of("normal", 6, 1003)
    rules = [RULES[i] for i in (1, 2, 4, 5, 7, 8)]
    together = expected_tokens(logits, tensors(rules, 1003))
    alone = [expected_tokens(logits[i : i + 1], tensors(rules[i : i + 1], 1003))[0] for i in range(6)]
    np.testing.assert_array_equal(together, alone)
    np.testing.assert_array_equal(expected_tokens(logits[::-1], tensors(rules[::-1], 1003)), together[::-1])


def test_seeds_and_steps_give_different_draws():
    flat = np.zeros(1003, np.float32)
    assert len(set(draws(flat, dict(seed=0), 50))) > 40
    by_seed = [draws(flat, dict(seed=seed), 1)[0] for seed in (0, 1, 2**32, 2**63, -1)]
    assert len(set(by_seed)) == 5
    without = [draws(flat, dict(seed=None), 1)[0] for _ in range(5)]
    assert len(set(without)) > 1


def test_advance_counts_steps_and_tokens():
    sampling = tensors([dict(presence_penalty=1.0), dict()], 111, step=2)
    counts = sampling.output_counts.copy()
    sampling.advance(np.arange(2), np.array([5, 7], np.int32))
    np.testing.assert_array_equal(sampling.step, [3, 3])
    counts[0, 5] += 1  # the other slot has no penalties
    np.testing.assert_array_equal(sampling.output_counts, counts)
