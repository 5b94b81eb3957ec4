"""The launches that draw drafts, verify them, and advance by what was accepted: R rows in runs, (slot, rows)."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue.launch import Launch, Moved, beside, both, describes, returns
from minllm.catalogue.speculation.states import LONGEST, RUNS, SLOTS, make_states, of_state, random_tokens, slots_of
from minllm.kernels.sampling.log_probabilities import log_softmax
from minllm.kernels.speculation import accept as of_chains
from minllm.kernels.speculation import accept_tree as of_trees
from minllm.kernels.speculation import advance_spans as advancing
from minllm.kernels.speculation import distribution as distributions
from minllm.kernels.speculation import perturb as scoring
from minllm.kernels.speculation import reject_tree as rejecting_trees
from minllm.kernels.speculation import rejection as rejecting
from minllm.kernels.speculation import synthetic
from minllm.kernels.speculation.runs import runs_of
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TokenTree


@describes
def accept(runs=RUNS):
    """Drafts up to the first mismatch."""
    rows = sum(count for _, count in runs)

    def arrays(noise):
        given = {name: random_tokens(noise, rows, most=2) for name in ("chosen", "computed")}
        return given | dict(slots=slots_of(runs), counts=noise.unwritten((rows,), np.int32))

    def moved(chosen, computed, slots, counts):
        found = of_chains.accept_reference(chosen, computed, slots)
        compared = 4 * sum(min(int(found[first]), length - 1) for first, length in runs_of(slots))  # right ones, and a wrong one
        return Moved(dict(chosen=compared, computed=compared, counts=4 * rows))

    return Launch(
        arrays,
        **beside(of_chains.accept, "counts"),
        moved=moved,
        indices=("slots",),
        exact=True,
    )


@describes
def accept_tree(parents=(-1, 0, 0, 1, 2), runs=((2, 5), (-1, 1)), by_hand=True):
    """The longest right path; by hand: node 2 is right, and below it node 4."""
    tree, rows = TokenTree(parents), sum(count for _, count in runs)

    def arrays(noise):
        chosen, computed = random_tokens(noise, rows, most=2), random_tokens(noise, rows, most=2)
        if by_hand:
            chosen, computed = np.int32([5, 6, 7, 8, 9, 0]), np.int32([1, 4, 5, 6, 7, 0])
        return dict(chosen=chosen, computed=computed, slots=slots_of(runs)) | {
            name: noise.unwritten((rows,), np.int32) for name in ("tokens", "path", "counts")
        }

    n, accepted, compared = len(parents), 2, 3  # nodes with a right parent: 1, 2 and 4
    asked = dict(chosen=4 * (compared + n + accepted + 1), computed=4 * compared, tokens=4 * (n + accepted + 1), counts=4 * (rows + 1))
    asked["path"] = 4 * (2 * (n - 1) + 1 + n + accepted + 1)  # right or wrong, read once and written once; then the rows, then the path
    different = dict(chosen=4 * rows, tokens=4 * rows, counts=4 * rows, path=4 * (rows + 3))  # three parents are read
    return Launch(
        arrays,
        call=lambda ops, chosen, computed, slots, tokens, path, counts: of_trees.accept_tree(
            chosen, computed, slots, tree.on(ops, LONGEST), tokens, path, counts, ops.stream
        ),
        reference=returns(("tokens", "path", "counts"), of_trees.accept_tree_reference, parents=np.array(parents)),
        moved=Moved(asked, different) if by_hand else {},
        indices=("slots", "parents", "depths"),
        exact=True,
    )


def random_numbers(noise):
    """Temperatures, steps and seeds of the slots; the second slot is greedy."""
    temperature = np.full(SLOTS, 0.8, np.float32)
    temperature[1] = 0
    seed = noise.random.integers(0, 2**32, (SLOTS, 2), np.uint32)
    return dict(temperature=temperature, step=noise.random.integers(0, 9, SLOTS).astype(np.int32), seed=seed)


@describes
def accept_synthetic(rate, runs=RUNS):
    """As many drafts as chance allows at this rate."""
    rows = sum(count for _, count in runs)

    def arrays(noise):
        given = random_numbers(noise)
        return dict(slots=slots_of(runs), step=given["step"], seed=given["seed"], counts=noise.unwritten((rows,), np.int32))

    def run(function, a, *out, **stream):
        return function(a.slots, a, rate, *out, **stream)

    return Launch(
        arrays,
        **both(run, synthetic.accept_synthetic, synthetic.accept_synthetic_reference, out=("counts",)),
        moved=Moved(dict(counts=4 * rows)),
        indices=("slots", "step", "seed"),
        exact=True,
    )


@describes
def distribution(vocabulary, kept, slots=(0, 1, -1)):
    """The distributions that rows are drawn from: the first keeps `kept` tokens, the second is greedy, the third padding."""
    rows, drawn = len(slots), 1

    def arrays(noise):
        logits = noise.array((rows, vocabulary), np.float32, 3.0)
        thresholds = np.sort(logits, axis=1)[:, -kept].copy()
        given = dict(
            logits=logits, thresholds=thresholds, slots=np.array(slots, np.int32), temperature=random_numbers(noise)["temperature"]
        )
        return given | dict(out=noise.unwritten(logits.shape, np.float32))

    def run(function, a, *out, **stream):
        return function(a.logits, a.thresholds, a, a.slots, *out, **stream)

    read = rows * vocabulary + drawn * 2 * (vocabulary + kept)  # for the largest logit; for the sum and the result, once more if kept
    return Launch(
        arrays,
        **both(run, distributions.distribution, distributions.distribution_reference, out=("out",)),
        moved=Moved(dict(logits=4 * read, out=4 * rows * vocabulary), dict(logits=4 * rows * vocabulary)),
        indices=("thresholds", "slots", "temperature"),
        elementwise=True,
    )


@describes
def reject(vocabulary, runs=((1, 4), (-1, 1), (0, 2))):
    """Drafts that were drawn: of the first run one is accepted for certain, and the next rejected; of the last run all are accepted."""
    rows, accepted, rejected = sum(count for _, count in runs), 2, 1

    def arrays(noise):
        p = log_softmax(noise.array((rows, vocabulary), np.float32, 3.0))
        q = log_softmax(noise.array((SLOTS, 3, vocabulary), np.float32, 3.0))
        q[1, 0], q[0, 0] = p[0], p[5]  # p(f) / q(f) = 1
        computed = np.int32([1, 5, 9, 7, 0, 1, 3])
        p[1, computed[2]] = -np.inf
        given = random_numbers(noise)
        return dict(
            p=p, q=q, chosen=np.arange(rows, dtype=np.int32), computed=computed, slots=slots_of(runs), step=given["step"],
            seed=given["seed"], tokens=noise.unwritten((rows,), np.int32), counts=noise.unwritten((rows,), np.int32),
        )  # fmt: skip

    def run(function, a, *out, **stream):
        return function(a.p, a.q, a.chosen, a.computed, a.slots, a, *out, **stream)

    moved = 4 * (accepted + rejected * vocabulary)
    # chosen: copied; then asked whether it is a token, by one thread before a draft and by all after a rejected one
    asked_of = accepted + rejected * (1 + rejecting.THREADS)
    of_rows = dict(chosen=4 * (rows - accepted + asked_of), tokens=4 * (rows + rejected), counts=4 * rows)
    asked = of_rows | dict(computed=4 * (accepted + rejected), p=moved + 4 * rejected, q=moved + 4 * rejected)
    return Launch(
        arrays,
        **both(run, rejecting.reject, rejecting.reject_reference, out=("tokens", "counts")),
        moved=Moved(asked, dict(p=moved, q=moved, chosen=4 * rows, tokens=4 * rows)),
        indices=("slots", "step", "seed"),
        exact=True,
    )


@describes
def reject_tree(vocabulary, runs=((1, 3), (-1, 1)), parents=(-1, 0, 0)):
    """The first child of the root is rejected and the second accepted, which has no children in this run."""
    tree, rows, threads = TokenTree(parents), sum(count for _, count in runs), rejecting_trees.THREADS

    def arrays(noise):
        p = log_softmax(noise.array((rows, vocabulary), np.float32, 3.0))
        q = log_softmax(noise.array((SLOTS, 2, vocabulary), np.float32, 3.0))
        p[0], p[0, 7], q[1, 0, 7] = -np.inf, 0.0, -np.inf  # the model is certain of the second child
        given = random_numbers(noise)
        return dict(
            p=p, q=q, chosen=np.arange(rows, dtype=np.int32), computed=np.int32([1, 9, 7, 0]), slots=slots_of(runs), step=given["step"],
            seed=given["seed"], **{name: noise.unwritten((rows,), np.int32) for name in ("by_row", "tokens", "path", "counts")},
        )  # fmt: skip

    def reference(p, q, chosen, computed, slots, step, seed, **_):
        sampling = SimpleNamespace(step=step, seed=seed)
        found = rejecting_trees.reject_tree_reference(p, q, chosen, computed, slots, np.array(parents), sampling)
        return dict(zip(("by_row", "tokens", "path", "counts"), found))

    asked = dict(p=4 * (2 * threads + 2 * vocabulary), q=4 * (2 * threads + vocabulary), counts=4 * rows)  # p(x) of two children, by all
    return Launch(
        arrays,
        call=lambda ops, p, q, chosen, computed, slots, step, seed, **out: rejecting_trees.reject_tree(
            p, q, chosen, computed, slots, tree.on(ops, LONGEST), SimpleNamespace(step=step, seed=seed), **out, stream=ops.stream
        ),
        reference=reference,
        moved=Moved(asked, dict(p=8 * vocabulary, q=4 * vocabulary)),
        scratch=("p",),
        indices=("slots", "step", "seed", "parents", "computed", "chosen", "by_row", "tokens", "path"),  # read by all threads
        exact=True,
    )


@describes
def perturb(vocabulary, slots=(0, 1, -1)):
    """Scores of children: of a row that is drawn, of a greedy one and of padding."""
    rows = len(slots)

    def arrays(noise):
        log_q, logits = (noise.array((rows, vocabulary), np.float32, 3.0) for _ in range(2))
        return dict(log_q=log_q, logits=logits, slots=np.array(slots, np.int32), **random_numbers(noise)) | dict(
            scores=noise.unwritten((rows, vocabulary), np.float32)
        )

    def run(function, a, *out, **stream):
        return function(a.log_q, a.logits, a, a.slots, *out, **stream)

    return Launch(
        arrays,
        **both(run, scoring.perturb, scoring.perturb_reference, out=("scores",)),
        moved=Moved(dict(log_q=4 * vocabulary, logits=4 * 2 * vocabulary, scores=4 * rows * vocabulary)),
        indices=("slots", "temperature", "step", "seed"),
        elementwise=True,
    )


@describes
def advance_spans(runs=RUNS):
    """The new tokens of each run enter its slot, with penalties in every third slot."""
    rows = sum(count for _, count in runs)

    def arrays(noise):
        state, drafts = make_states(noise.random)
        state.lengths[4] = drafts.token_history.shape[1] - 1  # a history that is full
        slots, counts = slots_of(runs), np.zeros(rows, np.int32)
        for first, length in runs_of(slots):
            counts[first] = noise.random.integers(1, length + 1)
        given = dict(words=state.words, output_counts=state.sampling.output_counts, token_history=drafts.token_history)
        return given | dict(tokens=np.arange(rows, dtype=np.int32) % 9, counts=counts, slots=slots)

    def advance(function, a, **stream):
        state, drafts = of_state(a.words, output_counts=a.output_counts), DraftState(None, a.token_history)
        function(a.tokens, a.counts, a.slots, state, drafts, **stream)

    def moved(words, token_history, tokens, counts, slots, **_):
        begun = runs_of(slots)
        new, counted = int(counts.sum()), int(sum(counts[first] for first, _ in begun if slots[first] % 3 == 1))
        stored = sum(min(int(counts[at]), token_history.shape[1] - int(of_state(words).lengths[slots[at]])) for at, _ in begun)
        once = dict(newest_tokens=4 * len(begun), token_history=4 * stored, output_counts=8 * counted)
        asked = once | dict.fromkeys(("lengths", "step"), 8 * len(begun)) | dict(adjustments=4 * new)
        asked |= dict(tokens=4 * (new + len(begun)), counts=4 * (rows + len(begun)))  # the newest token of a run is read again
        return Moved(asked, dict(tokens=4 * new, counts=4 * rows, adjustments=4 * len(begun)))

    return Launch(
        arrays,
        **both(advance, advancing.advance_spans, advancing.advance_spans_reference, "words", "output_counts", "token_history"),
        moved=moved,
        indices=("slots",),
        exact=True,
    )
