"""`minllm bench speculation`: compares decoding with drafts, decoding without, and the prediction of minllm/costs.

With random weights no draft would be right, so for shapes drafts are accepted at random with given rates
(kernels/speculation/synthetic.py), and every line says so. Models with trained weights continue held-out text, and their drafts are really
verified. The engine chooses the number of drafts per step, up to num_speculative_tokens, unless the schedule is constant.

    speed      generated tokens per second, over the steps in which all sequences decode: no prompt is left, and none has ended
    step       seconds per step, over the same steps
    predicted  the largest speed-up of costs/speculation.py at the measured acceptance
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Sequence as Many
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import minllm
from minllm.bench.generate import check_model, opened_model, shape_of, write_shape
from minllm.bench.record import Row, console, device_of, write_rows
from minllm.costs.speculation import best_num_drafts, speed_up
from minllm.costs.step_time import StepTimes
from minllm.engine.build.speculation import step_times
from minllm.engine.llm import LLM
from minllm.engine.llm_engine import LLMEngine
from minllm.engine.options import EngineOptions
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.errors import InvalidOptionError
from minllm.machine import driver
from minllm.machine.hardware import find_gpu
from minllm.models.source import bundled_model, open_source

NGRAM = "ngram"
STRIDE = 97  # tokens between the beginnings of prompts


@dataclass(frozen=True)
class Measured:
    """One batch: seconds per step, new tokens per step and sequence, and the share of accepted drafts (None without drafts)."""

    num_sequences: int
    step_seconds: float
    tokens_per_step: float
    acceptance: float | None

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of all sequences together."""
        return self.num_sequences * self.tokens_per_step / self.step_seconds


def run(
    model: str, options: dict[str, Any], *, draft: str, num_speculative_tokens: Many[int], acceptance: Many[float], batches: Many[int],
    prompt_tokens: int, tokens: int, repeats: int, json_file: Path | None, schedule: str = "adaptive",
) -> None:  # fmt: skip
    """Measure, print a line per case, write the record after each engine.

    draft: "ngram", or a model as in `model`. options: those of LLM(). Raises InvalidOptionError for acceptance rates with trained weights,
    and the errors of wrong options and drafts before anything is measured.
    """
    check_model(model)
    if acceptance and shape_of(model) is None:
        raise InvalidOptionError(f"--acceptance is for shapes with random weights, and {model} has weights of its own: leave it out.")
    rates = list(acceptance) or ([0.8] if shape_of(model) is not None else [None])
    out = console(json_file)
    options, length = options | dict(max_num_seqs=max(batches)), prompt_tokens + tokens + max(num_speculative_tokens)
    rows: list[Row] = []
    suffix = ", batch invariant" if options.get("batch_invariant") else ""
    with draft_directory(draft) as directory:
        guesses: dict[str, Any] = {"method": NGRAM} if directory is None else {"method": "draft_model", "model": directory}
        guesses["num_speculative_tokens_schedule"] = schedule
        cases = [
            (rate, most, guesses | dict(num_speculative_tokens=most, synthetic_acceptance_rate=rate))
            for rate, most in itertools.product(rates, num_speculative_tokens)
        ]
        for *_, config in cases:
            EngineOptions(**options, speculative_config=config)
        if directory is not None:
            open_source(Path(directory)).config()
        with opened_model(model, options, length) as llm:
            device, costs = device_of(llm), costs_of(llm)
            plain = {count: measure(llm, count, prompt_tokens, tokens, repeats) for count in batches}
        for rate, most, config in cases:
            with opened_model(model, options | dict(speculative_config=config), length) as llm:
                of_draft = None if costs is None or directory is None else costs_of(llm, draft=True)
                for count in batches:
                    found = measure(llm, count, prompt_tokens, tokens, repeats)
                    share = found.acceptance if rate is None else rate
                    predicted = None if costs is None else prediction(costs, share, count, most, of_draft, schedule)
                    case = case_name(model, count, rate, most, schedule) + suffix
                    rows += rows_of(case, draft, plain[count], found, predicted)
                    out.print(line(case, draft, plain[count], found, predicted))
            write_rows(json_file, device, {}, rows)


def case_name(model: str, num_sequences: int, rate: float | None, num_drafts: int, schedule: str) -> str:
    """The case of the rows: model, sequences, drafts, acceptance."""
    accepted = "" if rate is None else f", {rate:g} of drafts accepted by chance"
    drafts = f"{'up to ' if schedule == 'adaptive' else ''}{num_drafts} {'draft' if num_drafts == 1 else 'drafts'}"
    weights = " (random weights)" if shape_of(model) is not None else ""
    return f"{model}{weights}, {num_sequences} {'sequence' if num_sequences == 1 else 'sequences'}, {drafts}{accepted}"


@contextmanager
def draft_directory(draft: str):
    """A context with the directory of a draft model, None for n-grams; for a shape it has a config.json and no weights."""
    shape = None if draft == NGRAM else shape_of(draft)
    if shape is None:
        yield {NGRAM: None, "draft": str(bundled_model("draft"))}.get(draft, draft)
        return
    with tempfile.TemporaryDirectory() as directory:
        write_shape(Path(directory), shape)
        yield directory


def measure(llm: LLM, num_sequences: int, prompt_tokens: int, tokens: int, repeats: int) -> Measured:
    """Greedy decoding of this number of sequences at once: medians of the runs after a warm-up with the same lengths."""
    prompts, engine, found = prompts_for(llm, num_sequences, prompt_tokens), llm.llm_engine, []
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    for repeat in range(1 + repeats):
        engine.forget_history()
        for index, prompt in enumerate(prompts):  # random acceptance depends on the seed, so each sequence of each run has its own
            engine.add_request(str(index), {"prompt_token_ids": prompt}, replace(params, seed=repeat * num_sequences + index))
        found.append(timed_steps(engine, num_sequences))
    seconds, generated = (statistics.median(values) for values in zip(*found[1:], strict=True))
    stats = engine.stats()
    tried = stats.spec_decode_num_tried_tokens
    share = stats.spec_decode_num_accepted_tokens / tried if tried else None
    return Measured(num_sequences, seconds, generated / num_sequences, share)


def timed_steps(engine: LLMEngine, num_sequences: int) -> tuple[float, float]:
    """(seconds, new tokens) per step, from the first step after which all sequences have a token to the last before one ends."""
    sequences: dict[str, Sequence] = {}
    counts, times = [], []
    while engine.has_unfinished_requests():
        sequences |= {sequence.request_id: sequence for sequence in engine.advance()}
        if len(sequences) == num_sequences and (len(times) < 2 or not any(sequence.is_finished for sequence in sequences.values())):
            counts.append(sum(len(sequence.output_token_ids) for sequence in sequences.values()))
            times.append(time.perf_counter())
    if len(times) < 2:
        raise InvalidOptionError("--tokens is too small: the first sequences end before the last have a token. Give more tokens.")
    return (times[-1] - times[0]) / (len(times) - 1), (counts[-1] - counts[0]) / (len(counts) - 1)


def prompts_for(llm: LLM, count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` tokens: held-out text, or random tokens for random weights."""
    if llm.options.load_format == "dummy":
        random = np.random.default_rng(0)
        return random.integers(0, llm.engine.model.config.vocab_size, (count, length)).tolist()
    ids = llm.tokenizer.encode(minllm.held_out_text())
    return [ids[start : start + length] for start in (index * STRIDE % (len(ids) - length) for index in range(count))]


def costs_of(llm: LLM, draft: bool = False) -> StepTimes | None:
    """The predicted step times of the model, or of its draft model; None on hardware without a data sheet."""
    gpu = find_gpu(driver.device_name()) if llm.device == "cuda" else None
    model = llm.engine.runner.speculator.source.model if draft else llm.engine.model
    return None if gpu is None else step_times(model.config, gpu)


def prediction(costs: StepTimes, acceptance: float | None, count: int, most: int, draft: StepTimes | None, schedule: str) -> float:
    """The predicted speed-up with the best number of drafts, or with `most` for the constant schedule.

    acceptance: the share of drafts accepted; None if there were no drafts.
    """
    if acceptance is None:
        return 1.0
    wanted = most if schedule == "constant" else best_num_drafts(costs, acceptance, count, most, draft, most)
    return speed_up(costs, acceptance, count, wanted, draft, most)


def rows_of(case: str, draft: str, plain: Measured, found: Measured, predicted: float | None) -> list[Row]:
    """Rows of the speed-up, with its prediction and the tokens per second, and of the step time beside that without drafts."""
    gain = found.tokens_per_second / plain.tokens_per_second
    peer = {}
    if predicted is not None:
        peer = dict(peer="minllm costs, predicted", peer_value=round(predicted, 3), ratio=round(gain / predicted, 3))
    times = [1e3 * measured.step_seconds for measured in (found, plain)]
    compared = dict(peer="minllm, without drafts", peer_value=round(times[1], 4), ratio=round(times[1] / times[0], 3))
    speed = {"tokens_per_second": round(found.tokens_per_second)}
    return [
        Row("speculation", case, draft, round(gain, 3), "of plain decoding's speed", **peer, metrics=speed),
        Row("speculation step", case, draft, round(times[0], 4), "ms", **compared),
    ]


def line(case: str, draft: str, plain: Measured, found: Measured, predicted: float | None) -> str:
    """The printed line of one batch."""
    gain = found.tokens_per_second / plain.tokens_per_second
    expected = "" if predicted is None else f" (predicted {predicted:.2f})"
    times = [1e3 * measured.step_seconds for measured in (found, plain)]
    return (
        f"{case}, {draft}: {found.tokens_per_second:.0f} tokens/s against {plain.tokens_per_second:.0f}, {gain:.2f} times{expected}; "
        f"{found.tokens_per_step:.2f} tokens per step of {times[0]:.2f} ms, without drafts {times[1]:.2f} ms"
    )
