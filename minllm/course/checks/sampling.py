"""Ladders for choosing the next token: the largest logit, and penalties."""

import numpy as np

from minllm.course.checks import speed, speed_problems
from minllm.course.checks.mismatch import expect
from minllm.course.exercise import Exercise, Rung
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.kernels.sampling.argmax import NOTHING_ALLOWED, parts_of
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.sim import unwritten


def greedy(argmax, logits):
    """Check for the lowest id among the largest logits of each row."""
    logits = np.asarray(logits, np.float32)
    out = unwritten((len(logits),), np.int32)
    parts = (len(logits), parts_of(logits.shape[1]))
    argmax(logits, np.arange(len(logits), dtype=np.int32), out, unwritten(parts, np.float32), unwritten(parts, np.int32))
    largest, last = np.argmax(logits, axis=1), logits.shape[1] - 1 - np.argmax(logits[:, ::-1], axis=1)
    suspects = [
        ("among equal logits the highest id was taken; the lowest one wins.", last),
        (
            "this is the smallest: keep the other lane's where it is larger. -1 is no token: idle lanes hold -inf.",
            np.full(len(logits), NOTHING_ALLOWED),
        ),
    ]
    for row in np.flatnonzero(out != largest)[:1]:
        if 0 <= out[row] < logits.shape[1] and logits[row, out[row]] < logits[row, largest[row]]:
            found, most = logits[row, out[row]], logits[row, largest[row]]
            lost = "the lane that holds the largest was not asked (offsets 16, 8, 4, 2, 1), or its value came without its token."
            suspects.append((f"{lost} Token {out[row]} has the logit {found:.4g}, token {largest[row]} has {most:.4g}.", out))
    expect("out", out, largest, ("row",), suspects)


def places(argmax):
    """Check rows with the largest logit first, last, and in other threads and warps."""
    for vocabulary, place in ((5, 4), (130, 129), (1000, 997), (1000, 31), (4100, 4099)):
        logits = np.random.default_rng(vocabulary).uniform(0, 1, (1, vocabulary)).astype(np.float32)
        logits[0, place], logits[0, place // 2] = 2, -1
        greedy(argmax, logits)


def ties(argmax):
    """Check rows with equal logits in different lanes and warps."""
    for pair in ((1, 2), (4, 9), (3, 700), (130, 4097)):
        logits = np.zeros((1, 4100), np.float32)
        logits[0, list(pair)] = 1
        greedy(argmax, logits)


def penalised(penalize, logits, prompts, outputs, *of_rows, **penalties):
    """Check logits after penalties against the definition; of_rows: the penalties of each row, if they differ."""
    logits = np.asarray(logits, np.float32)
    vocabulary, rows = logits.shape[1], len(logits)
    of_rows = of_rows or [penalties] * rows
    sampling = build_sampling_tensors([SamplingParams(**own) for own in of_rows], vocabulary, prompts, outputs)
    out = unwritten(logits.shape, np.float32)
    penalize(logits, sampling, np.arange(rows, dtype=np.int32), out)

    def by_definition(divide_all=False, repeats=None, times=None, present=None):
        """The penalised logits, with given rules changed: which are divided, what counts as a repetition, how often, what is present."""
        repeats, times, present = repeats or (lambda n, prompt: n or prompt), times or (lambda n: n), present or (lambda n, prompt: n > 0)
        expected = logits.astype(np.float64)
        for row, own in enumerate(of_rows):
            for v in range(vocabulary):
                count, in_prompt = list(outputs[row]).count(v), v in prompts[row]
                factor = own.get("repetition_penalty", 1)
                if repeats(count, in_prompt):
                    expected[row, v] = expected[row, v] / factor if expected[row, v] > 0 or divide_all else expected[row, v] * factor
                expected[row, v] -= own.get("frequency_penalty", 0) * times(count)
                expected[row, v] -= own.get("presence_penalty", 0) * int(present(count, in_prompt))
        return expected

    suspects = [
        ("a negative logit was divided, which makes the token likelier: multiply it.", by_definition(divide_all=True)),
        ("tokens of the prompt are repetitions too.", by_definition(repeats=lambda n, prompt: n)),
        ("a token repeats if it was generated or is in the prompt, not only if both.",
         by_definition(repeats=lambda n, prompt: n and prompt)),
        ("the repetition penalty was not applied.", by_definition(repeats=lambda n, prompt: False)),
        ("the frequency penalty counts every time that the token was generated.", by_definition(times=lambda n: n > 0)),
        ("the frequency penalty is for each time that the token was generated: none for one that never was.",
         by_definition(times=lambda n: 1)),
        ("the presence penalty is for generated tokens, not for the prompt's.", by_definition(present=lambda n, prompt: n > 0 or prompt)),
        ("the presence penalty is taken once, however often the token was generated.", by_definition(present=lambda n, prompt: n)),
    ]  # fmt: skip
    expect("out", out, by_definition(), ("row", "token"), suspects)


EXERCISES = (
    Exercise(
        name="sampling.argmax",
        lesson=14,
        title="the largest of a warp's values, by shuffles",
        module="minllm.kernels.sampling.argmax",
        entry="argmax",
        task="For offsets 16, 8, 4, 2 and 1: get the value and the token of the lane that far away (shfl_xor_sync), and keep them "
        "where that "
        "value is larger, or equal with a lower token. Return (value, token), the same in every lane.",
        hints=(
            "cuda.shfl_xor_sync(ALL_LANES, value, offset) gives the value of lane ^ offset; all 32 lanes call it together.",
            "Shuffle both before you overwrite either.",
        ),
        rungs=(
            Rung("one row by hand", "the largest of three.", lambda argmax: greedy(argmax, [[1, 3, 2]])),
            Rung("every place", "the largest may be in any lane, warp and block.", places),
            Rung("equal logits", "the lowest id wins, so that the result does not depend on the machine.", ties),
            Rung("several rows", "each row has its own winner.", lambda argmax: greedy(argmax, np.random.default_rng(0).random((3, 77)))),
            Rung("minus infinity", "a token that is excluded is never chosen.", lambda argmax: greedy(argmax, [[-np.inf, -5, -3]])),
            speed.rung("minllm.kernels.sampling.argmax:argmax", speed_problems.argmax, "more than five rounds of two shuffles."),
        ),
    ),
    Exercise(
        name="sampling.penalties",
        lesson=14,
        title="repetition, frequency and presence penalties, one thread per token",
        module="minllm.kernels.sampling.penalties",
        entry="penalize",
        task="Change x, the logit of the thread's token. If the token was generated (count > 0, from output_counts) or is in the prompt "
        "(its token_flags have the bit IN_PROMPT), divide x by the repetition penalty if x is positive, else multiply. Then subtract "
        "frequency_penalty * count, and presence_penalty if count > 0.",
        hints=("Counts and flags have a row for every slot: [slot, token].", "Penalties are one number per slot."),
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
                                     dict(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25),
                                     dict(repetition_penalty=1.1, frequency_penalty=0.125, presence_penalty=1.0)),
                 look="which slot each array is read at: counts, flags and all three penalties have their own for every slot."),
        ),
    ),
)  # fmt: skip
