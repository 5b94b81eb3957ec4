"""Compares the three-stage pipeline with the serial loop, on text prompts that arrive at once, with text outputs.

    serial loop      LLM.generate: tokenise all prompts, compute all steps, detokenise all outputs
    three threads    AsyncLLM, with overlapping stages; each caller waits for its last output
    streamed         the same, and each caller reads its text as it grows

All three compute the same tokens. The pipeline hides tokenisation behind the computation of earlier prompts. Streaming shows the cost of
256 readers in one Python process.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import minllm
from minllm.bench.generate import opened_model, write_shape
from minllm.bench.record import Row, console, device_of, write_rows
from minllm.engine.async_llm import AsyncLLM
from minllm.engine.llm import LLM
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import InvalidOptionError
from minllm.models.source import bundled_model

PROMPT_CHARACTERS = 1000
MAX_MODEL_LEN = 1024


def run(model: str, options: dict[str, Any], *, num_prompts: int, tokens: int, repeats: int, json_file: Path | None) -> None:
    """Measure, print a line per variant, write the record. `options` are those of LLM()."""
    out = console(json_file)
    with opened_model(model, dict(max_num_seqs=None) | options, MAX_MODEL_LEN, write_shape_with_words) as llm:
        case = f"{model}, {num_prompts} text prompts of {PROMPT_CHARACTERS} characters, {tokens} tokens each"
        found = measure(llm, num_prompts, tokens, repeats)
        device = device_of(llm)
    out.print(case)
    for variant, seconds in found.items():
        rate, share = num_prompts * tokens / seconds, found["serial loop"] / seconds
        out.print(f"{variant:<16}{1e3 * seconds:10.1f} ms {rate:10.0f} tokens/s {share:8.2f} of the serial loop's speed")
    write_rows(json_file, device, {}, rows(case, found, num_prompts * tokens))


def measure(llm: LLM, num_prompts: int, tokens: int, repeats: int) -> dict[str, float]:
    """The median seconds of each variant; the variants alternate, after one round of warm-up.

    Raises InvalidOptionError if the prompts leave no room for the tokens.
    """
    text = minllm.held_out_text()
    starts = [index * 700 % (len(text) - PROMPT_CHARACTERS) for index in range(num_prompts)]
    prompts = [text[start : start + PROMPT_CHARACTERS] for start in starts]
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    if tokens > (room := llm.max_model_len - max(len(llm.tokenizer.encode(prompt)) for prompt in prompts)):
        raise InvalidOptionError(f"--tokens {tokens} is not allowed: behind the longest prompt there is room for {room}.")
    engine = AsyncLLM.of(llm)
    variants: dict[str, Callable[[], Any]] = {
        "serial loop": lambda: llm.generate(prompts, params, use_tqdm=False),
        "three threads": lambda: asyncio.run(generate_all(engine, prompts, params, final_only=True)),
        "streamed": lambda: asyncio.run(generate_all(engine, prompts, params, final_only=False)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    try:
        for _ in range(1 + repeats):
            for name, variant in variants.items():
                start = time.perf_counter()
                variant()
                seconds[name].append(time.perf_counter() - start)
    finally:
        engine.shutdown()
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


async def generate_all(engine: AsyncLLM, prompts: list[str], params: SamplingParams, final_only: bool) -> None:
    """Generate all prompts, with one task per prompt that reads its outputs to the end."""

    async def read(prompt: str) -> None:
        async for _ in engine.generate(prompt, params, final_only=final_only):
            pass

    await asyncio.gather(*map(read, prompts))


def rows(case: str, found: dict[str, float], tokens: int) -> list[Row]:
    """The variants as rows of a record; those of the pipeline have the serial loop as peer."""
    serial = round(tokens / found["serial loop"], 1)
    made = []
    for variant, seconds in found.items():
        peer = {} if variant == "serial loop" else dict(peer="serial loop", peer_value=serial, ratio=round(tokens / seconds / serial, 3))
        made.append(Row("pipeline", case, variant, round(tokens / seconds, 1), "tokens/s", **peer))
    return made


def write_shape_with_words(directory: Path, config: dict[str, Any]) -> None:
    """Write the directory of a shape, with a tokenizer that has words."""
    write_shape(directory, config)
    write_words(directory, config["vocab_size"])


def write_words(directory: Path, vocab_size: int) -> None:
    """Write the bundled model's tokenizer, with artificial words for missing ids, so that every id decodes to text."""
    tokenizer = json.loads((bundled_model() / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary.update({f"Ġword{token_id}": token_id for token_id in range(len(vocabulary), vocab_size)})
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
