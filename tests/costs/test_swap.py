"""Swap against recompute: the two sides by hand, and which of them wins by length."""

from dataclasses import replace

import pytest

from minllm.costs.swap import SwapRates, recompute_ms, swap_ms, swap_wins
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
    assert all(swap_wins(ONE_B, tokens, H200) for tokens in (*range(1, 2000), *range(2000, 131072, 1000)))


def test_a_model_that_is_computed_sooner_than_a_swap_starts_is_computed_again():
    slow_start = replace(H200, start_ms=2.0)
    won = [swap_wins(ONE_B, tokens, slow_start) for tokens in range(1, 16384, 8)]
    assert not won[0] and won[-1] and won == sorted(won)  # from one length on


def test_a_slow_link_loses_between_few_tokens_and_very_many():
    assert [swap_wins(ONE_B, tokens, PAGEABLE) for tokens in (20, 200, 20000, 131072)] == [True, False, False, True]
