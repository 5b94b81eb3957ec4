"""`minllm bench ranks`: steps, prompts and a list of requests on one GPU and on several, beside the times that `minllm plan` predicts.

Everything goes through the engine: a decode step's time is the difference between two generations that differ in their number of tokens
alone, over that number; a prompt's time is the time to its first token. Weights are random, as speed depends on the shape.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minllm.bench.generate import check_model, opened_model
from minllm.bench.record import Row, console, device_of, write_rows
from minllm.bench.serving.workload import REQUEST_LISTS, within_vocabulary
from minllm.engine.llm import LLM
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import InvalidOptionError
from minllm.machine import hardware
from minllm.models.config import ModelConfig
from minllm.planning.formats import WEIGHT_FORMATS
from minllm.planning.plan import Wishes, make_plan
from minllm.planning.predicted import predicted_prefill_ms, predicted_step_ms

STEPS, REPEATS = 64, 3
LINE = "{:26} {:16} {:>16} {:>12} {:>10} {:>16}"  # printed as soon as it is measured: closing several GPUs takes seconds
PREDICTED = "predicted by minllm plan"
THROUGHPUT = "nano-vllm"  # a list of requests of `minllm bench serve`


@dataclass(frozen=True)
class Split:
    """How many GPUs hold a model, and how."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def options(self) -> dict[str, int]:
        """The options of LLM()."""
        return dict(tensor_parallel_size=self.tensor, pipeline_parallel_size=self.pipeline)

    def __str__(self) -> str:
        tensor = f"{self.tensor} tensor rank{'s' if self.tensor > 1 else ''}"
        return tensor if self.pipeline == 1 else f"{tensor} in each of {self.pipeline} stages"


@dataclass(frozen=True)
class Work:
    """What is measured: decode steps at these batch sizes and this context, a prompt, and whether a list of requests."""

    batches: Sequence[int]
    context: int
    prompt: int
    throughput: bool

    def check(self) -> None:
        """Raises InvalidOptionError if the context is too short for the steps that are measured."""
        if self.context <= STEPS:
            raise InvalidOptionError(f"--context {self.context} is not allowed: it is above {STEPS}, the steps that are measured.")

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return max(self.context + STEPS + 1, self.prompt + 1, 2048 if self.throughput else 0)

    @property
    def max_num_seqs(self) -> int:
        """The most sequences at once."""
        return max([*self.batches, 256 if self.throughput else 1])


def run(model: str, options: dict[str, Any], splits: Sequence[Split], work: Work, json_file: Path | None) -> None:
    """Measure the model on each split of GPUs in turn; print each row; if `json_file` is given, write the record.

    options: those of LLM(). Raises InvalidOptionError for wrong values, and the errors of LLM(), for example for fewer GPUs than a split
    has ranks.
    """
    check_model(model)
    work.check()
    out, to_stdout = console(json_file), str(json_file) == "-"
    rows: list[Row] = []
    alone: dict[str, float] = {}
    out.print(LINE.format("what", "split", "measured", "predicted", "floor", "times the first"))
    for split in splits:
        given = dict(max_num_seqs=work.max_num_seqs) | options | split.options
        with opened_model(model, given, work.max_model_len) as llm:
            device = device_of(llm)
            for row in measured(llm, model, split, work, device, options.get("quantization")):
                first = alone.setdefault(row.case, row.value)
                speedup = row.value / first if row.unit == "tokens/s" else first / row.value
                times = ["" if one is None else f"{one:,.2f} {row.unit}" for one in (row.value, row.peer_value, row.limit)]
                out.print(LINE.format(row.case.removeprefix(f"{model}, "), row.variant, *times, f"{speedup:.2f}"))
                rows.append(row)
                if not to_stdout:  # what is measured is kept, whatever becomes of later splits
                    write_rows(json_file, device, {}, rows)
    if to_stdout:
        write_rows(json_file, device, {}, rows)


def measured(llm: LLM, model: str, split: Split, work: Work, device: str, quantization: str | None = None) -> Iterator[Row]:
    """The rows of one engine."""
    config, name = llm.engine.model.config, f"{model} (weights in {quantization})" if quantization else model
    for batch in work.batches:
        planned = Planned.of(config, device, split, batch, work.context, quantization, "decode")
        yield row(f"{name}, batch {batch}, context {work.context}", split, 1e3 * step_seconds(llm, batch, work.context), "ms", planned)
    if work.prompt:
        planned = Planned.of(config, device, split, 1, work.prompt, quantization, "prefill")
        yield row(f"{name}, prompt of {work.prompt}", split, 1e3 * prompt_seconds(llm, work.prompt), "ms", planned)
    if work.throughput:
        yield row(f"{name}, list {THROUGHPUT}", split, tokens_per_second(llm), "tokens/s", Planned())


@dataclass(frozen=True)
class Planned:
    """Milliseconds of a step by `minllm plan`, each None if it has none. floor: with the floor of its all-reduces."""

    floor: float | None = None
    predicted: float | None = None

    @classmethod
    def of(
        cls, config: ModelConfig, device: str, split: Split, batch: int, context: int, quantization: str | None, step: str
    ) -> "Planned":  # fmt: skip
        """Of the step "decode" or "prefill"; nothing for a GPU that plan does not know. quantization: a format of plan, or None."""
        gpu = hardware.find_gpu(device)
        if gpu is None or (quantization or "bfloat16") not in WEIGHT_FORMATS:
            return cls()
        weights = quantization or "bfloat16"
        wishes = Wishes(context, batch, weights, tensor_parallel=split.tensor, pipeline_parallel=split.pipeline)
        predict = predicted_step_ms if step == "decode" else predicted_prefill_ms
        return cls(getattr(make_plan(config, gpu, wishes), step).floor_ms, predict(config, gpu, wishes))


def row(case: str, split: Split, value: float, unit: str, planned: Planned) -> Row:
    """A row of the record, with plan's prediction as its peer."""
    found = {}
    if planned.floor is not None:
        found |= dict(limit=round(planned.floor, 3), of_limit=round(planned.floor / value, 3))
    if planned.predicted is not None:
        found |= dict(peer=PREDICTED, peer_value=round(planned.predicted, 3), ratio=round(planned.predicted / value, 3))
    return Row("several GPUs", case, str(split), round(value, 3), unit, **found)


def step_seconds(llm: LLM, batch: int, context: int) -> float:
    """Median seconds of a decode step of `batch` sequences whose mean context is `context` tokens."""
    prompts = random_prompts(llm, batch, context - STEPS)
    difference = []
    for _ in range(1 + REPEATS):  # the first compiles
        short, long = (generation_seconds(llm, prompts, tokens) for tokens in (STEPS // 2, STEPS // 2 + STEPS))
        difference.append((long - short) / STEPS)
    return statistics.median(difference[1:])


def prompt_seconds(llm: LLM, tokens: int) -> float:
    """Median seconds from a prompt to its token."""
    return statistics.median([generation_seconds(llm, random_prompts(llm, 1, tokens), 1) for _ in range(1 + REPEATS)][1:])


def tokens_per_second(llm: LLM) -> float:
    """Generated tokens per second over the list of requests, all of which wait at the start."""
    requests = within_vocabulary(REQUEST_LISTS[THROUGHPUT].requests(), llm.engine.model.config.vocab_size)
    params = [SamplingParams(temperature=0.0, max_tokens=one.output_len, ignore_eos=True) for one in requests]
    prompts = [one.prompt for one in requests]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    return sum(len(one.outputs[0].token_ids) for one in outputs) / (time.perf_counter() - start)


def generation_seconds(llm: LLM, prompts: list[list[int]], tokens: int) -> float:
    """Seconds to generate this number of tokens after every prompt."""
    start = time.perf_counter()
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    return time.perf_counter() - start


def random_prompts(llm: LLM, count: int, tokens: int) -> list[list[int]]:
    """Prompts of random token ids."""
    return np.random.default_rng(0).integers(0, llm.engine.model.config.vocab_size, (count, tokens)).tolist()
