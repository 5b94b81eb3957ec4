"""Every planted bug is found, no correct twin raises an alarm, and the page of the simulator says so with this table."""

from pathlib import Path

import pytest

from minllm.errors import SimulationError
from tests.sim.planted_bugs import CASES, run

PAGE = Path(__file__).parents[2] / "docs" / "simulator.md"
BEGIN, END = "<!-- planted bugs: begin -->", "<!-- planted bugs: end -->"
IDS = [case.make.__name__ for case in CASES]


def complaint(case, bug):
    """What the simulator says under all detectors, in its default engine; None if nothing."""
    try:
        run(case, bug)
    except SimulationError as error:
        return str(error)
    return None


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_a_planted_bug_is_found(case):
    with pytest.raises(SimulationError, match=case.message):
        run(case, True)


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_its_correct_twin_raises_no_alarm(case):
    assert complaint(case, False) is None


def table():
    """The table of the page."""
    rows = ["| Kernel | Planted bug | Found | Alarm for the correct twin |", "| --- | --- | --- | --- |"]
    found = [(case, complaint(case, True), complaint(case, False)) for case in CASES]
    for case, bug, twin in found:
        name = case.make.__name__.replace("_", " ")
        rows.append(f"| {name} | {case.bug} | {'yes' if bug else 'no'} | {'no' if twin is None else 'yes'} |")
    bugs, alarms = sum(bug is not None for _, bug, _ in found), sum(twin is not None for _, _, twin in found)
    rows.append(f"| **{len(CASES)} kernels** | | **{bugs} of {len(CASES)}** | **{alarms} of {len(CASES)}** |")
    return "\n".join(rows)


def test_the_page_has_the_table_of_this_run():
    text = PAGE.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()
