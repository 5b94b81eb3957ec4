"""What lessons time with: the host's clock anywhere, the GPU's own only where there is one."""

import time

import pytest

from minllm.course import kernel_seconds, sets_of_arrays, timed
from minllm.errors import DeviceError
from minllm.runtime.device import is_available


def test_timed_is_a_median_that_leaves_the_first_call_out():
    seconds = iter([0.2, 0.0, 0.02, 0.0])
    assert timed(lambda: time.sleep(next(seconds)), repeats=3) < 0.015


@pytest.mark.skipif(is_available(), reason="there is a GPU here")
def test_the_clock_of_a_gpu_needs_a_gpu():
    for call in (lambda: kernel_seconds(lambda stream: None), lambda: sets_of_arrays(1000)):
        with pytest.raises(DeviceError, match="no usable NVIDIA GPU"):
            call()
