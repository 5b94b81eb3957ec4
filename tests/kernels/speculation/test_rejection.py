"""Acceptance of drafts that were drawn: the text has the model's distribution, whatever the draft's is."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.kernels.sampling import sample_reference
from minllm.kernels.sampling.thresholds import thresholds_reference
from minllm.kernels.speculation.distribution import distribution, distribution_reference
from minllm.kernels.speculation.rejection import reject, reject_reference
from minllm.kernels.speculation.runs import runs_of
from tests.kernels.sampling.cases import LOGITS, RULES, SIMULATED_RULES, kept_oracle, logits_of, parameters, tensors

DRAWS, ALL_DRAWS = {16: 2_000, 111: 2_000, 32_000: 500}, {16: 40_000, 111: 40_000, 32_000: 10_000}  # the second with --exhaustive
SALT = 0x9E3779B9


def chi_squared_is_fine(observed, expected):
    """Whether counts could come from this distribution; cells with an expectation below 5 count as one."""
    assert not observed[expected == 0].any(), "a token of probability zero was drawn"
    often = expected >= 5
    cells = np.append(expected[often], expected[~often].sum()), np.append(observed[often], observed[~often].sum())
    expected, observed = (cell[cells[0] > 0] for cell in cells)
    freedom = max(1, len(expected) - 1)
    return ((observed - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom) + 6  # about 1 in 10,000; the seeds are fixed


def numbered(rule, count, vocab):
    """Slots of one rule at the steps 0, 1, 2, ..."""
    sampling = tensors([rule] * count, vocab, step=0)
    sampling.step[:] = np.arange(count) * 8
    return sampling


def log_p(logits, sampling, slots):
    """The distribution of each row."""
    return distribution_reference(logits, thresholds_reference(logits, sampling, slots), sampling, slots)


def drawn(logits, sampling, slots):
    """Drafts, drawn with other random numbers than the model's."""
    other = sampling.to(np.copy)
    other.seed[:, 1] ^= np.uint32(SALT)
    return sample_reference(logits, other, slots)


@pytest.mark.parametrize("kind", LOGITS)
def test_the_distribution_is_that_of_the_sampler(kind):
    logits, sampling = logits_of(kind, len(RULES), 111), tensors(RULES, 111)
    found = log_p(logits, sampling, slots_of([(i, 1) for i in range(len(RULES))]))
    for row, rule in enumerate(RULES):
        rule = parameters(**rule)
        x, total = logits[row].astype(np.float64), np.exp(found[row].astype(np.float64)).sum()
        assert total == pytest.approx(1, abs=1e-5)
        if rule.temperature == 0 or not np.isfinite(x.max()):
            assert found[row].argmax() == np.argmax(np.nan_to_num(x, nan=-np.inf)) and np.count_nonzero(found[row] > -np.inf) == 1
            continue
        kept, doubtful = kept_oracle(x, rule)
        assert ((found[row] > -np.inf) == kept)[~doubtful].all()
        if not doubtful.any() and kind != "huge":
            expected = np.where(kept, np.exp((x - x.max()) / rule.temperature), 0)
            np.testing.assert_allclose(np.exp(found[row]), expected / expected.sum(), atol=1e-5)


@pytest.mark.detected("vocab")
@pytest.mark.parametrize("kind, vocab", [("normal", 111), ("normal", 4100), ("masked", 111), ("fully_masked", 40), ("ties", 111)])
def test_kernel_and_reference_agree_on_the_distribution(kind, vocab, device):
    rules = SIMULATED_RULES
    logits, sampling, slots = logits_of(kind, 5, vocab), tensors(rules, vocab), np.int32([3, 0, -1, 1, 2])
    thresholds = thresholds_reference(logits, sampling, slots)
    out = device.array(np.full(logits.shape, 7, np.float32))
    distribution(device.array(logits), device.array(thresholds), sampling.to(device.array), device.array(slots), out)
    expected = distribution_reference(logits, thresholds, sampling, slots)
    np.testing.assert_allclose(device.host(out), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocab", [16, 111, 1003])
def test_kernel_and_reference_agree_on_acceptance(vocab, device):
    slots, rules = slots_of(RUNS), [RULES[i] for i in (0, 1, 2, 5, 7, 8)]
    sampling, random = tensors(rules, vocab), np.random.default_rng(vocab)
    p = log_p(logits_of("normal", len(slots), vocab), sampling, slots)
    q = np.stack([log_p(logits_of("normal", 4, vocab, seed=s), sampling, np.full(4, s, np.int32)) for s in range(6)])  # [S, K, vocab]
    computed = random.integers(0, vocab, len(slots)).astype(np.int32)
    for first, length in runs_of(slots):
        for i in range(1, length):  # likely drafts, some of which the model finds likely
            likely = p[first + i - 1] if i % 2 else q[slots[first], i - 1]
            computed[first + i] = likely.argmax()
    chosen = sample_reference(logits_of("normal", len(slots), vocab), sampling, slots)
    expected = reject_reference(p, q, chosen, computed, slots, sampling)
    found = [device.array(np.full(len(slots), -7, np.int32)) for _ in range(2)]
    arrays = [device.array(array) for array in (p, q, chosen, computed, slots)]
    reject(*arrays, sampling.to(device.array), *found)
    np.testing.assert_array_equal(device.host(found[1]), expected[1])
    for first, _ in runs_of(slots):
        new = slice(first, first + expected[1][first])
        np.testing.assert_array_equal(device.host(found[0])[new], expected[0][new])
    assert len(set(expected[1][expected[1] > 0].tolist())) > 1, "some drafts are accepted, and some are not"


DRAWN = [dict(temperature=1.0), dict(temperature=0.7, top_k=9), dict(top_p=0.8), dict(top_k=12, top_p=0.9)]


@pytest.mark.parametrize("rule", DRAWN, ids=str)
@pytest.mark.parametrize("vocab", [16, 111, 32_000])
def test_the_first_token_has_the_models_distribution(vocab, rule, request):
    """A draft of an unlike model, which accepts some and rejects others."""
    if vocab == 32_000 and len(rule) > 1 and not request.config.option.exhaustive:
        pytest.skip("a vocabulary of 32,000 takes seconds per rule: --exhaustive runs all")
    count, spread = (ALL_DRAWS if request.config.option.exhaustive else DRAWS)[vocab], 0.4
    model, draft = (logits_of("normal", 1, vocab, seed)[0] * spread for seed in (1, 2))
    draft = (model + draft) / 2
    sampling, one = numbered(rule, count, vocab), np.zeros(1, np.int32)
    p, q = log_p(model[None], sampling, one)[0], log_p(draft[None], sampling, one)[0]
    each = np.arange(count, dtype=np.int32)
    observed, accepted = np.zeros(vocab, int), 0
    for part in np.array_split(each, max(1, count // 500)):
        drafts = drawn(np.broadcast_to(draft, (len(part), vocab)), sampling, part)
        slots = np.repeat(part, 2)
        computed = np.stack([np.zeros(len(part), np.int32), drafts], axis=1).reshape(-1)
        chosen = np.zeros(len(slots), np.int32)  # no draw from p is needed for the first of two tokens
        tokens, counts = reject_reference(np.broadcast_to(p, (len(slots), vocab)), _Same(q), chosen, computed, slots, sampling)
        observed += np.bincount(tokens[::2], minlength=vocab)
        accepted += (counts[::2] == 2).sum()
    assert chi_squared_is_fine(observed, np.exp(p.astype(np.float64)) * count)
    overlap = np.minimum(np.exp(p.astype(np.float64)), np.exp(q.astype(np.float64))).sum()  # theorem 1: the rate of acceptance
    assert 0.05 < overlap < 0.95 and abs(accepted / count - overlap) < 4 * np.sqrt(overlap * (1 - overlap) / count)


class _Same:
    """The same row for every slot and draft."""

    def __init__(self, row):
        self.row = row

    def __getitem__(self, index):
        return self.row[index[2]] if len(index) == 3 else self.row


@pytest.mark.parametrize("vocab", [5, 16])
def test_a_text_has_the_models_distribution(vocab, request):
    """Neighbours in a text of a Markov chain, drafted three tokens at a time by another chain: residuals and bonus tokens alike."""
    random = np.random.default_rng(vocab)
    model, draft = random.normal(0, 1.5, (2, vocab, vocab)).astype(np.float32)
    draft = (model + draft) / 2
    drafts, lanes, rounds = 3, 200, 20 if request.config.option.exhaustive else 8
    sampling = tensors([dict(temperature=1.0, seed=lane) for lane in range(lanes)], vocab, step=0)
    every, slots = np.arange(lanes, dtype=np.int32), np.repeat(np.arange(lanes, dtype=np.int32), drafts + 1)
    newest, pairs = np.zeros(lanes, np.int32), np.zeros((vocab, vocab))
    lengths = []
    for _ in range(rounds):
        computed, q, ahead = [newest], [], sampling.to(np.copy)
        for _ in range(drafts):
            logits = draft[computed[-1]]
            q.append(log_p(logits, sampling, every))
            computed.append(drawn(logits, ahead, every))
            ahead.step += 1
        flat = np.stack(computed, axis=1).reshape(-1)
        rows = sampling.to(lambda array: np.repeat(array, drafts + 1, axis=0))
        rows.step += np.tile(np.arange(drafts + 1, dtype=np.int32), lanes)
        numbers = np.arange(len(flat), dtype=np.int32)
        p, chosen = log_p(model[flat], rows, numbers), sample_reference(model[flat], rows, numbers)
        tokens, counts = reject_reference(p, np.stack(q, axis=1), chosen, flat, slots, sampling)
        for lane in every:
            first = lane * (drafts + 1)
            new = [newest[lane], *tokens[first : first + counts[first]]]
            np.add.at(pairs, (new[:-1], new[1:]), 1)
            newest[lane] = new[-1]
            lengths.append(counts[first])
        sampling.step += counts[:: drafts + 1]
    assert set(lengths) == {1, 2, 3, 4}
    probabilities = np.exp(model.astype(np.float64))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    expected = probabilities * pairs.sum(axis=1, keepdims=True)
    assert chi_squared_is_fine(pairs.reshape(-1), expected.reshape(-1))


def test_greedy_rows_accept_by_the_first_mismatch():
    """Temperature 0 is the limit of the same rule."""
    logits, sampling = logits_of("normal", 5, 111), tensors([dict(temperature=0.0)], 111)
    rows = np.zeros(5, np.int32)
    p, best = log_p(logits, sampling, rows), logits.argmax(axis=1).astype(np.int32)
    q = log_p(logits_of("normal", 4, 111, seed=9), tensors([dict(temperature=1.0)], 111), rows[:4])[None]
    for right in range(5):
        computed = np.concatenate([np.int32([0]), best[:4]])
        if right < 4:
            computed[1 + right] = (best[right] + 1) % 111
        tokens, counts = reject_reference(p, q, best, computed, rows, sampling)
        assert counts[0] == right + 1 and tokens[: right + 1].tolist() == best[: right + 1].tolist()
