"""Codes and recent keys together, simulated, against float64 attention over what each row must see."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import residual_window
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.window_cases import WindowCase, make_window_arrays
from tests.kernels.attention.window_runs import run_window

R, G = 32, 32
ROWS = (1,) * 8
EDGES = (1, R - 1, R, R + 1, R + G - 1, R + G, 0, 3 * G + R + 5)  # of contexts: the first code comes with R + G keys
DECODES = [
    WindowCase(ROWS, EDGES, "int8", dtype=BFLOAT16),
    WindowCase(ROWS[:3], (40, 97, 130), "int4", R, heads=8, kv_heads=1, head_dim=64, block_size=64, sliding_window=50, dtype=FLOAT16),
    WindowCase(ROWS[:2], (161, 64), "fp8_e4m3", 64, heads=2, kv_heads=2, head_dim=80, dtype=BFLOAT16, block_size=16),
]
PROMPTS = [
    WindowCase((70, 1, 0, 33), (70, 96, 5, 101), "int8", heads=2, kv_heads=1, dtype=BFLOAT16),
    WindowCase((5, 20), (129, 84), "int4", R, heads=4, kv_heads=2, sliding_window=45, dtype=FLOAT16),
    WindowCase((3, 0), (70, 0), "fp8_e5m2", 64, heads=1, kv_heads=1, head_dim=80, dtype=BFLOAT16, block_size=16),
]


@pytest.mark.parametrize("case", DECODES, ids=str)
def test_decode_steps(device, case):
    run_window(device, case)


@pytest.mark.parametrize("case", PROMPTS, ids=str)
def test_prompts(device, case):
    run_window(device, case)
