"""Whole programs and test suites for numba.cuda under `python -m minllm.sim` and under the pytest plugin, and what they need installed."""

import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from minllm.sim.options import variables

ROOT = Path(__file__).parents[2]
NEEDED = {"numba-cuda", "numba", "numpy", "greenlet"}
PROGRAM = """
import os, sys
import numpy as np
from numba import config, cuda
from minllm.sim.engines import launches

SIMULATORS = os.environ.get("NUMBA_ENABLE_CUDASIM"), config.ENABLE_CUDASIM

@cuda.jit("void(float32[:], float32[:], float32)")
def scale(x, out, factor):
    i = cuda.grid(1)
    if i < x.size + EXTRA:
        out[i] = x[i] * factor

x = cuda.to_device(np.arange(100, dtype=np.float32))
out = cuda.device_array_like(x)
scale[4, 32](x, out, 0.5)
cuda.synchronize()
first = out.copy_to_host()[3]
"""
SAYS = "\nprint(__name__, first, sys.argv[1:], [why for _, why in launches], SIMULATORS)\n"
SUITE = """
import threading
from numba import config, cuda
import numpy as np

def test_scale():
    assert first == 1.5 and out.copy_to_host()[4] == 2

@cuda.jit
def write(x):
    x[0] = cuda.threadIdx.x

def test_a_race_in_a_thread():
    caught = []

    def launch():
        try:
            write[1, 32](np.zeros(1))
        except Exception as error:
            caught.append(error)

    thread = threading.Thread(target=launch)
    thread.start()
    thread.join()
    assert "race on global memory" in str(caught)
"""
# Runs with the modules that minllm requires beyond NEEDED hidden: both engines, a detector, a trace.
HIDDEN = """
import sys

class Hidden:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{name} is hidden")

sys.meta_path.insert(0, Hidden())
import numpy as np
from numba import cuda, float32
from numba.cuda.types import bfloat16
import minllm.sim
from minllm.sim.engines import launches
from minllm.errors import SimulationError

@cuda.jit
def turn(x, out):
    tile = cuda.shared.array((8, 8), float32)
    i, j = cuda.threadIdx.x, cuda.threadIdx.y
    tile[j, i] = x[j, i]
    cuda.syncthreads()
    out[j, i] = tile[i, j]

@cuda.jit
def narrow(x):
    local = cuda.local.array(1, bfloat16)
    x[0] = local[0]

x = np.arange(64, dtype=np.float32).reshape(8, 8)
for engine in ("lanes", "threads"):
    for detect in (False, True):
        out = minllm.sim.output((8, 8), np.float32)
        minllm.sim.simulate(turn, 1, (8, 8), x, out, detect=detect, engine=engine)
        assert (out == x.T).all()
assert launches == {("turn", None): 2}, launches
assert "in all" in str(minllm.sim.trace(turn, 1, (8, 8), x, out))
try:
    minllm.sim.simulate(narrow, 1, 1, x)
except SimulationError as error:
    assert "pip install ml_dtypes" in str(error)
else:
    raise AssertionError("bfloat16 without ml_dtypes")
assert not HIDDEN & {name.partition(".")[0] for name in sys.modules}
"""


def run(*arguments, folder, environment=()):
    """A finished run of Python in `folder` with the text of its output and errors; pytest loads no plugin that it is not told of."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MINLLM_SIM", "NUMBA_ENABLE"))}
    inherited["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=inherited | dict(environment), capture_output=True, text=True, encoding="utf-8"
    )


@pytest.fixture
def program(tmp_path):
    """A program that prints one of its results, and how it was run."""
    path = tmp_path / "scale.py"
    path.write_text(PROGRAM.replace("EXTRA", "0") + SAYS, encoding="utf-8")
    return path


def test_a_program_is_simulated_in_the_place_of_numbas_simulator(program, tmp_path):
    done = run("-m", "minllm.sim", "scale.py", "a", "-m", folder=tmp_path, environment={"NUMBA_ENABLE_CUDASIM": "1"})
    assert (done.returncode, done.stdout) == (0, "__main__ 1.5 ['a', '-m'] [None] ('1', 0)\n"), done.stderr


def test_a_module_is_simulated_by_the_engine_of_the_options(forked_python, program, tmp_path):
    done = run("-m", "minllm.sim", "--no-detect", "--engine=threads", "-m", "scale", "--engine", "x", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "__main__ 1.5 ['--engine', 'x'] [] (None, 0)\n"), done.stderr


def test_the_simulator_does_not_start_beside_numbas(tmp_path):
    done = run("-c", "from numba import cuda\nfrom minllm.sim import simulate", folder=tmp_path, environment={"NUMBA_ENABLE_CUDASIM": "1"})
    assert "SimulationError: numba.cuda has been imported with Numba's own simulator" in done.stderr


def test_a_programs_bug_is_one_message(forked_python, tmp_path):
    done = run("-m", "minllm.sim", "-c", PROGRAM.replace("EXTRA", "1"), folder=tmp_path)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "SimulationError: index [100] is out of bounds for the global array x" in done.stderr and "<string>:13 in scale" in done.stderr


def test_processes_that_a_program_starts_are_simulated(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('hidden', flush=True)", encoding="utf-8")
    inner = PROGRAM.replace("EXTRA", "0") + SAYS.replace("__name__", "'inner'")
    (tmp_path / "outer.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}, 'a'])\n", encoding="utf-8"
    )
    paths = {"PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))}
    printed = run("-m", "minllm.sim", "--no-detect", "--environment", folder=tmp_path, environment=paths).stdout.splitlines()
    printed_variables = dict(line.split("=", 1) for line in printed if line != "hidden")
    assert printed_variables["MINLLM_SIM_DETECT"] == "0"
    done = run("outer.py", folder=tmp_path, environment=printed_variables | {"NUMBA_ENABLE_CUDASIM": "1"})
    assert done.stdout == "hidden\nhidden\ninner 1.5 ['a'] [None] ('1', 0)\n", done.stderr


def test_a_process_that_imports_minllm_before_numba_is_simulated(tmp_path):
    program = "import minllm.sim.arrays\n" + PROGRAM.replace("EXTRA", "0") + SAYS
    done = run("-c", program, folder=tmp_path, environment=variables(None))
    assert done.stdout == "__main__ 1.5 [] [None] (None, 0)\n", done.stderr


@pytest.fixture
def suite(tmp_path):
    """A folder with a test suite whose conftest.py imports numba.cuda."""
    (tmp_path / "conftest.py").write_text("from numba import cuda\n", encoding="utf-8")
    (tmp_path / "test_scale.py").write_text(PROGRAM.replace("EXTRA", "0") + SUITE, encoding="utf-8")
    return tmp_path


def test_a_suite_with_the_plugin(suite):
    done = run(*"-m pytest -q -p minllm.sim.plugin -p no:cacheprovider".split(), folder=suite, environment={"NUMBA_ENABLE_CUDASIM": "1"})
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_environment_turns_an_installed_plugin_on(forked_python, suite):
    installed = "import pytest, minllm.sim.plugin as plugin; pytest.main(['-q', '-p', 'no:cacheprovider'], plugins=[plugin])"
    done = run("-c", installed, folder=suite, environment={"MINLLM_SIM": "1", "MINLLM_SIM_DETECT": "0"})
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr


def test_the_plugin_costs_other_runs_of_pytest_nothing(tmp_path):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]["pytest11"]
    assert declared == {"minllm.sim.plugin": "minllm.sim.plugin"}
    done = run("-c", "import minllm.sim.plugin, sys; print('numpy' in sys.modules)", folder=tmp_path)
    assert done.stdout == "False\n", done.stderr


def test_the_simulator_needs_numba_numpy_and_greenlet_alone(tmp_path):
    required = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    names = {re.match(r"[\w-]+", one).group() for one in required}
    of_numba = {re.match(r"[\w-]+", one).group() for package in NEEDED - {"numpy"} for one in metadata.requires(package) or ()}
    hidden = {name.replace("-", "_") for name in names - NEEDED - of_numba}
    assert {"ml_dtypes", "rich", "typer", "jinja2"} <= hidden
    path = tmp_path / "alone.py"
    path.write_text(HIDDEN.replace("HIDDEN", repr(hidden)), encoding="utf-8")
    done = run(str(path), folder=tmp_path)
    assert done.returncode == 0, done.stderr
