"""Ladders of the decode step that a graph replays: advancing a batch by one token, and deciding which steps one graph serves."""

import numpy as np

from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling.parameters import build_sampling_tensors

AT_LIMIT = "a row whose next position is its limit has no room for it: it goes on only where position < limit."


def advanced(advance, positions, limits, block_size=4, counts=False):
    """Advance a decode batch by one token; block tables have pages in random order."""
    rows = len(positions)
    tables = np.random.default_rng(0).permutation(rows * 8).reshape(rows, 8).astype(np.int32)
    tokens = np.arange(10, 10 + rows, dtype=np.int32)
    parameters = SamplingParams(frequency_penalty=0.5) if counts else SamplingParams()
    sampling = build_sampling_tensors([parameters] * rows, 40, [[]] * rows, [[10, 11]] * rows)
    arrays = {
        "token_ids": np.full(rows, 7, np.int32),
        "positions": np.int32(positions),
        "slot_mapping": np.full(rows, 3, np.int32),
        "context_lens": np.int32(positions) + np.int32(1),
    }
    steps_before = sampling.step.copy()
    advance(tokens, *arrays.values(), tables, np.int32(limits), sampling, block_size)
    following = np.int32(positions) + 1
    active = following < np.int32(limits)
    slots = tables[np.arange(rows), np.minimum(following // block_size, 7)] * block_size + following % block_size
    pages = tables[np.arange(rows), np.minimum(following // block_size, 7)]
    old_slots = tables[np.arange(rows), np.int32(positions) // block_size] * block_size + np.int32(positions) % block_size
    on = lambda now, off: np.where(active, now, off)  # noqa: E731
    expected = {
        "token_ids": (on(tokens, 7), [
            ("the new token was not stored.", np.full(rows, 7)),
            (AT_LIMIT, tokens),
        ]),
        "positions": (on(following, positions), [("the position did not move on.", np.int32(positions))]),
        "slot_mapping": (on(slots, -1), [
            ("block_tables gives a block's number; its first slot is that number * block_size.", on(pages + following % block_size, -1)),
            ("this is the block's number; its slots begin at number * block_size, and the offset comes on top.", on(pages, -1)),
            ("the offset within the block is missing: + position % block_size.", on(pages * block_size, -1)),
            ("this is the slot of the old position: the new token's key would overwrite the last one's.", on(old_slots, -1)),
            ("the position itself was taken as the slot; pages lie anywhere: block_tables says where.", on(following, -1)),
            ("a row at its limit must get slot -1, or it writes into somebody's page.", slots),
            ("the slot of a row at its limit was left as it was: write -1.", on(slots, 3)),
        ]),
        "context_lens": (on(following + 1, 0), [
            ("one too few: a context of position p has p + 1 keys, the new token's included.", on(following, 0)),
            ("a row at its limit must see nothing: context length 0.", following + 1),
            ("the context length of a row at its limit was left as it was: write 0.", on(following + 1, following)),
        ]),
    }  # fmt: skip
    for name, (right, suspects) in expected.items():
        expect(name, arrays[name], np.asarray(right), ("row",), suspects)
    counters = [
        ("the random numbers' counter did not move on.", steps_before),
        ("every row has its own counter: step[row].", steps_before + np.int32([rows] + [0] * (rows - 1))),
    ]
    expect("step", sampling.step, steps_before + 1, ("row",), counters)
    if counts:
        before = np.zeros((rows, 40), np.int32)
        before[:, 10:12] = 1
        once = before.copy()
        once[np.arange(rows), tokens] += 1
        told = [("the new token was not counted.", before), ("the count was set to 1: add 1 to what is there.", np.minimum(once, 1))]
        expect("output_counts", sampling.output_counts, once, ("row", "token"), told)


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
        module="minllm.kernels.sampling.advance",
        entry="advance",
        task="For a row of the batch: count the step (and the token in output_counts if counts_tokens). If position + 1 is below "
        "the row's limit, store "
        "the token, the new position, its slot (from block_tables) and its context length; else slot -1 and context length 0.",
        hints=("The token at position p sees p + 1 keys.", "Position p lies in page p // block_size at offset p % block_size."),
        rungs=(
            Rung("one row", "token, position, slot and length move together.", lambda f: advanced(f, [0], [9])),
            Rung("onto the next page", "the slot follows the block table.", lambda f: advanced(f, [3], [20])),
            Rung("several rows", "each has its own position and pages.", lambda f: advanced(f, [5, 0, 11], [30, 30, 30])),
            Rung("a row at its limit", "it is switched off: no slot, no context.", lambda f: advanced(f, [5, 6], [6, 20])),
            Rung("more rows than threads", "the last block is not full.", lambda f: advanced(f, list(range(20)) * 7, [31] * 140)),
            Rung("counts for penalties", "the new token is counted.", lambda f: advanced(f, [1, 2], [9, 9], counts=True)),
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
