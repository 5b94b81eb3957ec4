"""Swap or recompute? The cost of resuming a preempted sequence, from rates alone.

    swap         its keys and values cross PCIe twice, out and in:              s + 2 t k / r        seconds, k bytes per token
    recompute    a prefill of its t tokens: weights once, 2 P t operations      max(W / B, F(t) / C)
                 and those of attention, which grow with t * t

Both grow with t, but differently. For few tokens a recomputation still reads all weights, so swapping wins; for very many, attention makes
recomputing expensive again. In between the rates decide: k / r against P / C. Grouped heads (small k) and page-locked copies (large r)
favour swapping. s is the time to start a swap of any length: two kernels and four copies, from Python. It was measured, and dominates for
short sequences (100 tokens of the 1B shape cross PCIe in the same time). Two effects are not counted: the launches of a prefill, of which
there are hundreds, and that other sequences compute during the copies, which a recomputation would delay. Source of the question: Kwon et
al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.5.
"""

from dataclasses import dataclass

from minllm.costs.parameters import kv_bytes_per_token
from minllm.costs.steps import prefill
from minllm.models.config import ModelConfig

START_MS = 0.12  # milliseconds to start a swap out and in, on a machine with an H200


@dataclass(frozen=True)
class SwapRates:
    """Rates of a machine: host copies in one direction, memory, GEMMs; and the time to start a swap."""

    host_gb_s: float
    bandwidth_tb_s: float
    tflops: float
    start_ms: float = START_MS


def swap_ms(config: ModelConfig, tokens: int, rates: SwapRates, kv_itemsize: float = 2) -> float:
    """Milliseconds to copy the keys and values of `tokens` tokens out and back in."""
    return rates.start_ms + 1e3 * 2 * tokens * kv_bytes_per_token(config, kv_itemsize) / (1e9 * rates.host_gb_s)


def recompute_ms(config: ModelConfig, tokens: int, rates: SwapRates) -> float:
    """The least milliseconds to compute `tokens` tokens again, in a step of their own."""
    return prefill(config, tokens).floor_ms(rates.bandwidth_tb_s, rates.tflops)


def swap_wins(config: ModelConfig, tokens: int, rates: SwapRates, kv_itemsize: float = 2) -> bool:
    """Whether swapping `tokens` tokens is faster than computing them again."""
    return swap_ms(config, tokens, rates, kv_itemsize) < recompute_ms(config, tokens, rates)
