"""Swap against recompute: the two sides by hand, and the crossings as the sign changes they are."""

from dataclasses import replace

import pytest

from minllm.costs.swap import SwapRates, crossings, recompute_ms, swap_ms, swap_wins
from minllm.models.shapes import named_config

H200 = SwapRates(host_gb_s=55, bandwidth_tb_s=4.2, tflops=700)
PAGEABLE = SwapRates(host_gb_s=6, bandwidth_tb_s=4.2, tflops=700)
ONE_B = named_config("llama-3.2-1b")


def test_both_sides_by_hand():
    assert swap_ms(ONE_B, 1000, H200) == pytest.approx(0.12 + 1e3 * 2 * 1000 * 32 * 1024 / 55e9)
    assert swap_ms(ONE_B, 1000, replace(H200, start_ms=0)) == pytest.approx(swap_ms(ONE_B, 1000, H200) - 0.12)
    assert swap_ms(ONE_B, 1000, H200, kv_itemsize=1) == pytest.approx(swap_ms(ONE_B, 500, H200))
    assert recompute_ms(ONE_B, 1, H200) == pytest.approx(1e3 * 1_235_814_400 * 2 / 4.2e12, rel=0.001)  # every weight once
    assert recompute_ms(ONE_B, 4096, H200) > 1e3 * 2 * 4096 * 0.97e9 / 700e12  # products of the layers, and attention


def test_grouped_heads_over_a_fast_link_are_always_swapped():
    assert crossings(ONE_B, H200, 131072) == [] and swap_wins(ONE_B, 1, H200)


def test_a_model_that_is_computed_sooner_than_a_swap_starts_is_computed_again():
    slow_start = replace(H200, start_ms=2.0)
    (crossing,) = crossings(ONE_B, slow_start, 131072)
    assert not swap_wins(ONE_B, crossing - 1, slow_start) and swap_wins(ONE_B, crossing, slow_start)


def test_a_slow_link_loses_between_few_tokens_and_very_many():
    few, many = crossings(ONE_B, PAGEABLE, 131072)
    assert 20 < few < 200 and 20000 < many < 131072
    assert swap_wins(ONE_B, few - 1, PAGEABLE) and not swap_wins(ONE_B, few, PAGEABLE)
    assert not swap_wins(ONE_B, many - 1, PAGEABLE) and swap_wins(ONE_B, many, PAGEABLE)
