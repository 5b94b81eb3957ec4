"""Generation speed of one sequence: time to first token (TTFT), and decode speed relative to the memory limit.

The prompt consists of random token ids, and decoding is greedy and never ends early, so that every run does the same work. A warm-up run
with the same lengths compiles the kernels and captures the graphs; the result is the median of the runs after it. Shapes other than the
bundled model's have random weights (models/random_checkpoint.py), as speed depends on the shape alone.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from rich.console import Console

from minllm.bench.record import Row, write_rows
from minllm.bench.report_card import ReportCard, as_text, card_of
from minllm.engine.llm import LLM
from minllm.engine.options import EngineOptions
from minllm.engine.requests.outputs import RequestMetrics
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import InvalidOptionError
from minllm.models.config_reader import parse_model_config
from minllm.models.gguf.gguf_file import is_gguf
from minllm.models.json_files import read_json
from minllm.models.shapes import SHAPES, find_config

BUNDLED = "bundled"


def run(model: str, options: dict[str, Any], *, prompt_tokens: int, tokens: int, repeats: int, json_file: Path | None) -> None:
    """Measure; print ceiling and report card; if `json_file` is given, write the record.

    `options` are those of LLM().
    """
    progress = Console(stderr=True, highlight=False, soft_wrap=True)
    ceilings = {"copy_tb_s": None, "bf16_tflops": None}
    if EngineOptions(device=options["device"]).resolved_device() == "cuda":
        from minllm.bench.ceilings import copy_tb_s

        ceilings["copy_tb_s"] = round(copy_tb_s(), 3)
        progress.print(f"ceiling: a device copy moves {ceilings['copy_tb_s']:.2f} TB/s here, read plus written")
    with opened_model(model, options, prompt_tokens + tokens) as llm:
        card = measure(llm, prompt_tokens, tokens, repeats)
    card = card.named(f"{model} (random weights)" if shape_of(model) else model).against(ceilings["copy_tb_s"])
    out = progress if str(json_file) == "-" else Console(highlight=False, soft_wrap=True)
    out.print(as_text(card))
    write_rows(json_file, card.device, ceilings, rows(card))


@contextmanager
def opened_model(
    model: str, options: dict[str, Any], max_model_len: int | None, write: Callable[[Path, dict[str, Any]], None] | None = None
) -> Iterator[LLM]:
    """An LLM of the bundled model, a directory, a GGUF file, or a shape with random weights; max_num_seqs is 1 by default.

    max_model_len: maximum tokens per sequence; None: as many as model and memory allow. write: function that writes the directory of a
    shape; None: write_shape. Raises InvalidOptionError if the model has fewer positions than max_model_len.
    """
    options = dict(max_num_seqs=1) | options | dict(max_model_len=max_model_len, progress=sys.stderr.isatty())
    check_model(model)
    if max_model_len is not None:
        check_length(model, max_model_len)
    shape = shape_of(model)
    if shape is None:
        with LLM(None if model == BUNDLED else model, **options) as llm:
            yield llm
        return
    with tempfile.TemporaryDirectory() as directory:
        (write or write_shape)(Path(directory), shape)
        with LLM(directory, load_format="dummy", **options) as llm:
            yield llm


def shape_of(model: str) -> dict[str, Any] | None:
    """The config.json of a known shape, or of a path to one; None for a model with weights.

    Raises CheckpointError if damaged.
    """
    path = Path(model)
    if model in SHAPES or not (path.is_file() and path.suffix == ".json"):
        return SHAPES.get(model)
    values = read_json(path)
    return values | dict(vocab_size=parse_model_config(values, model).vocab_size)


def check_model(model: str) -> None:
    """Raises InvalidOptionError unless `model` is the bundled one, a directory, a GGUF file or a shape."""
    if shape_of(model) is None and model != BUNDLED and not Path(model).is_dir() and not is_gguf(Path(model)):
        raise InvalidOptionError(
            f"--model {model} is neither a model directory, nor a GGUF file, nor a config.json, nor a known shape: give the path of one, "
            f"or one of {BUNDLED}, {', '.join(SHAPES)}. Nothing is downloaded."
        )


def check_length(model: str, tokens: int) -> None:
    """Raises InvalidOptionError if a model that check_model allows has fewer positions than the longest sequence has tokens."""
    most = find_config(model, quantized=True)[1].max_position_embeddings
    if tokens > most:
        raise InvalidOptionError(f"the longest sequence has {tokens:,} tokens, and {model} has {most:,} positions: ask for fewer tokens.")


def write_shape(directory: Path, config: dict[str, Any]) -> None:
    """Write a model directory without weights: config.json, and a tokenizer with one word per token id."""
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    vocabulary = {f"<{token_id}>": token_id for token_id in range(config["vocab_size"])}
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<0>")).save(str(directory / "tokenizer.json"))


def measure(llm: LLM, prompt_tokens: int, tokens: int, repeats: int) -> ReportCard:
    """The card of the median run. Raises InvalidRequestError if the model's context is too short."""
    vocab_size = llm.engine.model.config.vocab_size
    prompt = np.random.default_rng(0).integers(0, vocab_size, prompt_tokens).tolist()
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    llm.generate(prompt, params)
    outputs = [llm.generate(prompt, params)[0] for _ in range(repeats)]
    return card_of(llm, median_metrics([output.metrics for output in outputs]))


def median_metrics(runs: list[RequestMetrics]) -> RequestMetrics:
    """The medians of TTFT and of decode time, taken separately."""
    first = runs[0]
    decode_seconds = statistics.median(run.decode_seconds for run in runs)
    return RequestMetrics(
        prompt_tokens=first.prompt_tokens,
        generated_tokens=first.generated_tokens,
        time_to_first_token=statistics.median(run.time_to_first_token for run in runs),
        decode_seconds=decode_seconds,
        decode_tokens_per_second=(first.generated_tokens - 1) / decode_seconds,
    )


def rows(card: ReportCard) -> list[Row]:
    """The card as rows of a record: the decode with its limit, and the prefill."""
    case = f"{card.model}, batch 1, prompt {card.prompt_tokens}, new {card.generated_tokens}"
    limit = card.ceiling_tb_s * 1e12 / card.bytes_per_token if card.ceiling_tb_s else None
    decode, prefill, first = card.decode_tokens_per_s, card.prefill_tokens_per_s, 1e3 * card.time_to_first_token_s
    shares = dict(limit=round(limit, 1), of_limit=round(decode / limit, 3)) if limit else {}
    return [
        Row("decode", case, card.dtype, round(decode, 1), "tokens/s", **shares),
        Row("prefill", case, card.dtype, round(prefill, 1), "tokens/s"),
        Row("time to first token", case, card.dtype, round(first, 2), "ms"),
    ]
