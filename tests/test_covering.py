"""The selection of cases: it misses no feature, is small, and is the same in every run."""

import itertools
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.covering import covering

CASES = st.lists(st.tuples(st.integers(0, 3), st.sampled_from("abc"), st.booleans()), max_size=40)


def features(case):
    number, letter, _ = case
    return [("number", number), ("both", number, letter)]


@given(CASES)
def test_no_feature_is_missed_and_no_case_is_idle(cases):
    chosen = covering(cases, features)
    met = {feature for case in chosen for feature in features(case)}
    assert met == {feature for case in cases for feature in features(case)}
    assert len(chosen) == len({case[:2] for case in cases})
    assert covering(chosen, features) == chosen


def test_one_case_with_all_features_is_enough():
    assert covering(["a", "abc", "bc"], list) == ["abc"]
    assert covering(["ab", "bc", "cd", "da"], list) == ["ab", "cd"]
    assert covering([], list) == []


@pytest.fixture(autouse=True)
def detectors():
    """None around the tests of this file: they look at which cases a run of pytest puts under detectors."""


def printed_by_pytest(capsys, folder, *options):
    """What pytest prints about a folder, in this process: another one would import Numba."""
    for name in ("conftest", "test_cases"):
        sys.modules.pop(name, None)  # this process may have imported that of another folder
    names = ("cacheprovider", "faulthandler", "unraisableexception")  # the last one collects garbage five times
    pytest.main(["-q", "--import-mode=importlib", *(f"-pno:{name}" for name in names), *options, str(folder)])
    return capsys.readouterr().out


FILE = """
import pytest

@pytest.mark.covering("x", "y", "x + z")
@pytest.mark.parametrize("x", [0, 1])
@pytest.mark.parametrize("y", [0, 1, 2])
@pytest.mark.parametrize("z", [0, 1])
def test_covered(x, y, z):
    pass

@pytest.mark.parametrize("x", range(5))
def test_all(x):
    pass
"""


@pytest.mark.parametrize(("option", "count"), [((), 4 + 5), (("--exhaustive",), 12 + 5)])
def test_pytest_runs_the_selection(tmp_path, capsys, option, count):
    (tmp_path / "test_cases.py").write_text(FILE)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_addoption, pytest_collection_modifyitems\n")
    listed = printed_by_pytest(capsys, tmp_path, "--collect-only", *option)
    assert listed.count("::") == count, listed


DETECTED = """
import pytest

@pytest.mark.detected("x")
@pytest.mark.parametrize("x", [0, 1])
@pytest.mark.parametrize("y", [0, 1, 2])
def test_some_under_detectors(x, y, detectors):
    from minllm.sim.detectors import is_detecting
    print("all detectors" if is_detecting() else "no detector")
"""


@pytest.mark.parametrize(("option", "count"), [((), 2), (("--exhaustive",), 6)])
def test_a_selection_runs_under_detectors_and_all_cases_run(tmp_path, capsys, option, count):
    (tmp_path / "test_cases.py").write_text(DETECTED)
    (tmp_path / "conftest.py").write_text("from tests.conftest import detectors, pytest_addoption, pytest_collection_modifyitems\n")
    printed = printed_by_pytest(capsys, tmp_path, "-s", *option)
    assert (printed.count("all detectors"), printed.count("no detector")) == (count, 6 - count), printed


def test_pairs_are_met_by_few():
    grid = list(itertools.product(range(4), range(4), range(4)))
    pairs = [(0, 1), (0, 2), (1, 2)]
    chosen = covering(grid, lambda case: [(i, j, case[i], case[j]) for i, j in pairs])
    assert 16 <= len(chosen) <= 24
