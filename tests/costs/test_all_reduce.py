"""The time of an all-reduce: what the model says at its ends, and where algorithms cross; the bytes, against the simulator's counts."""

import math

import pytest

from minllm.catalogue.all_reduce import message
from minllm.catalogue.rows import BFLOAT16
from minllm.costs.all_reduce import Link, all_reduce_seconds, collective, crossing
from minllm.errors import InvalidOptionError

LINK = Link(2e-6, 400e9)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_latency_alone_and_bandwidth_alone(ranks):
    only_latency, only_bytes = Link(1.0, math.inf), Link(0.0, 1.0)
    steps = {name: all_reduce_seconds(name, 8, ranks, only_latency) for name in ("ring", "two_shot", "one_shot", "low_latency")}
    assert steps == {"ring": 2 * (ranks - 1), "two_shot": 2, "one_shot": 1, "low_latency": 0.5}
    moved = {name: all_reduce_seconds(name, ranks, ranks, only_bytes) for name in steps}
    assert moved["ring"] == moved["two_shot"] == 2 * (ranks - 1) <= moved["one_shot"] < moved["low_latency"]


@pytest.mark.parametrize(("few_steps", "few_bytes"), [("low_latency", "one_shot"), ("one_shot", "two_shot"), ("one_shot", "ring")])
def test_both_take_the_same_time_at_the_crossing(few_steps, few_bytes):
    size = crossing(few_steps, few_bytes, 4, LINK)
    assert all_reduce_seconds(few_steps, size, 4, LINK) == pytest.approx(all_reduce_seconds(few_bytes, size, 4, LINK))
    assert all_reduce_seconds(few_steps, size / 2, 4, LINK) < all_reduce_seconds(few_bytes, size / 2, 4, LINK)


def test_two_ranks_gain_nothing_from_a_second_shot():
    assert crossing("one_shot", "two_shot", 2, LINK) == math.inf


def test_bad_input():
    with pytest.raises(InvalidOptionError, match="no all-reduce is called 'tree'; there are ring, two_shot"):
        collective("tree", 2)
    with pytest.raises(InvalidOptionError, match="1 ranks: an all-reduce takes at least 2"):
        collective("ring", 1)


def test_the_bytes_are_those_that_the_simulator_counts():
    for name in ("one_shot", "two_shot"):
        asked = message(name, 2, 144, BFLOAT16).moved.asked
        assert asked["rank 0's staging[1]"] == collective(name, 2).traffic * asked["rank 0's x"]
