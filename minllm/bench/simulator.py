"""`minllm bench simulator`: the speed of the simulator on this machine, without and with detectors.

Needs no GPU. The test suite runs kernels in the simulator, so some cases have a budget, in seconds of one core. Each case runs once to warm
up; the result is the best of the runs after it. The whole suite (simulator_suite.py) has a budget too. A second table compares the
simulator's two engines (simulator_engines.py).

The wgmma case and the suite use kernels from the tests, which exist in a clone of the repository but not in an installed package.
"""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from minllm.bench import simulator_engines, simulator_suite
from minllm.bench.record import Row, stream, write_rows
from minllm.bench.simulator_engines import CASES as ENGINE_CASES
from minllm.bench.simulator_engines import THREADS, EngineCase, best_seconds, vector_sum
from minllm.bench.simulator_engines import normal as normal_of
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.matmul import tensor_core
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.normalization.rms_norm import rms_norm

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
normal = functools.partial(normal_of, dtype=BFLOAT16)
COLUMNS = "{:<56} {:<26} {:>9} {:>9} {:>10}"


@dataclass(frozen=True)
class Case:
    """One launch, and its optional budgets in seconds without and with detectors."""

    name: str
    run: Callable[[], None]
    budget: float | None = None
    budget_detecting: float | None = None
    in_tests: bool = False  # whether its kernel is in the tests, which only a clone has


def tensor_core_tile() -> None:
    """One block of the tensor-core GEMM."""
    tiling = tensor_core.TensorCoreTiling(128, 128, 32, warps_m=2, warps_n=2, stages=4)
    tensor_core.matmul_tensor_core(normal(0, 128, 128), normal(1, 128, 128), np.empty((128, 128), BFLOAT16), tiling=tiling)


def causal_attention() -> None:
    """384 queries of one head over their own keys."""
    tokens, head_dim, block_size = 384, 64, 16
    caches = [normal(seed, tokens // block_size, block_size, 1, head_dim) for seed in (1, 2)]
    flash_attention_2.attention(
        normal(0, tokens, 1, head_dim), *caches, np.empty((tokens, 1, head_dim), BFLOAT16),
        np.array([0, tokens], np.int32), np.array([tokens], np.int32),
        np.arange(tokens // block_size, dtype=np.int32)[None], head_dim**-0.5,
    )  # fmt: skip


def hopper_attention() -> None:
    """384 queries of one head over their own keys, by TMA copies, mbarriers and wgmma."""
    with simulator_suite.tests_importable():
        from tests.conftest import Simulator
        from tests.ptx.cases_hopper import attention_arguments, run_attention

    arguments, _ = attention_arguments(1, 1, 384, Simulator())
    run_attention(arguments)


def matrix_vector() -> None:
    """64 outputs of a decode step's GEMV."""
    gemv.matmul_gemv(normal(0, 1, 4096), normal(1, 64, 4096), np.empty((1, 64), BFLOAT16))


def normalization() -> None:
    """RMSNorm of four tokens."""
    rms_norm(normal(0, 4, 4096), normal(1, 4096), np.empty((4, 4096), BFLOAT16), 1e-5)


CASES = (
    Case("a 128x128x128 tile on tensor cores (mma.sync)", tensor_core_tile, 1.0, 5.0),
    Case("384 causal queries of attention by wgmma, head_dim 128", hopper_attention, 0.5, 3.0, in_tests=True),
    Case("384 causal queries of FlashAttention-2, head_dim 64", causal_attention),
    Case("64 outputs of a matrix-vector product, K = 4096", matrix_vector),
    Case("RMS norm of 4 tokens of 4096", normalization),
    Case(f"the sum of two vectors, {THREADS:,} threads", vector_sum, 0.65, 1.6),
)


def measure(cases: tuple[Case, ...], repeats: int) -> list[Row]:
    """Two rows per case: without and with detectors."""
    rows = []
    for case in cases:
        for detect, budget in ((False, case.budget), (True, case.budget_detecting)):
            seconds = best_seconds(case.run, detect, repeats)
            variant = "detectors on" if detect else "detectors off"
            of_budget = seconds / budget if budget else None
            rows.append(Row("simulator", case.name, variant, round(seconds, 4), "s", limit=budget, of_limit=of_budget))
    return rows


def run(
    repeats: int,
    json_file: Path | None,
    suite: bool = False,
    cases: tuple[Case, ...] = CASES,
    engine_cases: tuple[EngineCase, ...] = ENGINE_CASES,
) -> bool:
    """Measure, print the table, and if requested write the record; returns whether all budgets hold.

    suite: also run and time the whole suite of simulated kernels. Raises InvalidOptionError, before measuring anything, if the suite
    is requested and missing.
    """
    out = stream(json_file)
    if suite:
        simulator_suite.require_suite()
    present = tuple(case for case in cases if simulator_suite.has_tests() or not case.in_tests)
    for case in cases:
        if case not in present:
            print(f"left out, its kernel stands in the tests of a clone of the repository: {case.name}", file=sys.stderr)
    rows = measure(present, repeats)
    passed = True
    if suite:
        suite_rows, passed = simulator_suite.measure()
        rows += suite_rows
    print(COLUMNS.format("case", "variant", "seconds", "allowed", "of allowed"), file=out)
    for row in rows:
        budget, share = (f"{row.limit:.1f}", f"{row.of_limit:.0%}") if row.limit else ("", "")
        print(COLUMNS.format(row.case, row.variant, f"{row.value:.3f}", budget, share).rstrip(), file=out)
    print(file=out)
    rows += simulator_engines.measure(repeats, engine_cases, out)
    if engine_cases and simulator_suite.has_tests():
        with simulator_suite.tests_importable():
            from tests.sim.every_kernel import ROWS
        print(file=out)
        rows += simulator_engines.count_launches({name: one.run for name, one in ROWS.items()}, out)
    write_rows(json_file, "cpu", {}, rows)
    return passed and not any(row.of_limit is not None and row.of_limit > 1 for row in rows)
