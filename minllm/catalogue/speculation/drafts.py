"""The launches that make drafts and the rows that verify them: R rows in runs, (slot, rows). The first holds the newest token."""

import numpy as np

from minllm.catalogue.launch import Launch, Moved, beside, both, describes, in_place
from minllm.catalogue.speculation.states import (
    BLOCK_SIZE,
    DRAFTS,
    HOST,
    LONGEST,
    RUNS,
    SLOTS,
    VOCABULARY,
    WIDTH,
    make_states,
    of_state,
    random_tokens,
    slots_of,
)
from minllm.kernels.sampling import SamplingKind
from minllm.kernels.sampling.tensors import VOCABULARY_FIELDS
from minllm.kernels.speculation import draft_rows
from minllm.kernels.speculation import load_spans as loading
from minllm.kernels.speculation import lookahead as guesses
from minllm.kernels.speculation import prompt_lookup as lookup
from minllm.kernels.speculation import row_sampling as sampling_of_rows
from minllm.kernels.speculation.state import DraftState
from minllm.kernels.speculation.token_tree import TokenTree


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
        **both(load, loading.load_spans, loading.load_spans_reference, *written),
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
        **beside(draft_rows.run_slots, "out", count=found // each_run, each=each_run),
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
        **beside(draft_rows.room_for_drafts, "counts", num_drafts=DRAFTS),
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
        **both(store, draft_rows.store_drafts, draft_rows.store_drafts_reference, "drafts", "log_q_of_slots"),
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

    def run(function, a, *out, **stream):
        state = pools(a.pool, a.added)
        return function(a.slots, a.newest_tokens, DraftState(a.drafts, None), a.computed, a.chosen, state, *out, **stream)

    return Launch(
        arrays,
        **both(run, guesses.lookahead, guesses.lookahead_reference, "drafts", "pool", "added", out=("counts",)),
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

    def run(function, a, *out, **stream):
        return function(a.slots, of_state(a.words, width), DraftState(a.drafts, a.token_history), longest, shortest, *out, **stream)

    return Launch(
        arrays,
        **both(run, lookup.prompt_lookup, lookup.prompt_lookup_reference, "drafts", out=("counts",)),
        moved=Moved(asked, dict(token_history=4 * 7)) if period else {},
        indices=("slots", "lengths"),  # read by every thread
        exact=True,
    )
