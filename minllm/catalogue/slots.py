"""The launches of the kernels that read and write the slots' state: R rows, S slots with block tables of W columns."""

import numpy as np

from minllm.catalogue.launch import (
    MICROSECONDS,
    ONE_SET,
    Launch,
    MachineCode,
    Measured,
    Moved,
    beside,
    both,
    calls,
    describes,
    each,
    for_tuning,
    in_place,
)
from minllm.kernels.slots.advance import advance as launch_advance
from minllm.kernels.slots.advance import advance_reference
from minllm.kernels.slots.load_rows import load_rows as launch_load_rows
from minllm.kernels.slots.load_rows import load_rows_reference
from minllm.kernels.slots.local_blocks import local_blocks as launch_local_blocks
from minllm.kernels.slots.state import SlotState
from minllm.kernels.slots.write_slots import write_slots as launch_write_slots
from minllm.kernels.slots.write_slots import write_slots_reference

BATCH = ("token_ids", "positions", "slot_mapping", "context_lens", "block_tables")


def make_state(random, num_slots, width, block_size, vocabulary=50):
    """Slots of sequences of any length that fits their block tables; every third slot has penalties."""
    state = SlotState.make(np.zeros, num_slots, width)
    state.words[:] = random.integers(0, 1000, state.words.shape)
    state.newest_tokens[:] = random.integers(0, vocabulary, num_slots)
    state.lengths[:] = random.integers(1, width * block_size + 1, num_slots)
    state.block_tables[:] = random.permutation(num_slots * width).reshape(num_slots, width)
    state.sampling = state.sampling.with_vocabulary_arrays(np.zeros, vocabulary)
    state.sampling.output_counts[:] = random.integers(0, 3, (num_slots, vocabulary))
    state.sampling.adjustments[:] = np.arange(num_slots) % 3 == 1
    return state


def state_of(words, num_slots, width, **vocabulary_arrays):
    """The SlotState in these words, of the host or of a device, with some of the sampler's arrays over the vocabulary."""
    state = SlotState.make(lambda shape, dtype: words, num_slots, width)
    for name, array in vocabulary_arrays.items():
        setattr(state.sampling, name, array)
    return state


def slots_of_rows(random, rows, num_slots):
    """A different slot for each row, and -1 for every fourth one."""
    slots = random.permutation(num_slots)[:rows].astype(np.int32)
    slots[3::4] = -1
    return slots


@describes
def write_slots(pairs, num_slots=9, width=40, skipped=3):
    """Words at random places; every `skipped`th pair has no place."""
    used = pairs - len(range(1, pairs, skipped))

    def arrays(noise):
        state = make_state(noise.random, num_slots, width, 1)
        places = noise.random.permutation(len(state.words))[:pairs]
        places[1::skipped] = -1
        return dict(state=state.words, pairs=np.stack([places, noise.random.integers(-9, 9, pairs)], axis=1).astype(np.int32))

    return Launch(
        arrays,
        call=calls(launch_write_slots),
        reference=in_place(write_slots_reference, "state"),
        moved=Moved(dict(state=4 * used, pairs=4 * (pairs + used))),
        exact=True,
    )


@describes
def load_rows(rows, num_slots=80, width=9, block_size=16, columns=None):
    """Contexts of all lengths up to width * block_size tokens."""
    tables = width if columns is None else columns

    def arrays(noise):
        state = make_state(noise.random, num_slots, width, block_size)
        state.lengths[:] = np.minimum(state.lengths, tables * block_size)
        empty = {name: noise.unwritten((rows, tables)[: 1 + (name == "block_tables")], np.int32) for name in BATCH}
        return dict(words=state.words, slots=slots_of_rows(noise.random, rows, num_slots), **empty)

    def load(function, a, **stream):
        function(a.slots, state_of(a.words, num_slots, width), a, block_size, **stream)

    def moved(words, slots, **batch):
        contexts = state_of(words, num_slots, width).lengths[slots[slots >= 0]]
        blocks = int((-(-contexts // block_size)).sum())
        return Moved(dict(newest_tokens=4 * len(contexts), **dict.fromkeys(BATCH[:4], 4 * rows), block_tables=4 * blocks))

    return Launch(
        arrays,
        **both(load, launch_load_rows, load_rows_reference, *BATCH),
        moved=moved,
        indices=("slots", "lengths", "tables_of_slots"),  # read by every thread, or twice
        exact=True,
    )


@describes
def advance(rows, num_slots=140, vocabulary=50, penalties=True):
    """One more token for every row, with penalties in every third slot, or without room for them."""

    def arrays(noise):
        state = make_state(noise.random, num_slots, 2, 16, vocabulary)
        given = dict(words=state.words, tokens=noise.random.integers(0, vocabulary, rows).astype(np.int32))
        if not penalties:
            state.sampling.adjustments[:] = 0
        return given | dict(slots=slots_of_rows(noise.random, rows, num_slots), counts=state.sampling.output_counts if penalties else None)

    def run(function, a, **stream):
        function(a.tokens, a.slots, state_of(a.words, num_slots, 2, output_counts=a.counts), **stream)

    def moved(words, slots, **_):
        used = slots[slots >= 0]
        counted = int((used % 3 == 1).sum()) if penalties else 0
        asked = dict.fromkeys(("tokens", "newest_tokens", "adjustments"), 4 * len(used)) | dict.fromkeys(("lengths", "step"), 8 * len(used))
        return Moved(asked | dict(slots=4 * rows) | (dict(output_counts=8 * counted) if counted else {}))

    return Launch(
        arrays,
        **both(run, launch_advance, advance_reference, *(("words", "counts") if penalties else ("words",))),
        moved=moved,
        exact=True,
    )


@describes
def local_blocks(tokens, sequences, columns, block_size=16):
    """Contexts of all lengths; every fifth token is padding, and every third block has no local one."""

    def arrays(noise):
        count = sequences * columns
        local_of = noise.random.permutation(count).astype(np.int32) + 1
        local_of[::3] = 0
        slots = noise.random.integers(0, count * block_size, tokens).astype(np.int32)
        slots[4::5] = -1
        return dict(
            slot_mapping=slots, context_lens=noise.random.integers(0, columns * block_size + 1, sequences).astype(np.int32),
            block_tables=noise.random.permutation(count).astype(np.int32).reshape(sequences, columns), local_of=local_of,
            slots=noise.unwritten((tokens,), np.int32), tables=noise.unwritten((sequences, columns), np.int32),
        )  # fmt: skip

    def moved(context_lens, **_):
        entries, used = 4 * sequences * columns, 4 * int((-(-context_lens // block_size)).sum())
        return Moved(dict(slot_mapping=4 * tokens, slots=4 * tokens, tables=entries, block_tables=used))

    return Launch(
        arrays,
        **beside(launch_local_blocks, "slots", "tables", block_size=block_size),
        moved=moved,
        indices=("local_of", "context_lens"),
        exact=True,
    )


def compiled():
    """Each moves a few bytes per row, and takes as long as an empty launch."""
    yield MachineCode("slots/write_slots", write_slots(1), blocks=8)
    yield MachineCode("slots/load_rows", load_rows(1), blocks=8)
    yield MachineCode("slots/advance", advance(1), blocks=8)
    yield MachineCode("slots/local_blocks", local_blocks(1, 1, 1), blocks=8)


def small():
    """Less than a block of threads and more; tables with fewer columns than the slots'."""
    yield from each(write_slots, [(3,), (127,), (300,)])
    yield from each(load_rows, [dict(rows=9, width=3, num_slots=11), dict(rows=1, width=1, block_size=1, num_slots=11)])
    yield from each(load_rows, [dict(rows=70), dict(rows=9, width=140, block_size=1, num_slots=11), dict(rows=5, columns=4)])
    yield from each(local_blocks, [(3, 3, 5), (1, 1, 1), (130, 2, 70), dict(tokens=7, sequences=9, columns=33, block_size=1)])
    yield from each(advance, [(5,), (1,), (129,), dict(rows=6, penalties=False)])


def measured():
    """64 rows, contexts up to 8192 tokens. Each of the thousands of launches of `advance` makes the sequences one token longer."""
    size = dict(unit=MICROSECONDS, benchmark="sampling", work=0, set_bytes=ONE_SET)
    others = (("write_slots", write_slots(64, num_slots=64, width=512, skipped=64)), ("load_rows", load_rows(64, num_slots=64, width=512)))
    yield from for_tuning(Measured(launch, name, "64 rows", **size) for name, launch in others)
    yield Measured(advance(64, num_slots=64, penalties=False), "advance", "64 rows", **size)
