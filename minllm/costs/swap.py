"""Swap or recompute? What a preempted sequence costs when it comes back, from rates alone.

    swap         its keys and values cross PCIe twice, out and in:              s + 2 t k / r        seconds, k bytes a token
    recompute    a prefill of its t tokens: weights once, 2 P t operations      max(W / B, F(t) / C)
                 and those of attention, which grow with t * t

Both grow with t, but not alike. For few tokens a recomputation still reads all weights, so swapping wins; for very many, attention makes
recomputing dear again. In between the rates decide: k / r against P / C. Grouped heads (small k) and page-locked copies (large r) favour
swapping. s is what starting takes, whatever the length: two kernels and four copies, from Python; it was measured, and sets the time of
short sequences (100 tokens of the 1B shape cross in as much). Nothing is counted for the launches of a prefill, of which there are
hundreds, nor for what the copies hide behind: others compute meanwhile, which a recomputation would keep from doing so. Source of the
question: Kwon et al. 2023, "Efficient Memory Management for Large Language Model Serving with PagedAttention", section 4.5.
"""

from dataclasses import dataclass

from minllm.costs.parameters import kv_bytes_per_token
from minllm.costs.steps import prefill
from minllm.models.config import ModelConfig

START_MS = 0.12  # to start a swap out and in, on a machine with an H200


@dataclass(frozen=True)
class SwapRates:
    """What the machine does: host copies in one direction in GB/s, memory in TB/s, GEMMs in TFLOP/s, and ms to start a swap."""

    host_gb_s: float
    bandwidth_tb_s: float
    tflops: float
    start_ms: float = START_MS


def swap_ms(config: ModelConfig, tokens: int, rates: SwapRates, kv_itemsize: float = 2) -> float:
    """Milliseconds to bring the keys and values of `tokens` tokens out and in again."""
    return rates.start_ms + 1e3 * 2 * tokens * kv_bytes_per_token(config, kv_itemsize) / (1e9 * rates.host_gb_s)


def recompute_ms(config: ModelConfig, tokens: int, rates: SwapRates) -> float:
    """The least milliseconds in which `tokens` tokens can be computed again, by themselves."""
    return prefill(config, tokens).floor_ms(rates.bandwidth_tb_s, rates.tflops)


def crossings(config: ModelConfig, rates: SwapRates, max_tokens: int, kv_itemsize: float = 2) -> list[int]:
    """The token counts up to `max_tokens` from which on the other choice is the faster one, ascending; below the first it is swapping
    as long as `swap_wins` says so for one token."""
    found, low = [], 1
    while low < max_tokens:
        high = min(2 * low, max_tokens)
        before, after = (swap_wins(config, tokens, rates, kv_itemsize) for tokens in (low, high))
        if before != after:
            first, last = low, high
            while last - first > 1:
                middle = (first + last) // 2
                if swap_wins(config, middle, rates, kv_itemsize) == before:
                    first = middle
                else:
                    last = middle
            found.append(last)
        low = high
    return found


def swap_wins(config: ModelConfig, tokens: int, rates: SwapRates, kv_itemsize: float = 2) -> bool:
    """Whether swapping `tokens` tokens is faster than computing them again."""
    return swap_ms(config, tokens, rates, kv_itemsize) < recompute_ms(config, tokens, rates)
