"""Ladders for the decode step that a graph replays: advancing slots by one token, and choosing the graph's size."""

import numpy as np

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.running.step_graphs import decode_sizes, token_sizes
from minllm.kernels.sampling.flags import Adjustment
from minllm.kernels.slots.state import SlotState


def added(before, where):
    """A copy with 1 added at each of these indices."""
    after = before.copy()
    np.add.at(after, where, 1)
    return after


def stored(before, where, values):
    """A copy with these values at these indices."""
    after = before.copy()
    after[where] = values
    return after


def advanced(advance, slots, num_slots=None, penalties=()):
    """Advance the slots of a batch's rows by one token, and compare; penalties: the slots with penalties."""
    slots, vocabulary = np.array(slots, np.int32), 40
    num_slots = len(slots) if num_slots is None else num_slots
    state = SlotState.make(np.zeros, num_slots, 1)
    state.newest_tokens[:], state.lengths[:], state.sampling.step[:] = 7, 3 + np.arange(num_slots), np.arange(num_slots)
    state.sampling = state.sampling.with_vocabulary_arrays(np.zeros, vocabulary)
    counts = state.sampling.output_counts
    counts[:, 10:12] = 2
    state.sampling.adjustments[list(penalties)] = Adjustment.PENALTIES
    lengths, steps_before, counts_before = state.lengths.copy(), state.sampling.step.copy(), counts.copy()
    tokens = 10 + np.arange(len(slots), dtype=np.int32) % 30
    advance(tokens, slots, state)

    used, at = slots[slots >= 0], np.flatnonzero(slots >= 0)  # slots in use, and the rows that use them
    rows = at[at < num_slots]  # rows that a mistake may use as slots
    old = np.full(num_slots, 7, np.int32)
    expect("newest_tokens", state.newest_tokens, stored(old, used, tokens[at]), ("slot",), [
        ("the new token was not stored.", old),
        ("the token was stored at its row; it belongs to the row's slot.", stored(old, rows, tokens[rows])),
    ])  # fmt: skip
    expect("lengths", state.lengths, added(lengths, used), ("slot",), [
        ("the length did not grow by one.", lengths),
        ("every slot has its own length: lengths[slot].", added(lengths, rows)),
        ("the length grows by one from what it was.", stored(lengths, used, 1)),
    ])  # fmt: skip
    expect("step", state.sampling.step, added(steps_before, used), ("slot",), [
        ("the random numbers' counter did not move on.", steps_before),
        ("every slot has its own counter: step[slot].", added(steps_before, rows)),
    ])  # fmt: skip
    counted = np.isin(slots, penalties)
    right = added(counts_before, (slots[counted], tokens[counted]))
    expect("output_counts", counts, right, ("slot", "token"), [
        ("the new token was not counted.", counts_before),
        ("the count was set to 1: add 1 to what is there.", stored(counts_before, (slots[counted], tokens[counted]), 1)),
        ("a slot without penalties was counted, too: only those whose adjustments have the bit PENALTIES are.",
         added(counts_before, (used, tokens[at]))),
    ])  # fmt: skip


def smallest(next_size, count, sizes):
    """Raise Mismatch unless next_size(count, sizes) is the smallest of `sizes` that is at least `count`, or None."""
    found = next_size(count, sizes)
    note("next_size", found)
    wanted = min((size for size in sizes if size >= count), default=None)
    if found == wanted:
        return
    if wanted is None:
        cause = "no size is large enough, so there is no graph: return None, and the step is launched kernel by kernel."
    elif found is None:
        cause = f"{wanted} is large enough, and was passed over or not returned."
    elif found not in sizes:
        cause = f"{found} is not one of the sizes: there is no graph for it."
    elif found < count:
        cause = f"a graph of {found} rows has no room for {count}."
    else:
        cause = f"{wanted} is large enough, too, and every row beyond {count} is padding: return the first size that is at least `count`."
    raise Mismatch(f"next_size({count}, {short(sizes)}) is {found}; expected {wanted}\nLikely cause: {cause}")


def short(sizes) -> str:
    """Sizes on one line."""
    text = str(sizes)
    return text if len(text) <= 60 else f"{text[:57]}..."


def for_all_counts(next_size, sizes):
    """`smallest` for every number of rows up to one more than the largest size."""
    for count in range(1, sizes[-1] + 2):
        smallest(next_size, count, sizes)


EXERCISES = (
    Exercise(
        name="sampling.advance",
        lesson=15,
        title="the kernel that lets a step be replayed: the next step's inputs, made on the GPU",
        module="minllm.kernels.slots.advance",
        entry="advance",
        task="For a row of the batch whose slot is not -1: store the token as the slot's newest one, add 1 to the slot's length and "
        "step, and, if the slot's adjustments have the bit PENALTIES, to the token's entry in output_counts.",
        hints=("Rows change from step to step, slots do not: slots[row] says where the row's sequence keeps its state.",
               "output_counts has a row for each slot: output_counts[slot, token]."),
        rungs=(
            Rung("one row", "token, length and step move together.", lambda f: advanced(f, [0])),
            Rung("rows in any slot", "a row's number says nothing about its slot.", lambda f: advanced(f, [4, 0, 2], 6)),
            Rung("a padding row", "slot -1 changes nothing.", lambda f: advanced(f, [1, -1, 0], 4)),
            Rung("more rows than threads", "the last block is not full.", lambda f: advanced(f, range(139, -1, -1))),
            Rung("counts for penalties", "the new token is counted, in slots that have penalties.",
                 lambda f: advanced(f, [2, 1, 0], penalties=[1, 2])),
        ),
    ),
    Exercise(
        name="engine.next_size",
        lesson=15,
        title="which CUDA graph a step is padded for",
        module="minllm.engine.running.step_graphs",
        entry="next_size",
        task="Return the smallest of the sizes, which ascend, that is at least `count`, or None if none is.",
        hints=("A graph of 8 rows serves 8 sequences or fewer: the other rows are padding.",
               "The sizes ascend, so the first one that is large enough is the smallest."),
        rungs=(
            Rung("a size of its own", "4 sequences fit a graph of 4 rows.", lambda f: smallest(f, 4, [1, 2, 4, 8])),
            Rung("between two sizes", "the step is padded up, never cut.", lambda f: smallest(f, 5, [1, 2, 4, 8, 16])),
            Rung("more than the largest", "such a step is launched kernel by kernel.", lambda f: smallest(f, 9, [1, 2, 4, 8])),
            Rung("one sequence", "the smallest size counts, too.", lambda f: smallest(f, 1, [1, 2, 4, 8])),
            Rung("all numbers of sequences", "the engine's own sizes.", lambda f: for_all_counts(f, decode_sizes(44))),
            Rung("all numbers of tokens", "and those of steps with prompts.", lambda f: for_all_counts(f, token_sizes(700))),
        ),
    ),
)  # fmt: skip
