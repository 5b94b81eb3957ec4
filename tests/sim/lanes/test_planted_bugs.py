"""No planted bug escapes because the lanes run its launch, and no correct twin raises an alarm in them."""

import pytest

from minllm.errors import SimulationError
from minllm.sim import simulate
from minllm.sim.engines import launches
from tests.sim.planted_bugs import CASES


@pytest.mark.parametrize("case", CASES, ids=[case.make.__name__ for case in CASES])
def test_the_lanes_leave_a_planted_bug_to_the_threads(case):
    kernel, grid, block, arguments = case.make(True)
    with pytest.raises(SimulationError, match=case.message):
        simulate(kernel, grid, block, *arguments, detect=True, engine="lanes")
    assert None not in [why for _, why in launches]
    kernel, grid, block, arguments = case.make(False)
    simulate(kernel, grid, block, *arguments, detect=True, engine="lanes")
