"""Acceptance along trees that were drawn: the text has the model's distribution, whatever the draft's is."""

import numpy as np
import pytest

from minllm.catalogue.speculation.states import RUNS, slots_of
from minllm.kernels.sampling import sample_reference
from minllm.kernels.speculation.perturb import perturb_reference
from minllm.kernels.speculation.reject_tree import choose_child, reject_tree, reject_tree_reference
from minllm.kernels.speculation.rejection import reject_reference
from minllm.kernels.speculation.token_tree import TokenTree
from tests.kernels.sampling.cases import RULES, logits_of, tensors
from tests.kernels.speculation.test_rejection import ALL_DRAWS, SALT, chi_squared_is_fine, log_p, numbered

TREE = TokenTree.of_paths([(0,), (1,), (2,), (0, 0), (0, 1), (1, 0)])
DRAWS = {16: 1_000}


def children_of(log_q, logits, sampling, slots, most):
    """The children that a draft draws after each row, none twice: int32 [R, most]."""
    other = sampling.to(np.copy)
    other.seed[:, 1] ^= np.uint32(SALT)
    scores = perturb_reference(log_q, logits, other, slots)
    return np.argsort(-scores, axis=1, kind="stable")[:, :most].astype(np.int32)


@pytest.mark.parametrize("vocab", [16, 111, 32_000])
@pytest.mark.parametrize("rule", [dict(temperature=1.0), dict(temperature=0.8, top_k=2)], ids=str)
def test_the_first_token_has_the_models_distribution(vocab, rule, request):
    """Three children of the root, of an unlike model; with top_k = 2 the last has probability 0 in the draft."""
    exhaustive = request.config.option.exhaustive
    if vocab > 16 and not exhaustive:
        pytest.skip("large vocabularies take seconds: --exhaustive runs them")
    count = (ALL_DRAWS if exhaustive else DRAWS)[vocab]
    model, draft = (logits_of("normal", 1, vocab, seed)[0] * np.float32(0.5) for seed in (1, 2))
    sampling, one = numbered(rule, count, vocab), np.zeros(1, np.int32)
    p = log_p(model[None], numbered(dict(temperature=1.0), 1, vocab), one)[0]
    q = log_p(draft[None], sampling, one)[0]
    observed = np.zeros(vocab, int)
    for part in np.array_split(np.arange(count, dtype=np.int32), max(1, count * vocab // 2_000_000)):
        shape = (len(part), vocab)
        tokens = children_of(np.broadcast_to(q, shape), np.broadcast_to(draft, shape), sampling, part, 3)
        assert all(len(set(row)) == 3 for row in tokens.tolist())
        computed, slots = np.concatenate([np.zeros((len(part), 1), np.int32), tokens], axis=1).reshape(-1), np.repeat(part, 4)
        rows, chosen = np.broadcast_to(p, (len(slots), vocab)), np.zeros(len(slots), np.int32)  # a draw from p is never the first token
        _, new, _, counts = reject_tree_reference(rows, _OfRoot(q), chosen, computed, slots, np.int32([-1, 0, 0, 0]), sampling)
        observed += np.bincount(new[::4], minlength=vocab)
        assert (counts[::4] > 0).all()
    assert chi_squared_is_fine(observed, np.exp(p.astype(np.float64)) * count)


class _OfRoot:
    """The same distribution at the root of every slot."""

    def __init__(self, row):
        self.row = row

    def __getitem__(self, index):
        return self.row


def test_a_path_has_the_models_distribution(request):
    """Pairs of neighbours in a Markov chain, drafted two levels deep by another chain: accepted ones, residuals and the last draws."""
    vocab, count, random = 5, 8_000 if request.config.option.exhaustive else 500, np.random.default_rng(3)
    model, draft = random.normal(size=(2, vocab, vocab)).astype(np.float32)
    sampling, start = numbered(dict(temperature=1.0), count, vocab), 2
    rows_of = [log_p(chain, sampling, np.zeros(vocab, np.int32)) for chain in (model, draft)]
    slots = np.repeat(np.arange(count, dtype=np.int32), len(TREE))
    computed = np.full((count, len(TREE)), start, np.int32)
    each = np.arange(count, dtype=np.int32)
    for first, end in TREE.levels:
        later = sampling.to(np.copy)
        later.step += TREE.depths[first]
        for node in range(first, end):
            wanted = [child for child, parent in enumerate(TREE.parents) if parent == node]
            before = computed[:, node]
            computed[:, wanted] = children_of(rows_of[1][before], draft[before], later, each, len(wanted))
    flat, q = computed.reshape(-1), rows_of[1][computed]  # [count, nodes, vocab]
    steps = sampling.to(np.copy)
    steps.step = sampling.step[slots] + np.tile(TREE.depths, count)
    steps.seed = sampling.seed[slots]
    steps.temperature = sampling.temperature[slots]
    p = rows_of[0][flat]
    chosen = np.argmax(p + _noise(steps, vocab), axis=1).astype(np.int32)
    _, new, _, counts = reject_tree_reference(p, q, chosen, flat, slots, np.array(TREE.parents), sampling)
    firsts, found = new[:: len(TREE)], counts[:: len(TREE)]
    expected = np.exp(rows_of[0].astype(np.float64))
    assert chi_squared_is_fine(np.bincount(firsts, minlength=vocab), expected[start] * count)
    seconds = new[1 :: len(TREE)]
    for token in range(vocab):  # whoever got a second token got it from the model's row of the first
        here = (firsts == token) & (found >= 2)
        assert here.sum() > count / 60 and chi_squared_is_fine(np.bincount(seconds[here], minlength=vocab), expected[token] * here.sum())
    assert (np.bincount(found)[1:] > count / 60).all() and found.max() == 3


def _noise(sampling, vocab):
    from minllm.kernels.sampling.philox import gumbel_reference

    return np.stack([gumbel_reference(seed, int(step), np.arange(vocab)) for seed, step in zip(sampling.seed, sampling.step, strict=True)])


def test_a_chain_is_accepted_as_one():
    slots, vocab = slots_of(RUNS), 23
    sampling = tensors([RULES[i] for i in (0, 1, 2, 5, 7, 8)], vocab)
    p = log_p(logits_of("normal", len(slots), vocab), sampling, slots)
    q = np.stack([log_p(logits_of("normal", 4, vocab, seed=s), sampling, np.full(4, s, np.int32)) for s in range(6)])
    computed = np.random.default_rng(1).integers(0, vocab, len(slots)).astype(np.int32)
    computed[1:] = np.where(np.arange(len(slots) - 1) % 3 > 0, p[:-1].argmax(axis=1), computed[1:])
    chosen = sample_reference(logits_of("normal", len(slots), vocab), sampling, slots)
    with np.errstate(invalid="ignore"):  # drafts that neither could have drawn
        tokens, counts = reject_reference(p, q, chosen, computed, slots, sampling)
    _, new, path, found = reject_tree_reference(p, q, chosen, computed, slots, np.arange(-1, 5), sampling)
    np.testing.assert_array_equal(found, counts)
    np.testing.assert_array_equal(path, np.arange(len(slots)))
    for first in np.flatnonzero(counts):
        np.testing.assert_array_equal(new[first : first + counts[first]], tokens[first : first + counts[first]])


def test_children_that_the_draft_cannot_draw_are_certain():
    """p = (.5, .3, .2), all of q on token 0: it is rejected half of the time, token 1 then accepted with .3 / .5, and 2 is left."""
    p, q, tokens = np.float32([0.5, 0.3, 0.2]), np.float32([1, 0, 0]), np.int32([0, 1])
    assert choose_child(p, q, tokens, np.float32([0.49, 0]))[0] == 0
    assert choose_child(p, q, tokens, np.float32([0.51, 0.59]))[0] == 1
    accepted, left = choose_child(p, q, tokens, np.float32([0.51, 0.61]))
    assert accepted is None and left[:2].tolist() == [0, 0] and left[2] > 0


@pytest.mark.parametrize("vocab", [16, 1003])
def test_kernel_and_reference_agree(vocab, device):
    tree, slots = TREE, slots_of([(2, 7), (0, 4), (-1, 2), (5, 1), (3, 6), (1, 7)])
    rules = [RULES[i] for i in (0, 1, 2, 5, 7, 8)]
    sampling = tensors(rules, vocab)
    p = log_p(logits_of("normal", len(slots), vocab), sampling, slots)
    q = np.stack([log_p(logits_of("normal", 6, vocab, seed=s), sampling, np.full(6, s, np.int32)) for s in range(6)])  # [S, K, vocab]
    computed = np.random.default_rng(0).integers(0, vocab, len(slots)).astype(np.int32)
    for first in np.flatnonzero(np.diff(slots, prepend=-2)):
        for child in range(1, (slots == slots[first]).sum()):
            parent = tree.parents[child]
            likely = p[first + parent] if child % 2 else q[slots[first], parent]
            computed[first + child] = np.argsort(-likely)[tree.parents[:child].count(parent)]
    chosen = sample_reference(logits_of("normal", len(slots), vocab), sampling, slots)
    expected = reject_tree_reference(p, q, chosen, computed, slots, np.array(tree.parents), sampling)
    found = [device.array(np.full(len(slots), -7, np.int32)) for _ in range(4)]
    arrays = [device.array(array) for array in (p.copy(), q, chosen, computed, slots)]
    reject_tree(*arrays, tree.on(device, 100), sampling.to(device.array), *found)
    for ours, theirs, name in zip((found[0], *found[2:]), (expected[0], *expected[2:]), ("by_row", "path", "counts"), strict=True):
        np.testing.assert_array_equal(device.host(ours), theirs, err_msg=name)
    for first in np.flatnonzero(expected[3]):
        new = slice(first, first + expected[3][first])
        np.testing.assert_array_equal(device.host(found[1])[new], expected[1][new])
    assert len(set(expected[3][expected[3] > 0].tolist())) > 1, "some drafts are accepted, and some are not"
