"""The benchmark of the simulator: its rows, its exit status, that the budgets hold here, and the suite that it times."""

import functools
import io
import json
import sys

import numpy as np
import pytest
from numba import cuda, float32
from typer.testing import CliRunner

from minllm.bench import simulator, simulator_engines, simulator_suite
from minllm.bench.simulator import CASES, Case, best_seconds
from minllm.cli.app import app
from minllm.errors import InvalidOptionError, SimulationError
from minllm.runtime.kernel import kernel, launch
from minllm.sim import simulate

RUNNER = CliRunner()


@pytest.fixture
def cases(monkeypatch):
    """Replaces the benchmark's cases by those that it is called with."""
    return lambda *chosen: monkeypatch.setattr(simulator.run, "__defaults__", (False, chosen, ()))


def bench(*arguments):
    return RUNNER.invoke(app, ["bench", "simulator", *map(str, arguments)])


def test_a_tile_of_the_tensor_core_product_stays_in_its_budgets():
    tile = CASES[0]
    assert best_seconds(tile.run, False, 2) < tile.budget
    assert best_seconds(tile.run, True, 1) < tile.budget_detecting


def test_a_vector_sum_runs_100_000_threads_per_second():
    case = next(case for case in CASES if "vectors" in case.name)
    assert best_seconds(case.run, False, 2) < case.budget
    assert best_seconds(case.run, True, 1) < case.budget_detecting


def test_the_kernel_of_the_tests_is_found():
    """Its budgets are held by tests/ptx/test_hopper_kernels.py."""
    (case,) = (case for case in CASES if case.in_tests)
    case.run()


def test_rows_carry_the_budgets(tmp_path, cases):
    ran = []
    cases(Case("quick", lambda: ran.append(1), 1.0, 5.0), Case("unlimited", lambda: None))
    result = bench("--repeats", 2, "--json", tmp_path / "record.json")
    assert result.exit_code == 0 and "quick" in result.stdout
    assert len(ran) == 6
    rows = json.loads((tmp_path / "record.json").read_text())["rows"]
    assert [(row["case"], row["variant"], row["limit"]) for row in rows] == [
        ("quick", "detectors off", 1.0),
        ("quick", "detectors on", 5.0),
        ("unlimited", "detectors off", None),
        ("unlimited", "detectors on", None),
    ]


def test_json_to_standard_output_is_all_that_is_there(cases):
    cases(Case("quick", lambda: None))
    assert json.loads(bench("--json", "-").stdout)["rows"][0]["case"] == "quick"


def test_an_overrun_budget_fails(cases):
    cases(Case("slow", lambda: sum(range(100_000)), 1e-9, 5.0))
    assert bench("--repeats", 1).exit_code == 1


def test_a_file_that_cannot_be_written_is_one_line(tmp_path, cases):
    cases(Case("quick", lambda: None))
    result = bench("--json", tmp_path / "no" / "record.json")
    assert result.exit_code == 1 and result.stderr.startswith("minllm: ")


def test_outside_a_clone_what_needs_one_is_left_out_or_refused(monkeypatch, tmp_path, cases):
    monkeypatch.setattr(simulator_suite.has_tests, "__defaults__", (tmp_path,))
    monkeypatch.setattr(simulator_suite.require_suite, "__defaults__", (tmp_path,))
    cases(Case("quick", lambda: None), Case("of the tests", lambda: 1 / 0, in_tests=True))
    result = bench()
    assert result.exit_code == 0 and "of the tests" in result.stderr and "of the tests" not in result.stdout
    result = bench("--suite")
    assert result.exit_code == 1 and "clone of the repository" in result.stderr and not result.stdout


def test_the_suite_names_a_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(simulator_suite.PACKAGES, "no_such_package", "no-such-package")
    with pytest.raises(InvalidOptionError, match="no-such-package is not installed"):
        simulator_suite.require_suite()


@pytest.mark.parametrize("code, passed", [("pass", True), ("raise SystemExit(1)", False)])
def test_the_suite_is_timed_and_its_failure_fails(code, passed, monkeypatch, cases):
    work = f"sum(range(10**6)); {code}"
    monkeypatch.setattr(simulator_suite, "PACKAGES", {})
    monkeypatch.setattr(simulator_suite, "command", lambda folders: [sys.executable, "-c", work])
    cases(Case("quick", lambda: None))
    result = bench("--suite", "--json", "-")
    clock, processors = json.loads(result.stdout)["rows"][-2:]
    assert result.exit_code == (not passed)
    assert (clock["limit"], clock["variant"]) == (600.0, "detectors on, 2 processes")
    assert 0 < processors["value"] or processors["variant"] == "of which processors worked"


@kernel
def racing_kernel(out):
    tile = cuda.shared.array(1, float32)
    tile[0] = cuda.threadIdx.x
    out[cuda.threadIdx.x] = tile[0]


def test_the_suite_runs_under_detectors():
    """tests/conftest.py enters them for every test: a launcher's kernel is watched although nobody asks for it."""
    assert (simulator_suite.ROOT / "tests" / "conftest.py").is_file()
    with pytest.raises(SimulationError, match="race on shared memory"):
        launch(racing_kernel, 1, 32, (np.empty(32, np.float32),))


def test_the_second_table_compares_the_engines():
    def copy(x, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x]

    def run():
        simulate(copy, 1, 32, np.ones(32), np.empty(32))

    out = io.StringIO()
    rows = simulator_engines.measure(1, (simulator_engines.EngineCase("a copy", run, 1, 1),), out)
    ways = "on", "off", "off, traced"
    assert [(row.variant, row.unit) for row in rows] == [(f"threads over lanes, detectors {way}", "x") for way in ways]
    assert all(row.value > 0 for row in rows) and out.getvalue().count("a copy") == 3


def test_launches_that_threads_run_are_listed_with_the_reason():
    def double(x, out):
        i = cuda.grid(1)
        if i < x.size:
            out[i] = x[i] + x[i]

    out = io.StringIO()
    launches = {str(block): functools.partial(simulate, double, 1, block, np.ones(4), np.zeros(4)) for block in (4, 32)}
    rows = simulator_engines.count_launches(launches, out)
    assert [row.value for row in rows] == [50.0, 50.0]
    assert "detectors on: 50.0% of 2 run in lanes, all but\n    1 of double: fewer than 8 threads\n" in out.getvalue()
