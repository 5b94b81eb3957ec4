"""Perplexity of a model on unseen text, and bits per byte, which can be compared between tokenizers.

The text is Python source that was held out of the bundled models' training. It is read in windows of 1,024 tokens, of which the last 512
count, so that every token outside the first window has at least 512 before it.

    bits per byte = log2(perplexity) * (tokens - 1) / bytes of the text

The factor (tokens - 1) / bytes turns the mean per token into one per byte. A compressor based on the model would need this many bits per
byte of the text.
"""

import math
import sys
from pathlib import Path
from typing import Any

from minllm import LLM, held_out_text
from minllm.bench.record import Row, device_of, stream, write_rows
from minllm.models.source import bundled_model

WINDOW, STRIDE = 1024, 512


def directory_of(model: str) -> Path | str:
    """A model's directory: those of the package for "bundled" and "draft"; any other name is a path."""
    if model not in ("bundled", "draft"):
        return model
    return bundled_model().with_name(model)


def run(model: str, options: dict[str, Any], json_file: Path | None) -> None:
    """Measure and print; if `json_file` is given, write the record. `options` are those of LLM()."""
    with LLM(directory_of(model), max_num_seqs=1, progress=sys.stderr.isatty(), **options) as llm:
        measured = rows(llm, model, held_out_text())
        device = device_of(llm)
    out = stream(json_file)
    for row in measured:
        print(f"{row.benchmark}: {row.value} {row.unit} ({row.case}, {row.variant})", file=out, flush=True)
    write_rows(json_file, device, {}, measured)


def rows(llm: LLM, model: str, text: str, window: int = WINDOW, stride: int = STRIDE) -> list[Row]:
    """The rows of perplexity and of bits per byte for a text."""
    tokens = llm.tokenizer.encode(text)
    perplexity = llm.perplexity(tokens, window, stride)
    bits_a_byte = math.log2(perplexity) * (len(tokens) - 1) / len(text.encode())
    case, dtype = f"{model}, held-out text, window {window}, stride {stride}", str(llm.engine.ops.dtype)
    if llm.options.quantization is not None:
        dtype = f"{dtype}, weights in {llm.options.quantization}"
    return [
        Row("perplexity", case, dtype, round(perplexity, 4), "a token"),
        Row("bits a byte", case, dtype, round(bits_a_byte, 4), "bits/byte"),
    ]
