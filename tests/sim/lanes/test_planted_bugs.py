"""No planted bug escapes because the lanes run its launch, and no correct twin raises an alarm in them."""

import pytest

from minllm.errors import SimulationError
from minllm.sim.engines import launches
from tests.sim.planted_bugs import CASES, run


@pytest.mark.parametrize("case", CASES, ids=[case.make.__name__ for case in CASES])
def test_the_lanes_leave_a_planted_bug_to_the_threads(case):
    with pytest.raises(SimulationError, match=case.message):
        run(case, True, "lanes")
    assert callable(case.make(True)) or None not in [why for _, why in launches]
    run(case, False, "lanes")
