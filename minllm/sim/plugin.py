"""A pytest plugin: `pytest -p minllm.sim.plugin` runs a project's tests with every launch of a `@cuda.jit` kernel simulated.

All detectors run too; `--no-detect` leaves them out.
"""

import pytest

from minllm.sim.numba_launches import simulated_launches


def pytest_addoption(parser):
    """Add the option --no-detect."""
    parser.addoption("--no-detect", action="store_true", help="simulate CUDA kernels without detectors")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session):
    """Simulate the launches of tests."""
    with simulated_launches(detect=not session.config.option.no_detect):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """Simulate the launches of test modules while they are imported."""
    with simulated_launches(detect=not session.config.option.no_detect):
        return (yield)
