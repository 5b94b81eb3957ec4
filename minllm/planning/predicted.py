"""The predicted time of a plan's decode step on the GPUs whose kernels costs/step_time.py is fitted to: Hopper's."""

from minllm.costs.step_time import StepRates, decode_step_seconds
from minllm.machine.hardware import Gpu
from minllm.models.config import ModelConfig
from minllm.planning.plan import Wishes

HOPPERS = ("h100", "h200")  # beginnings of short names
SIXTEEN_BITS = ("bfloat16", "float16")


def step_rates(gpu: Gpu) -> StepRates | None:
    """The rates of a Hopper GPU; None for others, whose kernels were not measured."""
    if not gpu.short_name.startswith(HOPPERS):
        return None
    return StepRates.of(gpu.ceiling_tb_s, gpu.measured_bf16_tflops or gpu.bf16_tflops)


def predicted_step_ms(config: ModelConfig, gpu: Gpu, wishes: Wishes) -> float | None:
    """Milliseconds of a decode step with weights and cache in 16 bits on one Hopper GPU; None for anything else."""
    rates = step_rates(gpu)
    if rates is None or wishes.gpus > 1 or not {wishes.dtype, wishes.kv_dtype} <= set(SIXTEEN_BITS):
        return None
    return 1e3 * decode_step_seconds(config, wishes.batch, wishes.context, rates)
