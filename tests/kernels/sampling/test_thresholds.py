"""Top-k, top-p and min-p: kernel and reference keep what an oracle keeps that sorts in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.kernels.sampling.thresholds import thresholds_reference, write_thresholds
from tests.kernels.sampling.cases import LOGITS, RULES, kept_oracle, logits_of, parameters, slots_of, tensors


def kept_by(thresholds, logits):
    return (logits >= thresholds[:, None]) & (logits > -np.inf)


def check_kept(kept, logits, rules):
    for row, rule in enumerate(rules):
        rule = parameters(**rule)
        if rule.temperature > 0 and logits[row].max() > -np.inf:
            expected, doubtful = kept_oracle(logits[row], rule)
            np.testing.assert_array_equal(kept[row] | doubtful, expected | doubtful, err_msg=str(rule))
            assert kept[row, np.argmax(logits[row])], "the most probable token is always kept"


@pytest.mark.parametrize("kind", LOGITS)
@pytest.mark.parametrize("vocab", [1, 2, 111, 4099])
def test_reference_keeps_what_sorting_keeps(vocab, kind):
    logits = logits_of(kind, len(RULES), vocab)
    check_kept(kept_by(thresholds_reference(logits, tensors(RULES, vocab), slots_of(logits)), logits), logits, RULES)


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=60),
    st.integers(0, 70),
    st.floats(0.01, 1),
    st.floats(0, 1),
    st.floats(0.05, 5),
)
def test_reference_keeps_what_sorting_keeps_whatever_the_logits(values, top_k, top_p, min_p, temperature):
    logits = np.array([values], np.float32)
    rule = dict(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    check_kept(kept_by(thresholds_reference(logits, tensors([rule], len(values)), slots_of(logits)), logits), logits, [rule])


RESTRICTED = range(3, len(RULES))  # the rules that give a row a threshold
THRESHOLD_CASES = [(kind, 111, rule) for kind in LOGITS for rule in (4, 8)] + [("normal", 1, 4), ("normal", 1, 8)]
THRESHOLD_CASES += [(kind, 111, rule) for kind, rule in zip(list(LOGITS)[2:], RESTRICTED) if rule not in (4, 8)]
THRESHOLD_CASES += [("normal", 2047, rule) for rule in RESTRICTED] + [("ties", 16387, 4), ("ties", 16387, 8)]


@pytest.mark.results_only
@pytest.mark.covering("kind", "vocab", "rule")
@pytest.mark.parametrize(("kind", "vocab", "rule"), THRESHOLD_CASES)
def test_kernel_agrees_with_the_reference(kind, vocab, rule):
    """Of two rows: a greedy one, which takes no time, and one under the rule, so that a row's index matters."""
    rules = [RULES[0], RULES[rule]]
    logits = logits_of(kind, len(rules), vocab)
    sampling = tensors(rules, vocab)
    out = np.full(len(rules), np.nan, np.float32)
    write_thresholds(logits, sampling, slots_of(logits), out)
    np.testing.assert_array_equal(kept_by(out, logits), kept_by(thresholds_reference(logits, sampling, slots_of(logits)), logits))


def test_kernel_restricts_no_greedy_row():
    sampling = tensors([dict(temperature=0.0, top_k=3, top_p=0.5), dict()], 111)
    out = np.zeros(2, np.float32)
    write_thresholds(logits_of("normal", 2, 111), sampling, slots_of(out), out)
    assert (out == -np.inf).all()


def test_top_k_keeps_ties_with_the_kth():
    logits = np.array([[3, 1, 2, 2, 2, 0]], np.float32)
    assert thresholds_reference(logits, tensors([dict(top_k=2)], 6), slots_of(logits))[0] == 2
    assert thresholds_reference(logits, tensors([dict(top_k=1)], 6), slots_of(logits))[0] == 3


def log_of(*shares):
    """Logits [1, vocab] with these probabilities at temperature 1."""
    return np.log(np.float32([shares]))


def kept_tokens(logits, rule):
    """The tokens that the reference keeps."""
    sampling = tensors([dict(temperature=1.0) | rule], logits.shape[1])
    return np.flatnonzero(kept_by(thresholds_reference(logits, sampling, slots_of(logits)), logits)).tolist()


def test_top_p_counts_among_the_tokens_that_min_p_and_top_k_keep():
    """50, 30, 10 and 10 %: min-p 0.5 leaves 62.5 and 37.5 %, of which top-p 0.6 needs the first alone; after top-p it would keep two."""
    logits = log_of(0.5, 0.3, 0.1, 0.1)
    assert kept_tokens(logits, dict(top_p=0.6)) == [0, 1]
    assert kept_tokens(logits, dict(top_p=0.6, min_p=0.5)) == [0]
    assert kept_tokens(logits, dict(top_p=0.6, top_k=2)) == [0]
    assert kept_tokens(logits, dict(top_p=0.95, top_k=3, min_p=0.1)) == [0, 1, 2, 3], "the third and fourth are equal"


def test_top_p_keeps_all_ties_with_its_last_token():
    """Equal tokens are kept or dropped together, so that no order of ids decides; the kept ones may reach far more than p."""
    assert kept_tokens(log_of(0.4, 0.2, 0.2, 0.2), dict(top_p=0.5)) == [0, 1, 2, 3]
    assert kept_tokens(log_of(0.25, 0.25, 0.25, 0.25), dict(top_p=0.01)) == [0, 1, 2, 3]


@pytest.mark.results_only
def test_the_kernel_gives_top_p_what_min_p_leaves_and_zeros_of_both_signs():
    """Min-p 0.001 leaves the 5 and the zeros, which are equal; top-p needs them all, but only if -0.0 counts."""
    logits, rule = np.float32([[5, 0.0, -0.0, -0.0, -9]]), dict(temperature=1.0, min_p=0.001, top_k=2, top_p=0.99)
    out = np.full(1, np.nan, np.float32)
    write_thresholds(logits, tensors([rule], 5), slots_of(logits), out)
    assert np.flatnonzero(kept_by(out, logits)).tolist() == kept_tokens(logits, rule) == [0, 1, 2, 3]
