"""The report card: what is derived, what is left out, and what is printed."""

import pytest

from minllm.bench.generate import median_metrics, rows
from minllm.bench.report_card import as_text, lines, report_card
from minllm.engine.requests.outputs import RequestMetrics
from minllm.machine.hardware import find_gpu
from minllm.models.shapes import named_config


def card(device="NVIDIA H200", **changes):
    numbers = dict(prompt_tokens=512, generated_tokens=128, time_to_first_token=0.05, decode_tokens_per_second=1000.0)
    return report_card(named_config("llama-3.2-1b"), model="m", device=device, dtype="bfloat16", itemsize=2, **{**numbers, **changes})


def test_bytes_and_share_on_a_gpu_with_a_known_ceiling():
    ours, ceiling = card(), find_gpu("NVIDIA H200").ceiling_tb_s
    # 2 bytes a weight, and 32 KiB of keys and values for each of the 576 tokens in the middle of the generation and the one written
    weights = 2 * (1_235_814_400 + 2048)
    assert ours.bytes_per_token == weights + 577 * 32768
    assert ours.memory_tb_s == pytest.approx(ours.bytes_per_token * 1000 / 1e12)
    assert ours.share_of_ceiling == pytest.approx(ours.memory_tb_s / ceiling)
    assert ours.prefill_tokens_per_s == pytest.approx(512 / 0.05)
    text = as_text(ours).plain
    assert f"% of {ceiling} TB/s (measured copy)" in text and "2.5 GB" in text


def test_on_a_cpu_it_says_so_plainly():
    text = as_text(card(device="cpu")).plain
    assert "NumPy on CPU" in text and "TB/s" not in text and "bytes" not in text


def test_an_unknown_gpu_has_no_share():
    ours = card(device="NVIDIA Something")
    assert ours.share_of_ceiling is None and "hardware.py" in as_text(ours).plain


def test_a_single_token_has_no_decode_rate():
    ours = card(generated_tokens=1, decode_tokens_per_second=None)
    assert ours.memory_tb_s is None and ours.share_of_ceiling is None
    assert not any(name == "decode" for name, _ in lines(ours))


def test_a_ceiling_measured_in_the_same_run_wins():
    ours = card().against(5.0)
    assert ours.share_of_ceiling == pytest.approx(ours.memory_tb_s / 5.0)
    assert card().against(None) == card()


def test_rows_hold_the_decode_against_its_limit():
    decode, prefill, first = rows(card())
    assert decode.value == 1000.0 and decode.of_limit == pytest.approx(decode.value / decode.limit, abs=1e-3)
    assert prefill.limit is None and first.value == 50.0
    assert rows(card(device="cpu"))[0].limit is None


def test_medians_are_taken_of_times():
    runs = [RequestMetrics(5, 11, first, seconds, 10 / seconds) for first, seconds in ((0.1, 1.0), (0.3, 2.0), (0.2, 4.0))]
    middle = median_metrics(runs)
    assert middle.time_to_first_token == 0.2 and middle.decode_seconds == 2.0 and middle.decode_tokens_per_second == 5.0
