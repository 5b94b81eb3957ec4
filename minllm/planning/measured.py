"""Compares floors with recorded measurements of one sequence, decoded greedily by this engine on a GPU.

A run has a prompt and a number of new tokens. Its decode time per token is compared with the floor in the middle of the generation, and its
time to the first token with the floor of the prompt's prefill. Both floors use the ceilings measured on the same GPU.
"""

from dataclasses import dataclass

from minllm import costs
from minllm.errors import InvalidOptionError
from minllm.machine.hardware import GPUS, read_measurements
from minllm.models.config import ModelConfig
from minllm.models.shapes import find_config
from minllm.planning.formats import WEIGHT_FORMATS, best_rate


@dataclass(frozen=True)
class Comparison:
    """The times of one measured run and its floors, in milliseconds."""

    model: str
    dtype: str
    prompt: int
    new: int
    decode_floor_ms: float
    decode_ms: float
    prefill_floor_ms: float
    prefill_ms: float


def comparisons(gpu_name: str, config: ModelConfig | None = None) -> list[Comparison]:
    """All measured runs on a GPU, by the driver's name of it; with `config`, only those of models of the same shape.

    Raises InvalidOptionError if nothing was measured on that GPU and no config is given.
    """
    measurements = read_measurements()
    if config is None and gpu_name not in measurements:
        raise InvalidOptionError(
            f"No model was measured on {gpu_name}, only on {', '.join(measurements)}: give a config.json or a known shape to plan for."
        )
    compared = []
    for run in measurements.get(gpu_name, {}).get("runs", []):
        shape = find_config(run["model"])[1]
        if config is None or costs.shape_of(shape) == costs.shape_of(config):
            compared.append(compare(gpu_name, shape, run))
    return compared


def compare(gpu_name: str, config: ModelConfig, run: dict) -> Comparison:
    """The Comparison of one run of measurements.json with the floors of its shape."""
    gpu, item = GPUS[gpu_name], WEIGHT_FORMATS[run["dtype"]].itemsize
    tflops, _ = best_rate(gpu, run["dtype"])
    middle = run["prompt"] + (run["new"] + 1) // 2  # the middle of the generation, as in the report card
    step, prompt = costs.decode_step(config, 1, middle, item, item), costs.prefill(config, run["prompt"], item, item)
    return Comparison(
        model=run["model"],
        dtype=run["dtype"],
        prompt=run["prompt"],
        new=run["new"],
        decode_floor_ms=step.floor_ms(gpu.ceiling_tb_s, tflops),
        decode_ms=run["decode_ms"],
        prefill_floor_ms=prompt.floor_ms(gpu.ceiling_tb_s, tflops),
        prefill_ms=run["first_token_ms"],
    )
