"""The launches of speculation: R rows in runs, (slot, rows). The first row of a run holds the newest token, the others its drafts."""

from types import SimpleNamespace

import numpy as np

from minllm.catalogue.launch import Launch, MachineCode, Moved, both_in_place, calls, describes, each, in_place, returns
from minllm.catalogue.slots import make_state, state_of
from minllm.kernels.sampling import SamplingKind
from minllm.kernels.sampling.log_probabilities import log_softmax
from minllm.kernels.sampling.tensors import VOCABULARY_FIELDS
from minllm.kernels.speculation import accept as of_chains
from minllm.kernels.speculation import accept_tree as of_trees
from minllm.kernels.speculation import advance_spans as advancing
from minllm.kernels.speculation import distribution as distributions
from minllm.kernels.speculation import draft_rows, synthetic
from minllm.kernels.speculation import load_spans as loading
from minllm.kernels.speculation import lookahead as guesses
from minllm.kernels.speculation import perturb as scoring
from minllm.kernels.speculation import prompt_lookup as lookup
from minllm.kernels.speculation import reject_tree as rejecting_trees
from minllm.kernels.speculation import rejection as rejecting
from minllm.kernels.speculation import row_sampling as sampling_of_rows
from minllm.kernels.speculation.runs import runs_of
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TokenTree

RUNS = ((2, 3), (0, 1), (-1, 2), (5, 1), (3, 5), (-1, 1), (4, 2))
SLOTS, WIDTH, BLOCK_SIZE, DRAFTS, VOCABULARY = 7, 6, 4, 4, 50
LONGEST = 1000  # tokens of a sequence with a tree
HOST = SimpleNamespace(array=np.array)


def slots_of(runs):
    """The slot of each row: int32 [R]."""
    return np.concatenate([np.full(rows, slot, np.int32) for slot, rows in runs])


def make_states(random, num_slots=SLOTS, width=WIDTH, block_size=BLOCK_SIZE, num_drafts=DRAFTS, vocabulary=VOCABULARY):
    """(slots with sequences that have room for their drafts, their drafts); the history holds few different tokens."""
    state = make_state(random, num_slots, width, block_size, vocabulary)
    state.lengths[:] = random.integers(1, width * block_size - num_drafts, num_slots)
    state.sampling.step[:], state.sampling.min_tokens[:] = random.integers(0, 9, (2, num_slots))
    drafts = DraftState.make(np.zeros, num_slots, num_drafts, width * block_size)
    drafts.drafts[:] = random.integers(0, vocabulary, drafts.drafts.shape)
    drafts.token_history[:] = random.integers(0, 3, drafts.token_history.shape)
    return state, drafts


def of_state(words, width=WIDTH, **arrays):
    """The SlotState of these words."""
    return state_of(words, SLOTS, width, **arrays)


def random_tokens(noise, *shape, most=3):
    """Tokens below `most`, so that some are equal."""
    return noise.random.integers(0, most, shape).astype(np.int32)


@describes
def load_spans(runs=tuple(run for run in RUNS if run[0] >= 0), limited=True):
    """The rows that verify each run's drafts; limited: the blocks of some sequences have no room for all of them."""
    rows = sum(count for _, count in runs)

    def arrays(noise):
        state, drafts = make_states(noise.random)
        batch = {name: noise.unwritten((rows,), np.int32) for name in ("token_ids", "positions", "slot_mapping")}
        batch |= dict(context_lens=noise.unwritten((len(runs),), np.int32), block_tables=noise.unwritten((len(runs), WIDTH), np.int32))
        room = -(-state.lengths[[slot for slot, _ in runs]] // BLOCK_SIZE) * BLOCK_SIZE
        starts = np.cumsum([0, *(count for _, count in runs)]).astype(np.int32)
        return dict(
            words=state.words, drafts=drafts.drafts, slots=slots_of(runs), room=room if limited else None, query_start=starts, **batch
        )

    def load(function, a, **stream):
        function(a.slots, of_state(a.words), DraftState(a.drafts, None), a, BLOCK_SIZE, room=a.room, **stream)

    def moved(words, slots, room, query_start, **_):
        starts = of_state(words).lengths[[slot for slot, _ in runs]] - 1
        ends = starts + [count for _, count in runs]
        contexts = ends if room is None else np.minimum(ends, room)
        beyond, blocks = int((ends - contexts).sum()), int((-(-contexts // BLOCK_SIZE)).sum())
        asked = dict.fromkeys(("token_ids", "positions"), 4 * rows) | dict(newest_tokens=4 * len(runs), drafts=4 * (rows - len(runs)))
        asked |= dict(slot_mapping=4 * (2 * rows - beyond), context_lens=4 * len(runs), block_tables=4 * blocks)  # -1 first, then the slot
        return Moved(asked, dict(slot_mapping=4 * rows))

    written = ("token_ids", "positions", "slot_mapping", "context_lens", "block_tables")
    return Launch(
        arrays,
        **both_in_place(load, loading.load_spans, loading.load_spans_reference, *written),
        moved=moved,
        indices=("slots", "query_start", "lengths", "room", "tables_of_slots"),  # read by every thread, or twice
        exact=True,
    )


@describes
def row_sampling(runs=RUNS, vocabulary=VOCABULARY, ahead=0, salt=0):
    """The parameters of every row: those of its slot, at the step and with the tokens that its draft's path adds."""
    rows, words_of_row = sum(count for _, count in runs), 4 * sampling_of_rows.WORDS

    def arrays(noise):
        state, drafts = make_states(noise.random, vocabulary=vocabulary)
        state.sampling.token_flags[:] = noise.random.integers(0, 8, (SLOTS, vocabulary))
        state.sampling.logit_bias[:] = noise.array((SLOTS, vocabulary), np.float32)
        wide = {name: getattr(state.sampling, name) for name in VOCABULARY_FIELDS}
        return dict(words=state.words, drafts=drafts.drafts, slots=slots_of(runs), **wide)

    def results(found):
        tensors, row_slots = found
        return {f"row {name}": array for name, array in tensors.arrays().items()} | {"row slots": row_slots}

    def given(words, drafts, slots, wide):
        return slots, of_state(words, **wide), DraftState(drafts, None), SamplingKind.ADJUSTED

    def moved(words, drafts, slots, **_):
        offsets, used = sampling_of_rows.offsets_of(slots), len({slot for slot, _ in runs})
        sizes = dict(token_flags=1, output_counts=4, logit_bias=4), dict(row_flags=1, row_counts=4, row_bias=4)
        wide = {name: size * rows * vocabulary for one in sizes for name, size in one.items()}
        of_words = dict(words_of_slots=words_of_row * rows, words=words_of_row * rows, row_slots=4 * rows)
        different = {name: size * used * vocabulary for name, size in sizes[0].items()}
        return dict(
            row_words_kernel=Moved(of_words, dict(words_of_slots=words_of_row * used)),
            row_vocabulary_kernel=Moved(  # every thread of a row reads the drafts before it
                wide | dict(drafts=4 * vocabulary * int(offsets.sum())), different | dict(drafts=4 * sum(count - 1 for _, count in runs))
            ),
        )

    return Launch(
        arrays,
        call=lambda ops, words, drafts, slots, **wide: results(
            sampling_of_rows.row_sampling(*given(words, drafts, slots, wide), ops.empty, ahead, salt, ops.stream)
        ),
        reference=lambda words, drafts, slots, **wide: results(
            sampling_of_rows.row_sampling_reference(*given(words, drafts, slots, wide), ahead, salt)
        ),
        moved=moved,
        indices=("slots",),
        exact=True,
    )


@describes
def run_slots(runs=RUNS, each_run=1):
    """The slot of each run, every row of padding a run of its own."""
    found = sum(count if slot < 0 else 1 for slot, count in runs) * each_run
    return Launch(
        arrays=lambda noise: dict(slots=slots_of(runs), out=noise.unwritten((found,), np.int32)),
        call=calls(draft_rows.run_slots, each=each_run),
        reference=returns(("out",), draft_rows.run_slots_reference, count=found // each_run, each=each_run),
        moved=Moved(dict(out=4 * found)),
        indices=("slots",),
        exact=True,
    )


@describes
def room_for_drafts(runs=RUNS):
    """The number of drafts that the blocks of each run's sequence have room for."""
    rows, found = sum(count for _, count in runs), sum(count if slot < 0 else 1 for slot, count in runs)

    def arrays(noise):
        lengths, room = noise.random.integers(1, 9, SLOTS).astype(np.int32), noise.random.integers(4, 12, found).astype(np.int32)
        return dict(slots=slots_of(runs), lengths=lengths, room=room, counts=noise.unwritten((rows,), np.int32))

    used = sum(slot >= 0 for slot, _ in runs)
    return Launch(
        arrays,
        call=calls(draft_rows.room_for_drafts, num_drafts=DRAFTS),
        reference=returns(("counts",), draft_rows.room_for_drafts_reference, num_drafts=DRAFTS),
        moved=Moved(dict(lengths=4 * used, room=4 * used, counts=4 * rows)),
        indices=("slots",),
        exact=True,
    )


@describes
def store_drafts(slots=(2, -1, 0), vocabulary=67, index=1):
    """Draft number `index` of each slot, with the distribution that it was drawn from."""
    rows, used = len(slots), sum(slot >= 0 for slot in slots)

    def arrays(noise):
        of_slots = np.zeros((SLOTS, DRAFTS), np.int32), np.zeros((SLOTS, DRAFTS, vocabulary), np.float32)
        given = dict(tokens=np.arange(7, 7 + rows, dtype=np.int32), slots=np.array(slots, np.int32))
        return given | dict(zip(("drafts", "log_q_of_slots"), of_slots)) | dict(log_q=noise.array((rows, vocabulary), np.float32))

    def store(function, a, **stream):
        function(a.tokens, a.slots, index, DraftState(a.drafts, None, a.log_q_of_slots), a.log_q, **stream)

    wide = 4 * used * vocabulary
    return Launch(
        arrays,
        **both_in_place(store, draft_rows.store_drafts, draft_rows.store_drafts_reference, "drafts", "log_q_of_slots"),
        moved=dict(
            store_drafts_kernel=Moved(dict(tokens=4 * used, drafts=4 * used)),
            store_log_q_kernel=Moved(dict(log_q=wide, log_q_of_slots=wide)),
        ),
        indices=("slots",),
        exact=True,
    )


@describes
def store_children(runs=((2, 2), (-1, 2)), parents=(-1, 0, 0, 1, 1, 2), first_node=1):
    """The drafts below each node of a level, of which the rows of a run hold the best tokens."""
    tree, rows = TokenTree(parents), sum(count for _, count in runs)
    most = max(parents.count(node) for node in parents)
    stored = sum(parents.count(first_node + row) for slot, count in runs if slot >= 0 for row in range(count))

    def arrays(noise):
        return dict(
            tokens=random_tokens(noise, rows, most, most=99), slots=slots_of(runs), drafts=np.zeros((SLOTS, len(parents) - 1), np.int32)
        )

    def store(function, machine, tokens, slots, drafts, **stream):
        function(tokens, slots, first_node, DraftState(drafts, None, tree=tree.on(machine, LONGEST)), **stream)

    return Launch(
        arrays,
        call=lambda ops, **arrays: store(draft_rows.store_children, ops, **arrays, stream=ops.stream),
        reference=in_place(lambda **arrays: store(draft_rows.store_children_reference, HOST, **arrays), "drafts"),
        moved=Moved(dict(tokens=4 * stored, drafts=4 * stored)),
        indices=("slots", "first_child", "num_children"),
        exact=True,
    )


@describes
def lookahead(runs=((1, 1), (-1, 1)), window=3, ngram_size=3, guessed=4, added=8):
    """The next window and the n-grams that begin with the newest token; a run of one row has no window."""
    rows, drafted = sum(count for _, count in runs), window * (ngram_size - 1) - 1 + guessed * (ngram_size - 1)

    def pools(pool, added):
        return guesses.LookaheadState(pool, added, window, ngram_size, guessed)

    def arrays(noise):
        state = guesses.LookaheadState.make(np.zeros, SLOTS, window, ngram_size, guessed)
        for slot in range(SLOTS):
            for ngram in random_tokens(noise, added, ngram_size, most=9):
                guesses.add_ngram(state, slot, ngram)
        given = dict(slots=slots_of(runs), newest_tokens=random_tokens(noise, SLOTS), drafts=random_tokens(noise, SLOTS, drafted))
        given |= dict(computed=random_tokens(noise, rows), chosen=random_tokens(noise, rows), counts=noise.unwritten((rows,), np.int32))
        return given | dict(pool=state.pool, added=state.added)

    def moved(slots, newest_tokens, drafts, pool, added, **_):
        state, asked = pools(pool, added), dict(pool=0, drafts=0)
        for slot in slots[slots >= 0]:
            found = len(guesses.find_ngrams(state, slot, newest_tokens[slot])) * (ngram_size - 1)
            asked["pool"] += 4 * (min(int(added[slot]), guesses.POOL) + found)
            asked["drafts"] += 4 * found
        return Moved(dict(asked, counts=4 * rows))

    def reference(slots, newest_tokens, drafts, computed, chosen, counts, pool, added):
        found = guesses.lookahead_reference(slots, newest_tokens, DraftState(drafts, None), computed, chosen, pools(pool, added))
        return dict(counts=found)

    return Launch(
        arrays,
        call=lambda ops, slots, newest_tokens, drafts, computed, chosen, counts, pool, added: guesses.lookahead(
            slots, newest_tokens, DraftState(drafts, None), computed, chosen, pools(pool, added), counts, ops.stream
        ),
        reference=in_place(reference, "drafts", "pool", "added"),
        moved=moved,
        indices=("slots", "newest_tokens", "added"),
        exact=True,
    )


@describes
def prompt_lookup(runs=((1, 2), (-1, 1)), longest=3, shortest=2, width=WIDTH, period=0):
    """Drafts that continue the longest match; period: of the first slot's tokens, seven of them; 0: random ones."""
    rows = sum(count for _, count in runs)

    def arrays(noise):
        state, drafts = make_states(noise.random, width=width)
        if period:
            state.lengths[1], drafts.token_history[1, :7] = 7, np.arange(7) % period
        given = dict(words=state.words, drafts=drafts.drafts, token_history=drafts.token_history, slots=slots_of(runs))
        return given | dict(counts=noise.unwritten((rows,), np.int32))

    compared = sum(1 if distance % period else min(longest, 7 - distance) for distance in range(1, 7)) if period else 0
    asked = dict(token_history=4 * (2 * compared + period), drafts=4 * (DRAFTS + DRAFTS - period), counts=4 * rows)

    def reference(words, drafts, token_history, slots, counts):
        found = lookup.prompt_lookup_reference(slots, of_state(words, width), DraftState(drafts, token_history), longest, shortest)
        return dict(counts=found)

    return Launch(
        arrays,
        call=lambda ops, words, drafts, token_history, slots, counts: lookup.prompt_lookup(
            slots, of_state(words, width), DraftState(drafts, token_history), longest, shortest, counts, ops.stream
        ),
        reference=in_place(reference, "drafts"),
        moved=Moved(asked, dict(token_history=4 * 7)) if period else {},
        indices=("slots", "lengths"),  # read by every thread
        exact=True,
    )


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
        call=calls(of_chains.accept),
        reference=returns(("counts",), of_chains.accept_reference),
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

    def reference(chosen, computed, slots, **_):
        return dict(zip(("tokens", "path", "counts"), of_trees.accept_tree_reference(chosen, computed, slots, np.array(parents))))

    n, accepted, compared = len(parents), 2, 3  # nodes with a right parent: 1, 2 and 4
    asked = dict(chosen=4 * (compared + n + accepted + 1), computed=4 * compared, tokens=4 * (n + accepted + 1), counts=4 * (rows + 1))
    asked["path"] = 4 * (2 * (n - 1) + 1 + n + accepted + 1)  # right or wrong, read once and written once; then the rows, then the path
    different = dict(chosen=4 * rows, tokens=4 * rows, counts=4 * rows, path=4 * (rows + 3))  # three parents are read
    return Launch(
        arrays,
        call=lambda ops, chosen, computed, slots, tokens, path, counts: of_trees.accept_tree(
            chosen, computed, slots, tree.on(ops, LONGEST), tokens, path, counts, ops.stream
        ),
        reference=reference,
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

    return Launch(
        arrays,
        call=lambda ops, slots, step, seed, counts: synthetic.accept_synthetic(
            slots, SimpleNamespace(step=step, seed=seed), rate, counts, ops.stream
        ),
        reference=lambda slots, step, seed, counts: dict(
            counts=synthetic.accept_synthetic_reference(slots, SimpleNamespace(step=step, seed=seed), rate)
        ),
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

    read = rows * vocabulary + drawn * 2 * (vocabulary + kept)  # for the largest logit; for the sum and the result, once more if kept
    return Launch(
        arrays,
        call=lambda ops, logits, thresholds, slots, temperature, out: distributions.distribution(
            logits, thresholds, SimpleNamespace(temperature=temperature), slots, out, ops.stream
        ),
        reference=lambda logits, thresholds, slots, temperature, out: dict(
            out=distributions.distribution_reference(logits, thresholds, SimpleNamespace(temperature=temperature), slots)
        ),
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

    def reference(p, q, chosen, computed, slots, step, seed, tokens, counts):
        found = rejecting.reject_reference(p, q, chosen, computed, slots, SimpleNamespace(step=step, seed=seed))
        return dict(zip(("tokens", "counts"), found))

    moved = 4 * (accepted + rejected * vocabulary)
    # chosen: copied; then asked whether it is a token, by one thread before a draft and by all after a rejected one
    asked_of = accepted + rejected * (1 + rejecting.THREADS)
    of_rows = dict(chosen=4 * (rows - accepted + asked_of), tokens=4 * (rows + rejected), counts=4 * rows)
    asked = of_rows | dict(computed=4 * (accepted + rejected), p=moved + 4 * rejected, q=moved + 4 * rejected)
    return Launch(
        arrays,
        call=lambda ops, p, q, chosen, computed, slots, step, seed, tokens, counts: rejecting.reject(
            p, q, chosen, computed, slots, SimpleNamespace(step=step, seed=seed), tokens, counts, ops.stream
        ),
        reference=reference,
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

    def run(function, log_q, logits, slots, *rest, temperature, step, seed, **stream):
        return function(log_q, logits, SimpleNamespace(temperature=temperature, step=step, seed=seed), slots, *rest, **stream)

    return Launch(
        arrays,
        call=lambda ops, log_q, logits, slots, scores, **sampling: run(
            scoring.perturb, log_q, logits, slots, scores, **sampling, stream=ops.stream
        ),
        reference=lambda log_q, logits, slots, scores, **sampling: dict(
            scores=run(scoring.perturb_reference, log_q, logits, slots, **sampling)
        ),
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
        **both_in_place(advance, advancing.advance_spans, advancing.advance_spans_reference, "words", "output_counts", "token_history"),
        moved=moved,
        indices=("slots",),
        exact=True,
    )


def compiled():
    """Each moves a few bytes per row, except prompt lookup in a long context and rows of requests with penalties."""
    launches = {
        "load_spans": load_spans(), "row_words": row_sampling(), "row_vocabulary": row_sampling(), "run_slots": run_slots(),
        "room_for_drafts": room_for_drafts(), "store_drafts": store_drafts(), "store_children": store_children(),
        "store_log_q": store_drafts(), "accept": accept(), "accept_tree": accept_tree(), "accept_synthetic": accept_synthetic(0.5),
        "advance_spans": advance_spans(), "distribution": distribution(67, 20), "reject": reject(67), "lookahead": lookahead(),
        "reject_tree": reject_tree(67), "perturb": perturb(67), "prompt_lookup": prompt_lookup(),
    }  # fmt: skip
    blocks = dict(row_vocabulary=6, distribution=1, reject=4, reject_tree=4, prompt_lookup=6)  # reject: one block per run
    for name, launch in launches.items():
        yield MachineCode(f"speculation/{name}", launch, blocks.get(name, 8), kernel_name=f"{name}_kernel")


def small():
    """Runs of any lengths, padding, trees; tests/kernels/speculation has distributions, paths and what a mistake looks like."""
    yield from each(load_spans, [(((2, 3), (0, 1)),), (), dict(limited=False)])
    yield from each(row_sampling, [(((2, 3), (1, 1)), 67), dict(runs=((2, 2), (0, 1), (5, 3)), ahead=2, salt=2**31 + 5)])
    yield from each(run_slots, [(((2, 3), (-1, 2), (0, 1)),), (), dict(each_run=3)])
    yield from each(room_for_drafts, [(((2, 3), (-1, 1), (0, 1)),), ()])
    yield from each(store_drafts, [()])
    yield from each(store_children, [()])
    yield from each(lookahead, [(), dict(added=30), dict(added=1100, runs=((2, 6), (0, 14), (5, 1), (3, 5)))])
    yield from each(prompt_lookup, [dict(period=2), dict(runs=RUNS, width=80), dict(runs=RUNS, width=80, longest=5, shortest=5)])
    yield from each(accept, [(((2, 4), (-1, 1), (0, 2)),), ()])
    yield from each(accept_tree, [(), (tuple(range(-1, 9)), ((2, 3), (0, 10), (-1, 2)), False)])
    yield from each(accept_synthetic, [(1.0, ((1, 4), (-1, 1), (0, 2))), (0.0,), (0.5,)])
    yield from each(distribution, [(67, 20), (4100, 4100)])
    yield from each(reject, [(67,), (1003,)])
    yield from each(reject_tree, [(67,)])
    yield from each(perturb, [(67,), (1003,)])
    yield from each(advance_spans, [(((1, 3), (-1, 1), (2, 2)),), ()])
