"""Every launch of the catalogue in the simulator, at odd sizes, against its reference and an independent oracle."""

from dataclasses import replace

import numpy as np
import pytest

from minllm.catalogue import odd_launches, small_launches
from minllm.catalogue.activation import silu
from minllm.sim.engines import launches
from minllm.sim.lanes.engine import SUSPICION
from tests.kernels.guarded import FLOAT32
from tests.kernels.launches import check, options_of, sizes_of


@pytest.fixture(autouse=True)
def lanes_suspect_races_at_most():
    """No kernel looks wrong to the lanes: the threads, to which they would send it, take ten times as long to clear it.

    A race may: the lanes know the order of accesses less exactly.
    """
    yield
    assert not [why for _, why in launches if why and why.startswith(SUSPICION) and "race" not in why]


@pytest.mark.parametrize("launch", small_launches(), ids=str)
def test_results(launch, device):
    check(launch, device)


@pytest.mark.detected.with_args(options_of)
@pytest.mark.covering.with_args(options_of, sizes_of)
@pytest.mark.parametrize("launch", odd_launches(), ids=str)
def test_results_of_odd_sizes(launch, device):
    check(launch, device)


def test_wrong_launches_are_found(device):
    """A kernel that writes nothing, one that changes its input, a reference that is a little off, one that writes into its arguments."""
    right = silu(2, 5, FLOAT32)

    def spoils_its_input(ops, gate_up, out):
        right.call(ops, gate_up=gate_up, out=out)
        gate_up[1, 2] = 0

    def spoils_its_arguments(gate_up, out):
        out[:] = right.reference(gate_up=gate_up, out=out)["out"]
        return dict(out=out)

    wrong = (
        dict(call=lambda ops, gate_up, out: None),
        dict(call=spoils_its_input),
        dict(reference=lambda gate_up, out: dict(out=right.reference(gate_up=gate_up, out=out)["out"] * np.float32(1.0001))),
        dict(reference=spoils_its_arguments),
    )
    for change in wrong:
        with pytest.raises(AssertionError):
            check(replace(right, **change), device)
