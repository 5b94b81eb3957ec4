"""Which cases run, and where a kernel's cases run: in the simulator here, on a device in tests/gpu.

`pytest` runs a covering selection of the long lists of cases (tests/covering.py), `pytest --exhaustive` runs all of them.
"""

import gc
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from minllm.machine.call_frames import with_room
from minllm.machine.collector import collect_rarely
from minllm.machine.numba_cuda import HAS_NUMBA_CUDA
from minllm.sim import detecting
from minllm.sim.engines import launches
from minllm.sim.lanes.engine import UNFORESEEN
from tests import forked_python as forks
from tests.covering import left_out, without_detectors

HERE = Path(__file__).parent
# Tests of the compiler and of NVIDIA's bindings, which macOS does not have: their imports fail there.
OF_CUDA = """bench/test_ceilings.py compile/test_inspect.py runtime/test_compile_ahead.py runtime/test_compiler.py
    runtime/test_numba_habits.py runtime/test_tensor_map.py sim/test_numba_launches.py sim/test_numba_types.py
    tiles/test_hopper_vocabulary.py""".split()

collect_rarely()
sys.modules["rfc3987_syntax"] = None  # jsonschema does without: importing it builds the grammars of IRIs, for 1.5 seconds

# What a time limit of hypothesis finds on a machine with other work is that work.
settings.register_profile("any load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("exhaustive", settings.get_profile("any load"), max_examples=400)


def pytest_configure(config):
    """Random tests that name no number of examples draw hypothesis's 100, with --exhaustive 400."""
    settings.load_profile("exhaustive" if config.option.exhaustive else "any load")


def pytest_itemcollected(item):
    """What a test takes does not depend on the depth at which it is called."""
    item.setup, item.runtest = with_room(item.setup), with_room(item.runtest)


class NeedsNumbaCuda(pytest.Module):
    """A file of tests that is skipped, and says why."""

    def collect(self):
        pytest.skip("numba-cuda is not installed: nothing is compiled", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    """Skip the files that need numba-cuda on machines without it."""
    if not HAS_NUMBA_CUDA and module_path.relative_to(HERE).as_posix() in OF_CUDA:
        return NeedsNumbaCuda.from_parent(parent, path=module_path)


def pytest_addoption(parser):
    parser.addoption("--exhaustive", action="store_true", help="run all cases of every test instead of a covering selection")
    parser.addoption("--soak-seconds", type=float, default=1200, help="how long the server's soak runs, with --exhaustive")
    parser.addoption("--compile-only", action="store_true", help="compile the kernels of tests/gpu, on a GPU, and run nothing")


def pytest_collection_modifyitems(config, items):
    """Deselect what the covering selections leave out; a case that is named on the command line stays."""
    if config.option.exhaustive or any("[" in argument for argument in config.args):
        return
    others = left_out(items)
    if others:
        config.hook.pytest_deselected(items=others)
        excluded = set(others)
        items[:] = [item for item in items if item not in excluded]
    for item in without_detectors(items):
        item.add_marker(pytest.mark.results_only)


def pytest_collection_finish(session):
    """Modules and test items stay to the end: the garbage collector need not look at them."""
    gc.freeze()


def pytest_sessionfinish(session):
    """pytest collects garbage five times at the end, a second each: once is enough to find objects whose finalisers fail."""
    forks.end_server()
    gc.collect()
    gc.freeze()


@pytest.fixture
def forked_python():
    """Children that are this Python need not start: they are forks of a server (tests/forked_python.py)."""
    with forks.forked_python():
        yield


@pytest.fixture
def only_new_objects():
    """`gc.collect()` looks at this test's objects alone: with those that earlier tests left in caches it takes seconds."""
    gc.freeze()


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


@pytest.fixture
def small_tiles(monkeypatch, request):
    """Launchers choose tiles that are quick to simulate (tests/ops/small_tiles.py); with --exhaustive those of a GPU."""
    if not request.config.option.exhaustive:
        from tests.ops.small_tiles import use_small_tiles

        use_small_tiles(monkeypatch)


@pytest.fixture(autouse=True)
def detectors(request):
    """Simulated kernels run under all detectors, but for cases marked results_only, whose kernels other cases run under them.

    A test's mark `detected` chooses these cases. Detectors nearly double a simulation's time. Accesses out of bounds and deadlocks are
    found without them too.
    """
    if request.node.get_closest_marker("results_only") and not request.config.option.exhaustive:
        yield
        return
    with detecting():
        yield


@pytest.fixture(autouse=True)
def lanes_foresee_their_errors():
    """No simulated launch went to the threads because the lanes have made an error."""
    launches.clear()
    yield
    assert not [launch for launch in launches if str(launch[1]).startswith(UNFORESEEN)]


def pytest_terminal_summary(terminalreporter):
    """Prints registers and occupancy of the kernels that the run compiled."""
    from tests.compile.table import terminal_summary

    terminal_summary(terminalreporter)
