"""`minllm plan`: from what was typed to the card or the JSON."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from minllm.hardware import gpu_named, read_measurements
from minllm.planning import card
from minllm.planning.formats import WEIGHT_FORMATS, format_name
from minllm.planning.measured import Comparison, comparisons
from minllm.planning.plan import Wishes, make_plan
from minllm.planning.presets import find_config


def run(model: str | None, gpu: str, *, dtype: str | None, kv_dtype: str | None, json_file: Path | None, **wishes) -> None:
    """Print the plan; without a model, what was predicted and measured on that GPU. Raises InvalidOptionError and CheckpointError."""
    gpu_name, limits = gpu_named(gpu)
    console = Console(stderr=str(json_file) == "-", highlight=False, soft_wrap=True)
    if model is None:
        compared = comparisons(gpu_name)
        print_comparisons(console, gpu_name, compared)
        write(json_file, dict(gpu=gpu_name, measured=[asdict(one) for one in compared]))
        return
    name, config = find_config(model)
    weights = format_name(dtype, "--dtype") if dtype else config.dtype or "bfloat16"
    cached = format_name(kv_dtype, "--kv-dtype") if kv_dtype else weights if WEIGHT_FORMATS[weights].matrix_itemsize >= 2 else "bfloat16"
    context = wishes.pop("context") or min(4096, config.max_position_embeddings)
    plan = make_plan(config, limits, Wishes(dtype=weights, kv_dtype=cached, context=context, **wishes))
    number = f"{plan.wishes.tensor_parallel} x " if plan.wishes.tensor_parallel > 1 else ""
    console.print(card.as_text(f"plan: {name} on {number}{gpu_name}", card.plan_rows(plan)))
    if context > config.max_position_embeddings:
        console.print(f"note: this model was made for {config.max_position_embeddings:,} tokens of context at most")
    compared = comparisons(gpu_name, config)
    if compared:
        console.print()
        print_comparisons(console, gpu_name, compared)
    write(json_file, dict(model=name, gpu=gpu_name, **card.as_json(plan, compared)))


def print_comparisons(console: Console, gpu_name: str, compared: list[Comparison]) -> None:
    """Predicted beside measured, and where the measurements come from."""
    date = read_measurements()[gpu_name]["date"]
    console.print(card.as_text(f"predicted and measured on one {gpu_name}, recorded {date}", card.comparison_rows(compared)))


def write(json_file: Path | None, values: dict) -> None:
    """The JSON to a file, to standard output for "-", or nowhere."""
    if json_file is None:
        return
    text = json.dumps(values, ensure_ascii=False) + "\n"
    if str(json_file) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        json_file.write_text(text, encoding="utf-8")
