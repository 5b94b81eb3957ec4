"""Ladders of the decode step that a graph replays: advancing a batch by one token, and deciding which steps one graph serves."""

import numpy as np

from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.kernels.sampling.tensors import Adjustment
from minllm.kernels.slots.state import SlotState


def added(before, where):
    """A copy in which 1 is added at each of these indices."""
    after = before.copy()
    np.add.at(after, where, 1)
    return after


def stored(before, where, values):
    """A copy with these values at these indices."""
    after = before.copy()
    after[where] = values
    return after


def advanced(advance, slots, num_slots=None, penalties=()):
    """Advance the slots of a batch's rows by one token; penalties: the slots that have some."""
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

    used, at = slots[slots >= 0], np.flatnonzero(slots >= 0)  # slots of rows, and their rows
    rows = at[at < num_slots]  # those that a mistake may take for slots
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


def steps(rows=2, pages=4, shift=0, temperature=0.0, penalty=0.0):
    """A decode batch and its sampling tensors: shapes by `rows`, values by `shift`."""
    from minllm.engine.running.batch_arrays import decode_batch

    tables = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    batch = decode_batch(np.full(rows, 5 + shift, np.int32), np.full(rows, 2 + shift, np.int32), tables, 4)
    parameters = [SamplingParams(temperature=temperature, frequency_penalty=penalty, seed=shift)] * rows
    return batch, build_sampling_tensors(parameters, 20, [[1]] * rows)


def same_graph(graph_key, other, wanted, cause, reads=(False, False)):
    """Whether `steps()` and `steps(**other)` may be replayed from one graph; cause: the mistake of a key that says otherwise."""
    first, second = graph_key(*steps(), reads[0]), graph_key(*steps(**other), reads[1])
    for key in (first, second):
        try:
            hash(key)
        except TypeError as error:
            raise Mismatch(f"the key cannot be looked up: {error}\nLikely cause: a dict's key is made of tuples, not of lists.") from None
    if (first == second) == wanted:
        return
    said = "differ, though one graph serves both steps" if wanted else "are equal, though the steps need a graph each"
    raise Mismatch(f"the keys {said}: {short(first)} and {short(second)}\nLikely cause: {cause}")


def short(key) -> str:
    """A key on one line."""
    text = repr(key)
    return text if len(text) <= 120 else f"{text[:117]}..."


EXERCISES = (
    Exercise(
        name="sampling.advance",
        lesson=13,
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
        name="engine.graph_key",
        lesson=13,
        title="which decode steps one CUDA graph can serve",
        module="minllm.engine.decode_graph",
        entry="graph_key",
        task="Return a tuple that is equal for two steps exactly if a graph captured from one can be replayed for the other: the "
        "shapes of the batch's "
        "arrays (BATCH_ARRAYS) and of the sampler's by name, whether all rows are greedy, and whether logits are read.",
        hints=("A graph holds launches with fixed grids and addresses; the numbers in the arrays may change.", "sampling.arrays() "
                                                                                                               "gives arrays by name."),
        rungs=(
            Rung("other values", "tokens and positions change with every step.", lambda f: same_graph(f, dict(shift=1), True,
                 "a number out of an array is part of the key: take shapes only, values may change.")),
            Rung("another batch size", "grids are made from shapes.", lambda f: same_graph(f, dict(rows=3), False,
                 "no shape that has the batch's rows is in the key.")),
            Rung("longer block tables", "the batch's arrays count, too.", lambda f: same_graph(f, dict(pages=8), False,
                 "the shapes of the batch's arrays are missing: getattr(batch, name).shape for each of BATCH_ARRAYS.")),
            Rung("greedy and drawn", "drawing launches other kernels.", lambda f: same_graph(f, dict(temperature=1.0), False,
                 "sampling.all_greedy is missing.")),
            Rung("penalties", "penalties bring arrays, and a kernel of their own.", lambda f: same_graph(f, dict(penalty=0.5), False,
                 "the names of the sampler's arrays are missing: sampling.arrays() has more of them where there are penalties.")),
            Rung("logits that are read", "reading logits back is a part of the step.", lambda f: same_graph(f, {}, False,
                 "reads_logits is missing.", (False, True))),
        ),
    ),
)  # fmt: skip
