"""What lessons time with: the host's clock anywhere, the GPU's own only where there is one."""

from types import SimpleNamespace

import pytest

from minllm.course import kernel_seconds, machine, sets_of_arrays, timed
from minllm.errors import DeviceError
from minllm.runtime.device import is_available


def test_timed_is_a_median_that_leaves_the_first_call_out(monkeypatch):
    clock, seconds = [0.0], iter([0.2, 1.0, 20.0, 3.0])
    monkeypatch.setattr(machine, "time", SimpleNamespace(perf_counter=lambda: clock[0]))

    def work():
        clock[0] += next(seconds)

    assert timed(work, repeats=3) == 3.0


@pytest.mark.skipif(is_available(), reason="there is a GPU here")
def test_the_clock_of_a_gpu_needs_a_gpu():
    for call in (lambda: kernel_seconds(lambda stream: None), lambda: sets_of_arrays(1000)):
        with pytest.raises(DeviceError, match="no usable NVIDIA GPU"):
            call()
