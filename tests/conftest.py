"""Where a kernel's test cases run: in the simulator here, on a device in tests/gpu."""

import numpy as np
import pytest

from minllm.sim import detecting


class Simulator:
    """Arrays stay NumPy arrays: a launcher that is given those runs its kernel in the simulator."""

    name = "simulator"

    def array(self, host):
        """`host` where kernels can reach it."""
        return np.array(host, order="C")  # a copy, as on a GPU: what a kernel writes never reaches what it is compared with

    def host(self, array):
        """The array's contents as NumPy."""
        return array


@pytest.fixture
def device():
    """Where the launchers of a test run their kernels; tests/gpu overrides it with the GPU."""
    return Simulator()


@pytest.fixture(autouse=True)
def detectors():
    """Every simulated kernel of every test runs under all detectors."""
    with detecting():
        yield


def pytest_terminal_summary(terminalreporter):
    """What the compiled kernels look like, after a run that compiled them."""
    from tests.compile.table import terminal_summary

    terminal_summary(terminalreporter)
