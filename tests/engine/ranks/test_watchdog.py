"""A step whose results never come ends all ranks, and says which peer was waited for."""

import gc
import threading
import time
from types import SimpleNamespace

import pytest

from minllm.engine.ranks.rank_runner import CheckedForward, LeadingRunner
from minllm.engine.ranks.watchdog import Watchdog
from minllm.errors import DeviceError
from minllm.parallel.processes import OtherRanks, RankError


class Others(OtherRanks):
    """Other ranks; their end lets this rank's device go on."""

    def __init__(self):
        self.failure, self.gone_on = None, threading.Event()

    def end(self, reason):
        self.failure = self.failure or reason
        self.gone_on.set()


def leading_runner(missing_peer):
    runner = LeadingRunner.__new__(LeadingRunner)
    runner.processes, runner.ops = Others(), SimpleNamespace(missing_peer=missing_peer)
    runner.watchdog = Watchdog(runner.give_up, seconds=0.05)
    return runner


def forward(wait, runner):
    return CheckedForward(SimpleNamespace(wait=wait), runner)


def test_a_device_that_waits_for_ever_ends_all_with_the_peer():
    runner = leading_runner(lambda: "rank 0 waited for rank 1")
    reason = "Rank 0 has waited 25 s for the results of a step, and all ranks have ended: rank 0 waited for rank 1"
    with pytest.raises(RankError, match=reason):
        forward(lambda: runner.processes.gone_on.wait(20), runner).wait()


def test_all_end_even_if_the_peer_cannot_be_told():
    runner = leading_runner(lambda: 1 / 0)
    threading.excepthook, kept = lambda _: None, threading.excepthook
    try:
        with pytest.raises(RankError, match="all ranks have ended: its cause is unknown"):
            forward(lambda: runner.processes.gone_on.wait(20), runner).wait()
    finally:
        threading.excepthook = kept


def test_a_fault_of_this_ranks_device_ends_all():
    """A peer that a kernel has waited for in vain; or, if a rank has ended, that is the reason."""

    def wait():
        raise DeviceError("rank 0 waited for rank 1 in an all-reduce")

    runner = leading_runner(str)
    with pytest.raises(RankError, match="rank 0 waited for rank 1 in an all-reduce") as error:
        forward(wait, runner).wait()
    assert isinstance(error.value.__cause__, DeviceError) and runner.processes.gone_on.is_set()
    runner = leading_runner(str)
    runner.processes.end("Rank 1 was ended by SIGKILL")
    with pytest.raises(RankError, match="^Rank 1 was ended by SIGKILL$"):
        forward(wait, runner).wait()


def test_results_in_time_are_returned_and_nothing_is_watched_in_between():
    runner = leading_runner(str)
    assert forward(lambda: "results", runner).wait() == "results"
    time.sleep(0.1)
    assert forward(lambda: "more", runner).wait() == "more" and runner.processes.failure is None


@pytest.mark.parametrize("end", ["close", "drop"])
def test_its_thread_ends_with_it(only_new_objects, end):
    acted = []
    watchdog = Watchdog(lambda: acted.append(True), seconds=0.05)
    thread = watchdog.thread
    if end == "close":
        watchdog.close()
    else:
        del watchdog
        gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive() and not acted
