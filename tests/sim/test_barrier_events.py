"""Recorded mbarrier events: of a whole kernel they balance, and they do not change what it computes or what a tracer counts."""

from collections import Counter

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.matmul.ladder.warp_specialized import STAGES, matmul_warp_specialized
from minllm.sim import tracing
from minllm.sim.barrier_events import ARRIVE, COPY, DONE, LAND, PASS, USE, WAIT, recording
from tests.ptx.cases_cluster import check_multicast

STEPS = 6


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(2)
    return [rng.standard_normal((rows, 64 * STEPS)).astype(ml_dtypes.bfloat16) for rows in (64, 256)]


@pytest.fixture(scope="module")
def recorder(arrays):
    out = np.empty((64, 256), np.float32)
    with recording() as recorder:
        matmul_warp_specialized(*arrays, out)
    x, weight = (array.astype(np.float64) for array in arrays)
    np.testing.assert_allclose(out, x @ weight.T, rtol=1e-5, atol=1e-3)
    return recorder


def test_every_copy_lands_and_every_wait_ends(recorder):
    events = recorder.events
    copies = [(event.barrier, event.phase, event.bytes) for event in events if event.kind == COPY]
    landed = [(event.barrier, event.phase, event.bytes) for event in events if event.kind == LAND]
    assert sorted(copies) == sorted(landed) and len(copies) == 2 * STEPS
    waited, passed = ({(one.warp, one.barrier, one.phase) for one in events if one.kind == kind} for kind in (WAIT, PASS))
    assert waited <= passed
    assert Counter(event.kind for event in events)[USE] == Counter(event.kind for event in events)[DONE] == STEPS


def test_barriers_of_copies_come_first_and_their_states_end_complete(recorder):
    assert len(recorder.barriers) == 2 * STAGES
    full, empty = recorder.barriers[:STAGES], recorder.barriers[STAGES:]
    assert {event.barrier for event in recorder.events if event.kind == COPY} == set(full)
    last = recorder.events[-1].states
    rounds = [len(range(stage, STEPS, STAGES)) for stage in range(STAGES)]
    assert [last[address].completed for address in full] == [last[address].completed for address in empty] == rounds
    assert all(one.bytes == 0 for one in last.values())


def test_an_arrival_that_completes_a_phase_shows_it(recorder):
    for event in recorder.events:
        state = event.states[event.barrier]
        if event.kind == PASS:
            assert state.completed > event.phase
        if event.kind == WAIT:
            assert state.completed <= event.phase
        if event.kind == ARRIVE and event.barrier in recorder.barriers[STAGES:]:
            assert state.completed == event.phase + 1  # the only arrival that "empty" waits for


def test_a_tracer_beside_it_counts_the_same(arrays):
    counted = []
    for also in (False, True):
        out = np.empty((64, 256), np.float32)
        with tracing() as traces:
            if also:
                with recording() as recorder:
                    matmul_warp_specialized(*arrays, out)
                assert recorder.events
            else:
                matmul_warp_specialized(*arrays, out)
        counted.append(traces[0].to_json())
    assert counted[0] == counted[1]


def test_a_barrier_of_a_cluster_is_no_mbarrier(device):
    with recording() as recorder:
        check_multicast(2, device)
    assert {event.kind for event in recorder.events} == {COPY, LAND, WAIT, PASS, ARRIVE}
