"""The benchmarks of all kernels on a device, at tiny sizes: their checks, their clock, and a row."""

import numpy as np
import pytest

from minllm.catalogue.noise import Noise
from tests.bench.tiny_cases import TINY_CASES, name_of


@pytest.mark.covering("case.benchmark")
@pytest.mark.parametrize("case", TINY_CASES, ids=name_of)
def test_results_are_right(case):
    from minllm.ops.cuda_ops import CudaOps

    prepared = case.prepare(CudaOps(), Noise(length=10007), 2)
    for launch in prepared.launches:
        launch()
        if launch is prepared.launches[0]:
            assert prepared.error(prepared.result()) <= case.allowed_error


@pytest.mark.alone
def test_a_row_is_measured():
    from minllm.bench.kernels import KernelBench
    from minllm.bench.timing import CudaClock
    from minllm.ops.cuda_ops import CudaOps

    case = next(case for case in TINY_CASES if case.variant == "rms_norm")
    row = KernelBench(CudaOps(), CudaClock(), 2**16, {"copy_tb_s": 4.0, "bf16_tflops": None}).row(case)
    assert 0 < row.value < 4 and row.of_limit == pytest.approx(row.value / 4, rel=1e-2) and row.peer is None


@pytest.mark.alone
def test_the_clock_tells_long_from_short():
    from minllm.bench.timing import CudaClock, median_seconds
    from minllm.runtime.memory import empty
    from minllm.runtime.stream import fill_words_later

    clock = CudaClock()
    short, long = (empty((count,), np.float32) for count in (2**20, 2**28))
    first, second = (median_seconds([lambda a=array: fill_words_later(a, 0, clock.stream)], clock) for array in (short, long))
    assert 0 < 20 * first < second < 1
