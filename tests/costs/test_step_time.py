"""Predicted times of products and decode steps, beside the recorded ones."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from minllm.costs.stages import Stage, decode_stages
from minllm.costs.step_time import (
    COMPARED,
    PLAIN,
    StepRates,
    StepTimes,
    decode_step_seconds,
    most_sequences_ahead,
    product_seconds,
    stage_seconds,
)
from minllm.machine.hardware import gpu_named
from minllm.models.shapes import named_config
from minllm.weights.formats import WEIGHT_FORMATS

RESULTS = Path(__file__).parents[2] / "docs/results"
PRODUCT = re.compile(r"(\d+) rows? x (\d+)x(\d+), (bfloat16|fp8|int8|nf4|int4 in groups of 32|int4 in groups of 128)$")
STEP = re.compile(r"(llama-3\.\S+) \(random weights(?: in (bfloat16|fp8|int8|int4_g128|nf4))?\), batch (\d+), context (\d+)$")
H200 = gpu_named("h200")[1]
RATES = StepRates.of(H200.ceiling_tb_s, H200.measured_bf16_tflops)
NEWEST = "2026-11-26"  # since when the H200 has measured the kernels of the H100's record, or newer ones
COPY_OF_H100, GEMM_OF_H100 = 3.021, 782.0  # measured before its products
GROUPS = {"int4 in groups of 32": "int4", "int4 in groups of 128": "int4_g128"}  # names of formats
OLDER = ("nf4", 32)  # measured on an H100 before two blocks of mixed-input GEMM shared an SM, and on no GPU since


def record(name):
    """The rows of a record."""
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def recorded_layers(rows):
    """{(format, rows): {(outputs, inputs): microseconds of the fastest kernel}} of the layers whose four products are recorded."""
    found = defaultdict(dict)
    for row in rows:
        match = PRODUCT.match(row["case"]) if row["benchmark"] == "matmul, quantised" else None
        if match:
            rows, outputs, inputs = map(int, match.groups()[:3])
            shapes = found[match[4], rows]
            shapes[outputs, inputs] = min(row["value"], shapes.get((outputs, inputs), row["value"]))
    return {case: shapes for case, shapes in found.items() if len(shapes) == 4 and case != OLDER}


def recorded_steps(rows):
    """{(model, format, batch, context): microseconds}"""
    found = {}
    for row in rows:
        match = STEP.match(row["case"]) if (row["benchmark"], row["variant"]) == ("decode step", "graph replay") else None
        if match:
            found[match[1], match[2] or "bfloat16", int(match[3]), int(match[4])] = row["value"]
    return found


def with_their_rates(found):
    """{case: (value, rates)} of found(rows of a record): an H200's, or an H100's if that has measured a case with newer kernels."""
    of_h200, of_h100 = record("h200"), StepRates.of(COPY_OF_H100, GEMM_OF_H100)
    values = {case: (value, RATES) for case, value in found(of_h200).items()}
    values |= {case: (value, of_h100) for case, value in found(record("h100_quantised")).items()}
    return values | {case: (value, RATES) for case, value in found([row for row in of_h200 if row["date"] >= NEWEST]).items()}


def predicted(name, rows, shapes, rates):
    """Microseconds of a layer's products."""
    weight_format = WEIGHT_FORMATS[GROUPS.get(name, name)]
    total = 0
    for n, k in shapes:
        stage = Stage("product", weight_format.matrix_bytes(n, k), 0, 2 * rows * (k + n), 2 * rows * n * k, 0)
        total += 1e6 * product_seconds(stage, rows, 1, rates, weight_format)
    return total


def test_the_products_of_a_layer_are_predicted_within_8_per_cent():
    layers = with_their_rates(recorded_layers)
    assert len(layers) == 38
    errors = {case: predicted(*case, shapes, rates) / sum(shapes.values()) - 1 for case, (shapes, rates) in layers.items()}
    assert {case: error for case, error in errors.items() if abs(error) > 0.08} == {}


def test_whole_steps_are_predicted_within_9_per_cent():
    steps, errors = with_their_rates(recorded_steps), {}
    for (name, weights, batch, context), (microseconds, rates) in steps.items():
        seconds = decode_step_seconds(named_config(name), batch, context, rates, WEIGHT_FORMATS[weights])
        errors[name, weights, batch, context] = 1e6 * seconds / microseconds - 1
    assert len(errors) == 28
    assert {case: error for case, error in errors.items() if abs(error) > 0.09} == {}


@pytest.mark.parametrize("batch", [1, 64, 65, 300])
def test_a_step_is_its_linear_layers_and_its_attention(batch):
    config = named_config("llama-3.1-8b")
    [attention] = [stage for stage in decode_stages(config, batch, 500) if stage.name == "attention"]
    apart = StepTimes(config, RATES).linear_seconds(batch, batch) + stage_seconds(attention, batch, config, RATES, PLAIN)
    assert decode_step_seconds(config, batch, 500, RATES) == pytest.approx(apart, rel=1e-3)  # keys are read for the first token too


def test_int4_falls_behind_where_the_recorded_products_say():
    """At 16 rows the recorded products of int4 are still ahead of those of int8, at 64 they are behind."""
    layers = {case: sum(shapes.values()) for case, shapes in recorded_layers(record("h200")).items()}
    int4 = "int4 in groups of 128"
    assert all(layers[int4, rows] < layers["int8", rows] for rows in (1, 16)) and layers[int4, 64] > layers["int8", 64]
    config = named_config("llama-3.1-8b")
    assert 16 <= most_sequences_ahead(config, 1024, RATES, "int4_g128", "int8") < 64
    assert most_sequences_ahead(config, 1024, RATES, "int8", "bfloat16") == 256
    assert most_sequences_ahead(config, 1024, RATES, "int8", "int4_g128") == 0


@pytest.mark.parametrize("name", COMPARED)
def test_steps_grow_with_batch_and_context(name):
    config, weight_format = named_config("llama-3.1-8b"), WEIGHT_FORMATS[name]
    batches = (1, 3, 16, 17, 64, 65, 128, 200) if name != "int4" else (1, 3, 16, 17, 64)  # more rows take a faster kernel of its groups
    by_batch = [decode_step_seconds(config, batch, 1024, RATES, weight_format) for batch in batches]
    by_context = [decode_step_seconds(config, 8, context, RATES, weight_format) for context in (1, 100, 10_000)]
    assert sorted(by_batch) == by_batch and sorted(by_context) == by_context
