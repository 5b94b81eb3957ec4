"""The cost of a whole step: the sum over its stages of weights, keys and values, and GEMMs.

Activations and the operations between the GEMMs are not counted. In a decode step activations are small and stay in caches. In a long
prefill they are gigabytes that kernels write and read again, but arithmetic sets its floor, and fusion could hide them behind it. So this
is a floor and not a forecast: a real step also launches kernels, waits for them to end, and moves activations, which stages.py counts too.
"""

from dataclasses import dataclass

from minllm.costs.stages import Stage, decode_stages, prefill_stages
from minllm.models.config import ModelConfig
from minllm.weights.format import WeightFormat


@dataclass(frozen=True)
class Cost:
    """Bytes of memory traffic and floating-point operations (FLOPs) of one step."""

    bytes: int
    flops: int

    @property
    def arithmetic_intensity(self) -> float:
        """Operations per byte moved."""
        return self.flops / self.bytes

    def memory_ms(self, bandwidth_tb_s: float) -> float:
        """Milliseconds to move the bytes at `bandwidth_tb_s`."""
        return 1e3 * self.bytes / (bandwidth_tb_s * 1e12)

    def compute_ms(self, tflops: float) -> float:
        """Milliseconds to do the operations at `tflops`."""
        return 1e3 * self.flops / (tflops * 1e12)

    def floor_ms(self, bandwidth_tb_s: float, tflops: float | None = None) -> float:
        """The least milliseconds for the step: the larger of memory_ms and, if `tflops` is given, compute_ms."""
        # exercise: costs.floor_ms
        return max(self.memory_ms(bandwidth_tb_s), self.compute_ms(tflops) if tflops else 0.0)
        # end exercise


def sum_of(stages: list[Stage]) -> Cost:
    """The cost of all stages together, without activations."""
    return Cost(bytes=sum(stage.weight_bytes + stage.kv_bytes for stage in stages), flops=sum(stage.flops for stage in stages))


def decode_step(
    config: ModelConfig,
    batch: int = 1,
    context: int = 1,
    itemsize: int = 2,
    kv_itemsize: float = 2,
    matrix_itemsize: float | None = None,
    residual_window: int = 0,
    weight_format: WeightFormat | None = None,
) -> Cost:
    """The cost of one token for each of `batch` sequences with `context` keys, its own included."""
    stages = decode_stages(config, batch, context, itemsize, kv_itemsize, matrix_itemsize, residual_window, weight_format)
    return sum_of(stages)


def prefill(
    config: ModelConfig,
    tokens: int,
    itemsize: int = 2,
    kv_itemsize: float = 2,
    matrix_itemsize: float | None = None,
    sequences: int = 1,
    residual_window: int = 0,
    weight_format: WeightFormat | None = None,
) -> Cost:
    """The cost of a causal prefill of `sequences` prompts of `tokens` tokens, with logits of the last ones."""
    stages = prefill_stages(config, tokens, itemsize, kv_itemsize, matrix_itemsize, sequences, residual_window, weight_format)
    return sum_of(stages)
