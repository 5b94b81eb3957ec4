"""Compares predicted decode steps (costs/step_time.py, not floors) with weights in several formats, by batch."""

from typing import NamedTuple

from rich.console import Group
from rich.table import Table

from minllm.costs.step_time import ALIKE, COMPARED, DECODING, decode_step_seconds, most_sequences_ahead, sequences_alike
from minllm.errors import InvalidOptionError
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.planning.predicted import step_rates
from minllm.weights.formats import WEIGHT_FORMATS

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
PAIRS = tuple((name, other) for name in DECODING for other in ("int8", "bfloat16"))


class StepsByFormat(NamedTuple):
    """Predicted decode steps on one GPU."""

    context: int
    milliseconds: dict[int, dict[str, float]]  # {batch: {format: ms}}
    most_ahead: dict[str, dict[str, int]]  # {format: {other: largest batch at which format is faster}}
    alike: dict[str, dict[str, tuple[int, int] | None]]  # {format: {other: smallest and largest batch at which both are within ALIKE}}


def compare_weights(config: ModelConfig, gpu_name: str, gpu: Gpu, context: int) -> StepsByFormat:
    """Steps of sequences with `context` tokens.

    Raises InvalidOptionError except for Hopper, and for models with experts: other kernels were not measured.
    """
    rates = step_rates(gpu)
    if rates is None:
        raise InvalidOptionError(f"--formats supports only Hopper's kernels for quantised weights; {gpu_name} uses others: omit it.")
    if config.num_experts:
        raise InvalidOptionError("--formats compares feed-forwards; kernels for quantised experts were not measured: omit it.")
    steps = {
        batch: {name: 1e3 * decode_step_seconds(config, batch, context, rates, WEIGHT_FORMATS[name]) for name in COMPARED}
        for batch in BATCHES
    }
    ahead: dict[str, dict[str, int]] = {}
    alike: dict[str, dict[str, tuple[int, int] | None]] = {}
    for first, second in PAIRS:
        turn = most_sequences_ahead(config, context, rates, first, second)
        ahead.setdefault(first, {})[second] = turn
        alike.setdefault(first, {})[second] = sequences_alike(config, context, rates, first, second, turn)
    return StepsByFormat(context, steps, ahead, alike)


def weight_table(found: StepsByFormat) -> Group:
    """One line per batch, then the largest batch at which one format is faster than another, and where that is by little."""
    title = f"decode steps by format of the layers' weights, predicted, in ms: {found.context:,} tokens a sequence, one GPU"
    table = Table("batch", title=title, title_justify="left", box=None, pad_edge=False)
    for name in COMPARED:
        table.add_column(name, justify="right")
    for batch, steps in found.milliseconds.items():
        table.add_row(str(batch), *(f"{step:.2f}" for step in steps.values()))
    lines = []
    for first, others in found.most_ahead.items():
        for second, most in others.items():
            alike = found.alike[first][second]
            near = f"; within {100 * ALIKE:.0f} % of it from {alike[0]} to {alike[1]}" if alike else ""
            lines.append(f"{first} is faster than {second} {f'up to a batch of {most}' if most else 'at no batch'}{near}")
    return Group(table, *lines)
