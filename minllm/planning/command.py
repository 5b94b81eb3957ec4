"""`minllm plan`: from the command's options to the card or the JSON."""

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from minllm import costs
from minllm.costs import Stage
from minllm.costs.pipeline import last_stage, micro_batches
from minllm.errors import InvalidOptionError
from minllm.kernels.quantization.formats import CHANNEL_FORMATS
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.machine.hardware import gpu_named, read_measurements
from minllm.models.config import ModelConfig
from minllm.models.shapes import find_config, keeps_blocks, stored_quantization
from minllm.planning import card
from minllm.planning.caches import cache_table, compare_caches
from minllm.planning.formats import KV_ITEMSIZES, WEIGHT_FORMATS, kv_format_name, kv_itemsize, weight_format_name
from minllm.planning.measured import Comparison, comparisons
from minllm.planning.plan import Wishes, make_plan
from minllm.planning.predicted import predicted_prefill_ms, predicted_step_ms
from minllm.planning.weight_table import compare_weights, weight_table

BLOCK_SIZE = 16  # tokens; the engine's default


def run(
    model: str | None,
    gpu: str,
    *,
    dtype: str | None,
    kv_dtype: str | None,
    kv_policy: str,
    block_size: int | None,
    max_model_len: int | None,
    caches: bool = False,
    stages: bool = False,
    formats: bool = False,
    json_file: Path | None = None,
    **wishes,
) -> None:
    """Print the plan; without a model, the predictions and measurements for that GPU.

    stages: also the bytes and operations of each stage. caches: also a comparison of all policies and formats of the cache. formats: also
    the predicted steps with weights in other formats. wishes: further fields of Wishes. Raises InvalidOptionError and CheckpointError.
    """
    gpu_name, limits = gpu_named(gpu)
    console = Console(stderr=str(json_file) == "-", highlight=False, soft_wrap=True)
    if model is None:
        compared = comparisons(gpu_name)
        print_comparisons(console, gpu_name, compared)
        write(json_file, dict(gpu=gpu_name, measured=[asdict(one) for one in compared]))
        return
    name, config = find_config(model, quantized=True)
    if dtype is None and (method := stored_quantization(model)):
        raise InvalidOptionError(f"{model} stores its matrices quantised ({method}): give their format, such as --dtype int4_g128.")
    plan = make_plan(config, limits, wishes_for(config, dtype, kv_dtype, kv_policy, block_size, max_model_len, **wishes))
    context = plan.wishes.context
    by_format = compare_weights(config, gpu_name, limits, context) if formats else None
    predicted_ms, prefill_ms = (predict(config, limits, plan.wishes) for predict in (predicted_step_ms, predicted_prefill_ms))
    number = f"{plan.wishes.gpus} x " if plan.wishes.gpus > 1 else ""
    console.print(card.as_text(f"plan: {name} on {number}{gpu_name}", card.plan_rows(plan, predicted_ms, prefill_ms)))
    if context > config.max_position_embeddings:
        console.print(f"note: this model was made for {config.max_position_embeddings:,} tokens of context at most")
    if dtype is None and keeps_blocks(model):
        console.print("note: a GPU keeps this file's matrices in Q8_0, Q4_0 and Q4_1 as they are, so that they take less than is counted")
    if caches:
        console.print("", cache_table(compare_caches(config, limits, plan.wishes)), sep="\n")
    if by_format:
        console.print("", weight_table(by_format), sep="\n")
    by_phase = phases(config, plan.wishes)
    for phase, listed in by_phase.items() if stages else ():
        console.print("", card.stage_table(f"{phase}, stage by stage{' (one GPU)' if number else ''}", listed), sep="\n")
    compared = comparisons(gpu_name, config)
    if compared:
        console.print()
        print_comparisons(console, gpu_name, compared)
    values = card.as_json(plan, compared) | dict(
        predicted_ms=predicted_ms, predicted_prefill_ms=prefill_ms, stages=as_values(by_phase), weight_formats=by_format
    )
    write(json_file, dict(model=name, gpu=gpu_name, **values))


def wishes_for(
    config: ModelConfig, dtype: str | None, kv_dtype: str | None, kv_policy: str, block_size: int | None, max_model_len: int | None,
    *, context: int | None, **others,
) -> Wishes:  # fmt: skip
    """The wishes for a model, with its defaults for options that are None. others: further fields. Raises InvalidOptionError."""
    weights = weight_format_name(dtype) if dtype else config.dtype or "bfloat16"
    if kv_dtype:
        cached = kv_format_name(kv_dtype)
    else:
        cached = weights if weights in KV_ITEMSIZES else "bfloat16"
    if block_size is None:
        block_size = TOKEN_GROUP if cached in CHANNEL_FORMATS else BLOCK_SIZE
    _check_cache(kv_policy, cached, block_size)
    context = context or min(4096, config.max_position_embeddings)
    wishes = Wishes(dtype=weights, kv_dtype=cached, context=context, **others)  # checks the context, by its own name
    policy = costs.AllocationPolicy(kv_policy, block_size, max_model_len or max(context, config.max_position_embeddings))
    return replace(wishes, policy=policy)


def _check_cache(policy: str, kv_dtype: str, block_size: int) -> None:
    """Raise InvalidOptionError for a combination that LLM() refuses too."""
    if policy == "virtual" and kv_dtype not in KV_ITEMSIZES:
        raise InvalidOptionError(f"--kv-dtype {kv_dtype} is not allowed with --kv-policy virtual, which keeps numbers as they are.")
    if policy == "paged" and kv_dtype in CHANNEL_FORMATS and block_size % TOKEN_GROUP:
        raise InvalidOptionError(f"--block-size {block_size} is not allowed with --kv-dtype {kv_dtype}: it is a multiple of {TOKEN_GROUP}.")


def phases(config: ModelConfig, wishes: Wishes) -> dict[str, list[Stage]]:
    """The stages of one GPU's part of a decode step and of a prefill.

    For a pipeline they are those of its last stage: of one micro-batch of decodes, and of the whole prompt.
    """
    sequences = micro_batches(wishes.batch, wishes.pipeline_parallel).tokens
    weights, part = WEIGHT_FORMATS[wishes.dtype], last_stage(costs.shard(config, wishes.tensor_parallel), wishes.pipeline_parallel)
    sizes = dict(itemsize=weights.itemsize, kv_itemsize=kv_itemsize(wishes.kv_dtype, config.head_dim))
    sizes |= dict(weight_format=weights, residual_window=wishes.residual_window)
    return dict(
        decode=costs.decode_stages(part, sequences, wishes.context, **sizes),
        prefill=costs.prefill_stages(part, wishes.context, **sizes),
    )


def as_values(by_phase: dict[str, list[Stage]]) -> dict[str, list[dict]]:
    """The stages for JSON, with total bytes and arithmetic intensity."""
    return {
        phase: [asdict(stage) | dict(bytes=stage.bytes, arithmetic_intensity=stage.arithmetic_intensity) for stage in listed]
        for phase, listed in by_phase.items()
    }


def print_comparisons(console: Console, gpu_name: str, compared: list[Comparison]) -> None:
    """Print predicted and measured times, with the GPU and the date of the measurements."""
    date = read_measurements()[gpu_name]["date"]
    console.print(card.as_text(f"predicted and measured on one {gpu_name}, recorded {date}", card.comparison_rows(compared)))


def write(json_file: Path | None, values: dict) -> None:
    """Write `values` as JSON to a file, to standard output for "-", or nowhere for None."""
    if json_file is None:
        return
    text = json.dumps(values, ensure_ascii=False) + "\n"
    if str(json_file) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        json_file.write_text(text, encoding="utf-8")
