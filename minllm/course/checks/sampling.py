"""Ladders of choosing the next token, and of the step that a graph replays."""

import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling.argmax import parts_of
from minllm.kernels.sampling.tensors import build_sampling_tensors
from minllm.sim import unwritten


def greedy(argmax, logits):
    """The lowest id among the largest logits of each row."""
    logits = np.asarray(logits, np.float32)
    out = unwritten((len(logits),), np.int32)
    parts = (len(logits), parts_of(logits.shape[1]))
    argmax(logits, out, unwritten(parts, np.float32), unwritten(parts, np.int32))
    usable = np.where(np.isnan(logits), -np.inf, logits)
    last = logits.shape[1] - 1 - np.argmax(usable[:, ::-1], axis=1)
    suspects = [("among equal logits the highest id was taken; the lowest one wins.", last), ("this is the "
                                                                                              "smallest.", np.argmin(usable, axis=1))]
    expect("out", out, np.argmax(usable, axis=1), ("row",), suspects)


def places(argmax):
    """The largest logit at the first, the last, and other threads' and warps' places."""
    for vocabulary, place in ((5, 4), (130, 129), (1000, 997), (1000, 31), (4100, 4099)):
        logits = np.zeros((1, vocabulary), np.float32)
        logits[0, place] = 1
        greedy(argmax, logits)


def ties(argmax):
    """Equal logits in different lanes and warps."""
    for pair in ((1, 2), (4, 9), (3, 700), (130, 4097)):
        logits = np.zeros((1, 4100), np.float32)
        logits[0, list(pair)] = 1
        greedy(argmax, logits)


def penalised(penalize, logits, prompts, outputs, **penalties):
    """Logits after penalties, by the definition."""
    logits = np.asarray(logits, np.float32)
    vocabulary, rows = logits.shape[1], len(logits)
    sampling = build_sampling_tensors([SamplingParams(**penalties)] * rows, vocabulary, prompts, outputs)
    out = unwritten(logits.shape, np.float32)
    penalize(logits, sampling, out)

    def by_definition(divide_all=False, of_prompt=True, counted=True, presence_of_prompt=False):
        expected = logits.astype(np.float64)
        for row in range(rows):
            for v in range(vocabulary):
                count, in_prompt = list(outputs[row]).count(v), v in prompts[row]
                factor = penalties.get("repetition_penalty", 1)
                if count or (in_prompt and of_prompt):
                    expected[row, v] = expected[row, v] / factor if expected[row, v] > 0 or divide_all else expected[row, v] * factor
                expected[row, v] -= penalties.get("frequency_penalty", 0) * (count if counted else count > 0)
                expected[row, v] -= penalties.get("presence_penalty", 0) * (count > 0 or (in_prompt and presence_of_prompt))
        return expected

    suspects = [
        ("a negative logit was divided, which makes the token likelier: multiply it.", by_definition(divide_all=True)),
        ("tokens of the prompt are repetitions too.", by_definition(of_prompt=False)),
        ("the frequency penalty counts every time that the token was generated.", by_definition(counted=False)),
        ("the presence penalty is for generated tokens, not for the prompt's.", by_definition(presence_of_prompt=True)),
    ]
    expect("out", out, by_definition(), ("row", "token"), suspects)


def advanced(advance, positions, limits, block_size=4, counts=False):
    """A decode batch moved on by a token; block tables with pages in no order."""
    rows = len(positions)
    tables = np.random.default_rng(0).permutation(rows * 8).reshape(rows, 8).astype(np.int32)
    tokens = np.arange(10, 10 + rows, dtype=np.int32)
    parameters = SamplingParams(frequency_penalty=0.5) if counts else SamplingParams()
    sampling = build_sampling_tensors([parameters] * rows, 40, [[]] * rows)
    arrays = {
        "token_ids": np.full(rows, 7, np.int32),
        "positions": np.int32(positions),
        "slot_mapping": np.full(rows, 3, np.int32),
        "context_lens": np.int32(positions) + np.int32(1),
    }
    advance(tokens, *arrays.values(), tables, np.int32(limits), sampling, block_size)
    following = np.int32(positions) + 1
    active = following < np.int32(limits)
    slots = tables[np.arange(rows), np.minimum(following // block_size, 7)] * block_size + following % block_size
    old_slots = tables[np.arange(rows), np.int32(positions) // block_size] * block_size + np.int32(positions) % block_size
    on = lambda now, off: np.where(active, now, off)  # noqa: E731
    expected = {
        "token_ids": (on(tokens, 7), []),
        "positions": (on(following, positions), [("the position did not move on.", np.int32(positions))]),
        "slot_mapping": (on(slots, -1), [
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
    expect("step", sampling.step, np.ones(rows, np.int32), ("row",), [("the random numbers' counter did not move "
                                                                       "on.", np.zeros(rows, np.int32))])
    if counts:
        once = np.zeros((rows, 40), np.int32)
        once[np.arange(rows), tokens] = 1
        expect("output_counts", sampling.output_counts, once, ("row", "token"))


def steps(rows=2, pages=4, shift=0, temperature=0.0, penalty=0.0):
    """A decode batch and its sampling tensors: shapes by `rows`, values by `shift`."""
    from minllm.engine.batch_arrays import decode_batch

    tables = np.arange(rows * pages, dtype=np.int32).reshape(rows, pages)
    batch = decode_batch(np.full(rows, 5 + shift, np.int32), np.full(rows, 2 + shift, np.int32), tables, 4)
    parameters = [SamplingParams(temperature=temperature, frequency_penalty=penalty, seed=shift)] * rows
    return batch, build_sampling_tensors(parameters, 20, [[1]] * rows)


def same_graph(graph_key, other, wanted, cause, reads=(False, False)):
    """Whether `steps()` and `steps(**other)` may be replayed from one graph; cause: what is wrong with a key that says otherwise."""
    first, second = graph_key(*steps(), reads[0]), graph_key(*steps(**other), reads[1])
    if (first == second) == wanted:
        return
    said = "differ, though one graph serves both steps" if wanted else "are equal, though the steps need a graph each"
    raise Mismatch(f"the keys {said}: {short(first)} and {short(second)}\nLikely cause: {cause}")


def short(key) -> str:
    """A key in a line."""
    text = repr(key)
    return text if len(text) <= 120 else f"{text[:117]}..."


EXERCISES = (
    Exercise(
        name="sampling.argmax",
        lesson=12,
        title="the largest of a warp's values, by shuffles",
        module="minllm.kernels.sampling.argmax",
        entry="argmax",
        task="For offsets 16, 8, 4, 2 and 1: get the value and the token of the lane that far away (shfl_xor_sync), and keep them "
        "where that "
        "value is larger, or equal with a lower token. Return (value, token), the same in every lane.",
        hints=(
            "cuda.shfl_xor_sync(FULL_WARP, value, offset) gives the value of lane ^ offset; all 32 lanes call it together.",
            "Shuffle both before you overwrite either.",
        ),
        rungs=(
            Rung("one row by hand", "the largest of three.", lambda argmax: greedy(argmax, [[1, 3, 2]])),
            Rung("every place", "the largest may be in any lane, warp and block.", places),
            Rung("equal logits", "the lowest id wins, so that the result does not depend on the machine.", ties),
            Rung("several rows", "each row has its own winner.", lambda argmax: greedy(argmax, np.random.default_rng(0).random((3, 77)))),
            Rung("minus infinity and NaN", "-inf is allowed, NaN is never chosen.", lambda argmax: greedy(argmax, [[-np.inf, np.nan, -3]])),
            speed.rung("minllm.kernels.sampling.argmax:argmax", speed_problems.argmax, "more than five rounds of two shuffles."),
        ),
    ),
    Exercise(
        name="sampling.penalties",
        lesson=12,
        title="repetition, frequency and presence penalties, a thread a token",
        module="minllm.kernels.sampling.penalties",
        entry="penalize",
        task="For a token inside the vocabulary: a token that was generated (count > 0) or is in the prompt has its logit divided by the "
        "repetition penalty if it is positive, else multiplied. Then subtract frequency_penalty * count, and presence_penalty "
        "where count > 0. Store it.",
        hints=("The grid is rounded up to 256 threads: token < logits.shape[1].", "Penalties are one number a row."),
        rungs=(
            Rung("nobody repeats", "without history, logits pass.",
                 lambda f: penalised(f, [[1, -2, 3]], [[]], [[]], repetition_penalty=2.0)),
            Rung("a positive logit", "divided: less likely.", lambda f: penalised(f, [[4, 3, 2]], [[]], [[0]], repetition_penalty=2.0)),
            Rung("a negative logit", "multiplied: dividing would make it likelier.",
                 lambda f: penalised(f, [[-4, 3]], [[]], [[0]], repetition_penalty=2.0)),
            Rung("the prompt counts", "repetition looks at the prompt too.",
                 lambda f: penalised(f, [[4, 3, 2]], [[1]], [[]], repetition_penalty=2.0)),
            Rung("frequency", "every time counts.", lambda f: penalised(f, [[4, 3, 2]], [[1]], [[0, 0, 2]], frequency_penalty=0.5)),
            Rung("presence", "once or often is the same, and the prompt does not count.",
                 lambda f: penalised(f, [[4, 3, 2]], [[1]], [[0, 0, 2]], presence_penalty=0.5)),
            Rung("several rows, a vocabulary beyond a block", "each row has its own history.",
                 lambda f: penalised(f, np.random.default_rng(0).standard_normal((2, 300)), [[1, 299], [2]], [[299, 5], [256]],
                                     repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)),
        ),
    ),
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
