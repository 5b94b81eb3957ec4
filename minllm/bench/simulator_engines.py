"""How many times faster the simulator's lanes are than its threads, for a few launches, with detectors, without, and traced.

Both engines run in one process, in turn; the factor is the quotient of their best CPU times. Targets are factors that a change of the lanes
should not lose. In a clone of the repository, each kernel's launch of the tests is run in lanes, and those that cannot are listed with the
reason.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

import ml_dtypes
import numpy as np
from numba import cuda

from minllm.bench.record import Row
from minllm.kernels.attention.ladder import materialized
from minllm.kernels.matmul.gemv import gemv
from minllm.kernels.matmul.ladder.tiled import tiled_kernel
from minllm.kernels.matmul.wgmma import wgmma
from minllm.sim import detecting, engines, simulate, tracing, using_engine

THREADS = 65_536
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
COLUMNS = "{:<56} {:<14} {:>9} {:>9} {:>8} {:>8}"


@dataclass(frozen=True)
class EngineCase:
    """A launch; the factors that the lanes should reach with detectors and without."""

    name: str
    run: Callable[[], None]
    target_detecting: float
    target: float


def normal(seed: int, *shape: int, dtype=np.float32) -> np.ndarray:
    """Normal noise."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tiled_product() -> None:
    """One block of the tiled GEMM."""
    out = np.empty((64, 64), np.float32)
    simulate(tiled_kernel(64, 32, 4), 1, 256, normal(0, 64, 64), normal(1, 64, 64), None, out)


def add_vectors_kernel(x, y, out):
    """out = x + y, one element per thread."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]


def vector_sum() -> None:
    """One thread per element: the cost of a thread that does almost nothing."""
    x = np.ones(THREADS, np.float32)
    simulate(add_vectors_kernel, THREADS // 256, 256, x, x, np.empty_like(x))


def matrix_vector() -> None:
    """One row of activations times a weight of 256 rows."""
    gemv.matmul_gemv(normal(0, 1, 1024, dtype=BFLOAT16), normal(1, 256, 1024, dtype=BFLOAT16), np.empty((1, 256), BFLOAT16))


def first_attention() -> None:
    """The prompt of 16 tokens of one head of 64 dimensions; P V has a block of 64 threads a token."""
    tokens, head_dim = 16, 64
    caches = [normal(seed, 1, tokens, 1, head_dim) for seed in (1, 2)]
    query, out = normal(0, tokens, 1, head_dim), np.empty((tokens, 1, head_dim), np.float32)
    table = np.zeros((1, 1), np.int32)
    materialized.attention(query, *caches, out, np.array([0, tokens], np.int32), np.array([tokens], np.int32), table, head_dim**-0.5)


def wgmma_pipeline() -> None:
    """Two tiles of a GEMM by a producer and two consumer warpgroups: TMA, mbarriers, wgmma, bulk stores."""
    m, n, k = 128, 256, 512
    x, weight, out = normal(0, m, k, dtype=BFLOAT16), normal(1, n, k, dtype=BFLOAT16), np.empty((m, n), BFLOAT16)
    wgmma.matmul_wgmma(x, weight, out, tiling=wgmma.WgmmaTiling(2, 128, 4))


CASES = (
    EngineCase("a tiled GEMM of 64x64x64", tiled_product, 40, 30),
    EngineCase(f"the sum of two vectors, {THREADS:,} threads", vector_sum, 40, 20),
    EngineCase("a bfloat16 GEMV of 1x256x1024", matrix_vector, 25, 15),
    EngineCase("the first rung of attention, 16 tokens, head_dim 64", first_attention, 8, 6),
    EngineCase("a wgmma pipeline of three warpgroups, 128x256x512", wgmma_pipeline, 5, 5),
)


def best_seconds(run: Callable[[], None], detect: bool, repeats: int) -> float:
    """CPU seconds of this process for `run`: the best of `repeats` runs after a warm-up."""
    times = []
    with detecting(detect):
        for _ in range(repeats + 1):
            start = time.process_time()
            run()
            times.append(time.process_time() - start)
    return min(times[1:])


def seconds(case: EngineCase, engine: str, detect: bool, traced: bool, repeats: int) -> float:
    """best_seconds of a launch in an engine."""
    with using_engine(engine), tracing() if traced else contextlib.nullcontext():
        return best_seconds(case.run, detect, repeats)


def count_launches(launches: dict[str, Callable[[], None]], out: TextIO | None = None) -> list[Row]:
    """Run launches of kernels in lanes, print how many have run there and why the threads had to run the others, and make rows.

    launches: by name. out: where to print, by default standard output.
    """
    rows = []
    for detect in (True, False):
        why = Counter()
        for run in launches.values():
            engines.launches.clear()
            with detecting(detect), using_engine("lanes"):
                run()
            why += engines.launches
        engines.launches.clear()
        total, left = why.total(), {key: count for key, count in why.items() if key[1] is not None}
        share = 1 - sum(left.values()) / total
        print(f"launches of every kernel, detectors {'on' if detect else 'off'}: {share:.1%} of {total} run in lanes, all but", file=out)
        for (name, reason), count in sorted(left.items()):
            print(f"    {count} of {name}: {reason.split(' (/')[0]}", file=out)
        variant = f"in lanes, detectors {'on' if detect else 'off'}"
        rows.append(Row("simulator", "launches of every kernel", variant, round(100 * share, 1), "%"))
    return rows


def measure(repeats: int, cases: tuple[EngineCase, ...] = CASES, out: TextIO | None = None) -> list[Row]:
    """Print a line and make a row for each case, with detectors, without, and traced. out: where to print, by default standard output."""
    print(COLUMNS.format("case", "detectors", "threads", "lanes", "factor", "target"), file=out)
    rows = []
    for case in cases:
        ways = ("on", True, False, case.target_detecting), ("off", False, False, case.target), ("off, traced", False, True, "")
        for detectors, detect, traced, target in ways:
            threads, lanes = (seconds(case, engine, detect, traced, repeats) for engine in ("threads", "lanes"))
            factor = threads / lanes
            numbers = f"{threads:.4f}", f"{lanes:.4f}", f"{factor:.1f}", f"{target}"
            print(COLUMNS.format(case.name, detectors, *numbers).rstrip(), file=out)
            rows.append(Row("simulator", case.name, f"threads over lanes, detectors {detectors}", round(factor, 2), "x"))
    return rows
