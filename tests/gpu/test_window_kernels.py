"""Attention with a residual window on a GPU: the simulator's cases, real sizes, and the log-sum-exp of every kernel that tells it."""

import pytest

from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.log_sum_exp_runs import run_log_sum_exp
from tests.kernels.attention.test_log_sum_exp import LAUNCHES
from tests.kernels.attention.test_residual_window import DECODES, PROMPTS
from tests.kernels.attention.window_cases import WindowCase
from tests.kernels.attention.window_runs import run_window

REAL = dict(heads=16, kv_heads=4, residual_window=128, dtype=BFLOAT16)
STEPS = ((1,) * 8, (1, 127, 128, 159, 160, 0, 1501, 700))
CHUNKS = ((300, 1, 77, 0), (300, 170, 900, 0))
REAL_SIZES = [
    WindowCase(*STEPS, "int8", head_dim=128, **REAL),
    WindowCase(*STEPS, "int4", head_dim=256, sliding_window=500, **REAL),
    WindowCase(*STEPS, "fp8_e4m3", head_dim=64, block_size=16, **REAL),
    WindowCase((1,) * 40, tuple(1 + 37 * i % 900 for i in range(40)), "int8", head_dim=128, **REAL),
    WindowCase(*STEPS, head_dim=128, **REAL),
    WindowCase(*STEPS, head_dim=64, block_size=256, sliding_window=300, **REAL),
    WindowCase(*CHUNKS, head_dim=128, block_size=64, **REAL),
    WindowCase(*CHUNKS, head_dim=256, sliding_window=300, **REAL),
    WindowCase(*CHUNKS, head_dim=96, **REAL),
    WindowCase((1,), (3000,), "int4", head_dim=128, block_size=64, **REAL),
    WindowCase(*CHUNKS, "int8", head_dim=128, **REAL),
    WindowCase(*CHUNKS, "int4", head_dim=256, sliding_window=200, **REAL),
    WindowCase(*CHUNKS, "fp8_e4m3", head_dim=80, block_size=16, **REAL),
]


@pytest.mark.covering("case.name", "case.head_dim", "case.block_size", "case.dtype", "case.heads", "case.query_lens")
@pytest.mark.parametrize("case", [*REAL_SIZES, *DECODES, *PROMPTS], ids=str)
def test_residual_window(device, case):
    run_window(device, case)


@pytest.mark.parametrize(("module", "case", "name", "options"), LAUNCHES, ids=str)
def test_log_sum_exp(device, module, case, name, options):
    run_log_sum_exp(device, module, case, name, **options)
