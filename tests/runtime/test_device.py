"""What can be said of a device without one."""

import subprocess
import sys

import pytest

from minllm.errors import DeviceError, OutOfMemoryError
from minllm.runtime.device import check_driver, current_device, is_available, make_context


def test_asking_for_a_device_imports_nothing_of_cuda():
    code = "import sys; from minllm.runtime.device import is_available; is_available(); print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in modules if name.startswith(("numba", "cuda.core", "cuda.bindings"))]


@pytest.mark.skipif(is_available(), reason="there is a GPU here")
def test_without_a_device_the_error_says_what_to_do():
    with pytest.raises(DeviceError, match="minllm doctor"):
        current_device()


def test_driver_errors_are_named():
    from cuda.bindings import driver

    assert check_driver((driver.CUresult.CUDA_SUCCESS,), "wait") == ()
    assert check_driver((driver.CUresult.CUDA_SUCCESS, 7), "count") == 7
    assert check_driver((driver.CUresult.CUDA_SUCCESS, 1, 2), "measure") == (1, 2)
    with pytest.raises(DeviceError, match="could not count: CUDA_ERROR_INVALID_VALUE"):
        check_driver((driver.CUresult.CUDA_ERROR_INVALID_VALUE, None), "count")


@pytest.mark.parametrize(
    ("status", "error", "words"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY: unable to allocate", OutOfMemoryError, "GPU 1 has no memory left for a context.*CUDA_VISIBLE_DEVICES"),
        ("CUDA_ERROR_DEVICE_UNAVAILABLE: exclusive", DeviceError, "no context can be made on GPU 1: CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ],
)
def test_a_gpu_that_others_fill_is_named(status, error, words):
    class FullDevice:
        def set_current(self):
            raise RuntimeError(status)

    with pytest.raises(error, match=words):
        make_context(FullDevice(), 1)
