"""What lessons time with: the host's clock anywhere, the GPU's own only where there is one."""

from functools import partial
from types import SimpleNamespace

import pytest

from minllm.course import kernel_seconds, machine, product_rates, sets_of_arrays, timed
from minllm.errors import DeviceError, KernelArgumentError
from minllm.kernels import matmul
from minllm.ops import cuda_ops
from minllm.runtime.device import is_available


def test_timed_is_a_median_that_leaves_the_first_call_out(monkeypatch):
    clock, seconds = [0.0], iter([0.2, 1.0, 20.0, 3.0])
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def work():
        clock[0] += next(seconds)

    assert timed(work, repeats=3) == 3.0


@pytest.mark.skipif(is_available(), reason="there is a GPU here")
def test_the_clock_of_a_gpu_needs_a_gpu():
    for call in (lambda: kernel_seconds(lambda stream: None), lambda: sets_of_arrays(1000), lambda: product_rates(["naive"], 8, 8, 8)):
        with pytest.raises(DeviceError, match="no usable NVIDIA GPU"):
            call()


def test_rates_of_products_are_of_all_sets_and_name_what_does_not_run(monkeypatch):
    """In the simulator, by a clock on which a launch takes a microsecond."""
    launched = []

    def a_microsecond(*launches):
        launched.extend(launch(None) for launch in launches)
        return 1e-6

    def refuse(x, weight, out, stream):
        raise KernelArgumentError("no such rows")

    for name, value in dict(sets_of_arrays=lambda nbytes: 2, kernel_seconds=a_microsecond).items():
        monkeypatch.setattr(machine, name, value)
    monkeypatch.setattr(cuda_ops, "CudaOps", partial(cuda_ops.CudaOps, simulated=True))
    monkeypatch.setattr(matmul, "VARIANTS", dict(naive=matmul.VARIANTS["naive"], refused=refuse))
    rates = product_rates(["naive", "refused"], 40, 60, 80)
    assert rates == dict(naive="    0.38 TFLOP/s", refused="not on this GPU: no such rows") and len(launched) == 2
