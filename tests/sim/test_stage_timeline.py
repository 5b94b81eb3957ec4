"""The timeline of a pipeline that bulk copies fill: of a whole Hopper kernel, and what is drawn of rounds written here."""

from xml.etree import ElementTree

import pytest

from minllm.sim.trace_numbers import StageRound, Trace
from tests.ptx import hopper_matmul_kernel as matmul
from tests.ptx.cases_hopper import matmul_arguments

DEPTHS = 6  # tiles along k, through a ring of 4 stages


@pytest.fixture(scope="module")
def counts():
    from tests.conftest import Simulator

    arguments, _ = matmul_arguments(128, 256, DEPTHS * matmul.DEPTH, Simulator())
    return matmul.hopper_matmul_kernel.trace[1, matmul.THREADS, None, matmul.SHARED_BYTES](*arguments)


def test_each_tile_is_a_round_of_a_stage(counts):
    assert [(entry.stage, entry.round) for entry in counts.stages] == [(t % matmul.STAGES, t // matmul.STAGES) for t in range(DEPTHS)]
    assert {entry.bytes for entry in counts.stages} == {matmul.STAGE_BYTES}


def test_a_stage_is_filled_used_and_filled_again_in_this_order(counts):
    for entry in counts.stages:
        assert entry.issued < entry.arrived < entry.used < entry.done < counts.moments
    for stage in range(matmul.STAGES):
        rounds = [entry for entry in counts.stages if entry.stage == stage]
        assert all(first.done < second.issued for first, second in zip(rounds, rounds[1:]))


def test_the_producer_runs_ahead_by_the_depth_of_the_ring(counts):
    first = counts.stages[: matmul.STAGES]
    assert max(entry.issued for entry in first) < min(entry.arrived for entry in first)
    assert counts.stages[matmul.STAGES].issued > first[0].used  # the ring is full until its first stage is free


def test_text_and_picture_have_a_line_for_each_stage(counts):
    lines = counts.stage_timeline_text().splitlines()
    assert [line.split()[1] for line in lines[1:]] == ["0", "1", "2", "3"] and len({len(line) for line in lines[1:]}) == 1
    drawn = ElementTree.fromstring(counts.stage_timeline())
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [f"stage {stage}" in texts for stage in range(5)] == [True] * 4 + [False]


def trace_of(*rounds, moments):
    return Trace("kernel", (1, 1, 1), (1, 1, 1), 0, stages=[StageRound(*entry) for entry in rounds], moments=moments)


def test_letters_of_rounds():
    counts = trace_of((0, 0, 64, 7, 0, 2, 3, 5), (1, 0, 64, 7, 1, 4, 6, 6), (0, 1, 64, 7, 7, None), moments=9)
    assert counts.stage_timeline_text().splitlines()[1:] == ["stage 0   ccfuu..cc", "stage 1   .cccffu.."]
    hints = [title.text for title in ElementTree.fromstring(counts.stage_timeline()).iter("{http://www.w3.org/2000/svg}title")]
    assert "round 1, 64 bytes copied at line 7: copies under way" in hints


def test_without_bulk_copies_it_says_so():
    counts = trace_of(moments=0)
    with pytest.raises(ValueError, match="no bulk copies"):
        counts.stage_timeline()
    with pytest.raises(ValueError, match="no bulk copies"):
        counts.stage_timeline_text()
