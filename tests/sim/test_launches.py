"""How a launch is run: spread over processes, with progress where it is long, and under pdb."""

import multiprocessing
import os
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from numba import cuda

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import intrinsic
from minllm.sim import processes, progress, simulate
from minllm.sim.monitor import Monitor


def double(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[i] = 2 * x[i]


def scale_by(factor):
    """A kernel with a closure, a device function and an intrinsic of its own."""

    @cuda.jit(device=True)
    def scaled(value):
        return value * factor

    @intrinsic
    def halved(context, value):
        return value(value), lambda context, builder, signature, arguments: arguments[0]

    halved.emulation = lambda value: value / 2

    @cuda.jit
    def scale_kernel(arrays, rows):
        i = cuda.grid(1)
        if i < arrays[0].size:
            arrays[1][i] = halved(scaled(arrays[0][i])) + rows[i, 0]

    return scale_kernel


@pytest.fixture(params=["fork", "spawn"])
def start_method(request, monkeypatch):
    """How processes start; Windows has spawn alone."""
    if request.param not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork")
    monkeypatch.setattr(processes, "START_METHOD", request.param)


@pytest.mark.parametrize("number", [2, 9])
def test_blocks_spread_over_processes_give_the_same(number):
    x, out = np.arange(21, dtype=np.float32), np.zeros(21, np.float32)
    simulate(double, 6, 4, x, out, processes=number)
    assert out.tolist() == (2 * x).tolist()


def test_an_array_that_is_passed_twice_stays_one():
    x = np.arange(21, dtype=np.float32)
    simulate(double, 6, 4, x, x, processes=2)
    assert x.tolist() == list(range(0, 42, 2))


def test_kernels_with_closures_arrays_in_tuples_and_views_reach_other_processes(start_method):
    x, out, rows = np.arange(7, dtype=np.float32), np.zeros((7, 2), np.float32), np.ones((7, 3), np.float32)[:, ::2]
    x.flags.writeable = False
    simulate(scale_by(3), 2, 4, (x, out[:, 1]), rows, processes=2)
    assert out.tolist() == [[0, 1.5 * i + 1] for i in range(7)]


def test_an_error_in_another_process_is_raised_here(start_method):
    def reach(out):
        out[cuda.blockIdx.x * 2] = 1

    with pytest.raises(SimulationError, match=r"out of bounds for the global array out .*block \(3, 0, 0\)"):
        simulate(reach, 4, 1, np.zeros(6, np.int32), processes=2)


def test_what_cannot_reach_another_process_is_refused(monkeypatch):
    monkeypatch.setattr(processes, "START_METHOD", "spawn")
    lock = threading.Lock()

    def locked(out):
        out[0] = lock is None

    with pytest.raises(SimulationError, match="cannot be sent to another process.*lock.*leave `processes` at 1"):
        simulate(locked, 2, 1, np.zeros(1), processes=2)


def test_a_script_whose_launches_spread_runs_under_spawn(tmp_path, forked_python):
    script = tmp_path / "spread.py"
    script.write_text(
        "import numpy as np\nfrom numba import cuda\nfrom minllm.sim import processes, simulate\n"
        "processes.START_METHOD = 'spawn'\n"
        "def double(x):\n    x[cuda.grid(1)] *= 2\n"
        "if __name__ == '__main__':\n    x = np.ones(4)\n    simulate(double, 2, 2, x, processes=2)\n    print(x.tolist())\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[2.0, 2.0, 2.0, 2.0]\n", done.stderr


def test_launches_that_must_stay_in_one_process_say_why():
    def count(out):
        cuda.atomic.add(out, 0, 1)

    out = np.zeros(4, np.int32)
    with pytest.raises(SimulationError, match="its blocks speak to each other"):
        simulate(count, 4, 1, out, processes=2)
    with pytest.raises(SimulationError, match="monitors"):
        simulate(double, 4, 1, out, out, processes=2, monitors=[Monitor()])
    with pytest.raises(SimulationError, match="clusters"):
        simulate(double, 4, 1, out, out, processes=2, cluster=2)


@pytest.mark.parametrize("engine", ["lanes", "threads"])
def test_a_long_launch_shows_its_progress_before_its_first_block_ends(engine, monkeypatch, capsys):
    """Every thread of this kernel takes long; the background thread prints meanwhile."""
    monkeypatch.setattr(progress, "SECONDS", 0.02)
    monkeypatch.setattr(progress, "LOOK", 0.005)
    monkeypatch.setattr(progress, "_watchers", [])  # the thread of earlier launches may be in its longer sleep

    def slow(x, out, rounds):
        total = 0
        for i in range(rounds):
            total += x[i % 8]
        out[cuda.threadIdx.x] = total

    x, out = np.zeros(8, np.int64), np.zeros(8, np.int64)
    rounds, said = 1000, ""
    while not said and rounds < 10**6:  # a busy machine wakes the background thread late
        rounds *= 3
        simulate(slow, 1, 8, x, out, rounds, engine=engine)
        said = capsys.readouterr().err
    assert "simulating slow: none of 1 blocks is done after" in said
    monkeypatch.setenv("MINLLM_SIM_PROGRESS", "0")
    simulate(slow, 1, 8, x, out, rounds, engine=engine)
    assert capsys.readouterr().err == ""


def test_progress_estimates_the_rest():
    launch = progress.Progress("slow", 10)
    launch.started -= 30
    launch.done = 1
    assert str(launch) == "simulating slow: 1 of 10 blocks, about 270 s left; a smaller grid, or simulate(..., processes=2), takes less"
    launch.done = 6
    assert str(launch) == "simulating slow: 6 of 10 blocks, about 20 s left"


def test_pdb_steps_through_a_simulated_kernel(tmp_path, forked_python):
    """Breakpoint, stack, variables, and a step over a barrier, where other threads run in between."""
    script = tmp_path / "stepped.py"
    script.write_text(
        textwrap.dedent("""\
        import numpy as np
        from numba import cuda, float32
        from minllm.sim import simulate

        @cuda.jit(device=True)
        def halved(value):
            return value / 2

        def kernel(x, out):
            tile = cuda.shared.array(4, float32)
            i = cuda.threadIdx.x
            tile[i] = x[i]
            if i == 2:
                breakpoint()
            cuda.syncthreads()
            result = halved(tile[3 - i])
            out[i] = result

        out = np.zeros(4, np.float32)
        simulate(kernel, 1, 4, np.arange(4, dtype=np.float32), out)
        print("out", out.tolist())
        """)
    )
    commands = ["next", "p 'i is', i", "next", "p 'tile is', tile[3]", "step", "step", "p 'value is', float(value)", "where", "continue"]
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    done = subprocess.run(
        [sys.executable, str(script)], input="\n".join(commands) + "\n", capture_output=True, text=True, timeout=60,
        env={**os.environ, "PYTHONPATH": root, "PYTHONBREAKPOINT": "pdb.set_trace"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "('i is', 2)" in done.stdout and "out [1.5, 1.0, 0.5, 0.0]" in done.stdout
    assert re.search(r"stepped\.py\(1[5-7]\)kernel\(\)", done.stdout), done.stdout
