"""The ladder for the acceptance of speculative decoding: the number of new tokens of a run."""

import functools

import numpy as np

from minllm.course.checks.evidence import note
from minllm.course.checks.mismatch import Mismatch, expect
from minllm.course.checks.traffic import expect_bytes
from minllm.course.exercise import Exercise, Rung
from minllm.sim import unwritten

NGRAMS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}
PROMPTS = [
    "    self.first = first\n    self.second = second\n    self.third = third\n    self.first = first\n    self.second",
    "import os\nimport sys\nimport os\nimport sys\nimport",
]
UNWRITTEN_COUNT = -7  # poison for counts, as int32 has no NaN


def leading(matches):
    """The number of matches before the first mismatch."""
    return np.cumprod(matches).sum()


def accepted(accept, runs, chosen, computed):
    """Check the counts of runs, (slot, number of rows) each; a run of slot -1 is padding."""
    slots = np.repeat(*np.int32(list(zip(*runs)))).astype(np.int32)
    chosen, computed = np.int32(chosen), np.int32(computed)
    counts = np.full(len(slots), UNWRITTEN_COUNT, np.int32)
    accept(chosen, computed, slots, counts)
    firsts = np.cumsum([0, *(length for _, length in runs)])[:-1]
    right, of_all, without_own, same_row, beyond, whole, everywhere, of_each = (np.zeros(len(slots), np.int32) for _ in range(8))
    for first, (slot, length) in zip(firsts, runs, strict=True):
        if slot < 0:
            continue
        matches = computed[first + 1 : first + length] == chosen[first : first + length - 1]
        right[first], of_all[first], without_own[first] = 1 + leading(matches), 1 + matches.sum(), leading(matches)
        same_row[first] = 1 + leading(computed[first + 1 : first + length] == chosen[first + 1 : first + length])
        beyond[first] = 1 + leading(computed[first + 1 : len(slots)] == chosen[first : len(slots) - 1])
        whole[first] = length if matches[:1].any() else 1
        everywhere[first : first + length] = right[first]
        of_each[first : first + length] = [1 + leading(matches[offset:]) for offset in range(length)]
    expect("counts", counts, right, ("row",), [
        ("draft i, in row i, is compared with what the sampler chose one row before it: chosen[row + i - 1].", same_row),
        ("drafts after the first wrong one were counted: they follow a token that the text does not have.", of_all),
        ("the token that the sampler chose after the last right draft is new too: one more.", without_own),
        ("a right draft says nothing of those after it: compare each.", whole),
        ("a run ends after run_length(slots, row) rows: what follows belongs to another sequence.", beyond),
        ("only the first row of a run gets the count, the others 0.", everywhere),
        ("only the first row of a run gets a count, the others 0: ask begins_run(slots, row).", of_each),
        ("counts of rows that begin no run are 0, and your kernel has to write that.", np.where(right > 0, right, UNWRITTEN_COUNT)),
    ])  # fmt: skip


def run_of(*chosen_and_computed):
    """The check of a rung with one run of slot 0."""
    chosen, computed = chosen_and_computed
    return lambda accept: accepted(accept, [(0, len(chosen))], chosen, computed)


def several(accept):
    """Check three runs: all drafts right, the first wrong, and a single row; the second run begins with a match for the first."""
    accepted(accept, [(4, 3), (1, 3), (7, 1)], [11, 12, 21, 22, 23, 24, 31], [10, 11, 12, 21, 90, 23, 24])


def padding(accept):
    """Check rows of slot -1 after the last run."""
    accepted(accept, [(2, 2), (-1, 3)], [5, 6, 0, 0, 0], [4, 5, 0, 0, 0])


def many(accept):
    """Check more rows than a block has threads."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 6, 60)
    chosen, computed = random.integers(0, 2, (2, lengths.sum()))
    accepted(accept, list(enumerate(lengths)), chosen, computed)


def writes(accept):
    """Check that every count is written once."""
    slots, out = np.int32([0, 0, 0, 1]), unwritten((4,), np.int32)
    arrays = np.int32([5, 6, 7, 8]), np.int32([4, 5, 6, 7]), slots
    expect_bytes(functools.partial(accept, *arrays, out), {}, {"counts": out.nbytes}, "a row's thread writes its count, and no other.")


def generates(accept):
    """Check that the bundled model, with n-gram drafts accepted by the reader's kernel, generates the same text as without."""
    from minllm.engine.llm import LLM
    from minllm.engine.requests.sampling_params import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    options, texts = dict(device="cpu", dtype="float32", max_num_seqs=2, max_model_len=64), []
    speculation = dict(speculative_config=NGRAMS, kernel_variants={"accept": accept})
    for more in ({}, speculation):
        with LLM(**options, **more) as llm:
            outputs = [output.outputs[0] for output in llm.generate(PROMPTS, params)]
            accepted_tokens = llm.llm_engine.stats().spec_decode_num_accepted_tokens
        texts.append([list(output.token_ids) for output in outputs])
    note("tokens", texts[1])
    if texts[0] != texts[1]:
        raise Mismatch(
            f"with your kernel the engine wrote the tokens {texts[1]}, and without drafts {texts[0]}\nLikely cause: drafts were kept that "
            "the model did not choose, or chosen tokens were dropped."
        )
    if not accepted_tokens:
        raise Mismatch("the text is right, but no draft was kept\nLikely cause: right drafts count too, not only the token after them.")
    decoded = len(PROMPTS) * (params.max_tokens - 1)
    return f"your kernel generated {outputs[0].text!r}, {decoded / (decoded - accepted_tokens):.1f} tokens per step"


EXERCISES = (
    Exercise(
        name="speculation.accept",
        lesson=19,
        title="speculative decoding: how many drafted tokens are right",
        module="minllm.kernels.speculation.accept",
        entry="accept",
        stage="accept",
        engine_options="--speculative-config '{\"method\": \"ngram\", \"num_speculative_tokens\": 4, \"prompt_lookup_max\": 3}'",
        task="A thread has a row; those beyond slots.shape[0] do nothing. If begins_run(slots, row), count the run's new tokens: 1, and 1 "
        "more for each draft computed[row + i] that equals chosen[row + i - 1], what the sampler chose in the row before, up to the "
        "first that does not, within run_length(slots, row) rows. Store the count in counts[row]; rows that begin no run get 0.",
        hints=(
            "The sampler's token after row 0 is new in any case: a step without a right draft still yields one token.",
            "while count < length and ...: the length is tested first, so that no row of another run is read.",
        ),
        rungs=(
            Rung("no drafts", "a run of one row yields its token.", run_of([7], [5])),
            Rung("one right draft", "row 1 computed what the sampler chose after row 0.", run_of([7, 8], [5, 7])),
            Rung("one wrong draft", "the token of row 0 is new, that of row 1 follows a wrong one.", run_of([7, 8], [5, 6])),
            Rung("right after wrong", "the first mismatch ends the run, whatever comes later.", run_of([7, 8, 9, 10], [5, 7, 1, 9])),
            Rung("several sequences", "each run has its own count, and ends with its rows.", several),
            Rung("padding", "rows of slot -1 begin no run.", padding),
            Rung("many rows", "the grid is rounded up: some threads have no row.", many),
            Rung("writes", "one count per row.", writes),
            Rung("your kernel in the engine", "n-gram drafts, of which it decides, leave the text as it is.", generates),
        ),
    ),
)  # fmt: skip
