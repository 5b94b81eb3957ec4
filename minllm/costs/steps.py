"""A whole step: the sum of its stages' weights, keys and values, and GEMMs.

Counted: weights, keys and values. Not counted: activations, and the operations between the GEMMs. In a decode step activations are small
and stay in caches. In a long prefill they are gigabytes that kernels write and read again, but arithmetic sets its floor, and fusing could
hide them behind it. So this is a floor and not a forecast: a real step also launches kernels, waits at their ends, and moves activations.
stages.py counts those too.
"""

from dataclasses import dataclass

from minllm.costs.stages import Stage, decode_stages, prefill_stages
from minllm.models.config import ModelConfig
from minllm.weights.format import WeightFormat


@dataclass(frozen=True)
class Cost:
    """Bytes of memory traffic and floating-point operations of one step."""

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
        """The least milliseconds that the step can take at `bandwidth_tb_s`, and at `tflops` if that is given: the larger of the two."""
        # exercise: costs.floor_ms
        return max(self.memory_ms(bandwidth_tb_s), self.compute_ms(tflops) if tflops else 0.0)
        # end exercise


def sum_of(stages: list[Stage]) -> Cost:
    """The floor of all stages together."""
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
    """One token for each of `batch` sequences that see `context` keys each, the new one included."""
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
    """`sequences` prompts of `tokens` tokens, causal, in one pass, with the logits of each one's last token alone."""
    stages = prefill_stages(config, tokens, itemsize, kv_itemsize, matrix_itemsize, sequences, residual_window, weight_format)
    return sum_of(stages)
