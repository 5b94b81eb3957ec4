"""The driver's question is asked of a library; here one that is missing, and one that we compile by hand in ctypes' stead."""

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from minllm.machine import driver


class FakeLibrary:
    """libcuda with the answers that a test wants."""

    def __init__(self, version=13000, devices=1, init_status=0):
        self.version, self.devices, self.init_status = version, devices, init_status

    def cuInit(self, flags):
        return self.init_status

    def cuDeviceGetCount(self, count):
        count._obj.value = self.devices
        return 0

    def cuDriverGetVersion(self, version):
        version._obj.value = self.version
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = b"NVIDIA H200"
        return 0


@pytest.mark.parametrize(("number", "version"), [(12020, (12, 2)), (12090, (12, 9)), (13000, (13, 0)), (13010, (13, 1)), (11080, (11, 8))])
def test_version_is_read_from_the_drivers_number(monkeypatch, number, version):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary(number))
    assert driver.cuda_version() == version


@pytest.mark.parametrize("library", [FakeLibrary(devices=0), FakeLibrary(init_status=100), FakeLibrary(init_status=999)])
def test_a_driver_without_a_gpu_is_no_driver(monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with pytest.raises(driver.NoDriver):
        driver.cuda_version()


def test_the_device_is_named_as_the_driver_names_it(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeLibrary())
    assert driver.device_name() == "NVIDIA H200"


def test_a_missing_library_is_no_driver():
    with pytest.raises(driver.NoDriver, match="does not load"):
        driver.cuda_version("libthat-does-not-exist.so.1")


@pytest.mark.parametrize(("version", "extra"), [((11, 8), ""), ((12, 0), "cu12"), ((12, 9), "cu12"), ((13, 0), "cu13"), ((14, 1), "cu13")])
def test_wheels_never_exceed_the_drivers_major_version(version, extra):
    assert driver.fitting_extra(version) == extra


def test_the_script_runs_alone_with_the_standard_library():
    script = Path(driver.__file__)
    done = subprocess.run([sys.executable, "-I", "-S", str(script)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("", "cu12", "cu13")
