"""A pytest plugin: `pytest --minllm-sim`, or MINLLM_SIM=1 in the environment, runs a suite with every launch of a kernel simulated.

An installed minllm makes the plugin known to pytest; else `-p minllm.sim.plugin` does, and turns the simulation on.
"""

import contextlib
import os

import pytest

from minllm.sim.options import OPTIONS, SIMULATE, variables


def pytest_addoption(parser):
    """Add the options."""
    group = parser.getgroup("minllm", "simulated CUDA kernels")
    group.addoption("--minllm-sim", action="store_true", help="simulate the launches of numba.cuda kernels, with all detectors")
    for name, how in OPTIONS.items():
        group.addoption(f"--minllm-sim-{name}", **how)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Simulate from here, before a conftest.py imports numba.cuda, to the end of the run."""
    options = early_config.known_args_namespace
    if options.minllm_sim or __name__ in options.plugins or os.environ.get(SIMULATE, "0") not in ("", "0"):
        stack = contextlib.ExitStack()
        early_config.add_cleanup(stack.close)
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name, value in variables(options).items():
            patch.setenv(name, value)
        from minllm.sim.detectors import is_detecting  # these import Numba, which other runs do not need
        from minllm.sim.numba_launches import simulated_launches

        stack.enter_context(simulated_launches(detect=is_detecting()))
