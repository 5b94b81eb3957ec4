"""The page of what did not work quotes rows of earlier runs, which keep their dates, and its ideas have lost there."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = json.loads((ROOT / "docs/results/h200_earlier.json").read_text(encoding="utf-8"))["rows"]
PAGE = (ROOT / "docs/dead-ends.md").read_text(encoding="utf-8")
HEADS = "32/8 heads, d 128, bfloat16"
ACCURACY = ("KV cache accuracy", "bundled, 59263 tokens, perplexity above the plain cache's")
# (benchmark, case, the idea's variant, the variant that won, as the page writes them)
LOST = [
    ("prefill attention", f"1x512, {HEADS}", "flash_attention_1", "materialized",
     "0.672 TFLOP/s; three kernels with scores in memory 1.12"),
    ("matmul", "8192x8192x8192, bfloat16", "warp_specialized", "warpgroup", "295 TFLOP/s; one stage without a producer 404"),
    ("decode attention", f"64x4096, {HEADS}, contiguous", "split_unified_maximum", "split_tensor_core",
     "4.18 TB/s; with a running maximum 4.35"),
    ("matmul", "8x6144x4096, bfloat16", "gemv", "flat", "2.43 TB/s; flat GEMM 3.69"),
    ("matmul", "256x6144x4096, bfloat16", "flat", "wgmma", "2.15 TB/s; wgmma 2.63"),
]  # fmt: skip


def value(benchmark, case, variant):
    (found,) = [row["value"] for row in ROWS if (row["benchmark"], row["case"], row["variant"]) == (benchmark, case, variant)]
    return found


@pytest.mark.parametrize("benchmark, case, idea, winner, words", LOST, ids=lambda part: part if part in ("gemv", "flat") else None)
def test_a_recorded_idea_lost_by_these_figures(benchmark, case, idea, winner, words):
    slower, faster = value(benchmark, case, idea), value(benchmark, case, winner)
    assert slower < faster and words in PAGE
    first, last = words.split()[0], words.split()[-1]
    assert float(first) == pytest.approx(slower, rel=0.005) and float(last) == pytest.approx(faster, rel=0.005)


def test_an_eight_bit_float_costs_as_much_as_four_bits():
    e5m2, int8, int4 = (value(*ACCURACY, name) for name in ("fp8_e5m2", "int8", "int4"))
    assert f"+{e5m2:.2f} %; int8 +{int8:.2f} %" in PAGE and f"int4 costs +{int4:.2f} %" in PAGE


def test_virtual_memory_is_slower_than_a_contiguous_cache():
    (row,) = [
        row
        for row in ROWS
        if row["benchmark"] == "decode attention, virtual cache" and row["case"].startswith("1 x 8192") and "32 layers" in row["variant"]
    ]
    assert f"{row['value']:.2f} TB/s, {row['ratio']:.2f} of a contiguous cache" in PAGE and row["ratio"] < 1
