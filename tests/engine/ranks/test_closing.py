"""What closing a rank does, in which order: NCCL may wait for ever if its communicator is destroyed before graphs that captured it."""

import weakref
from types import SimpleNamespace

import pytest

from minllm.engine.build.engine import Engine
from minllm.engine.ranks.rank_runner import RankRunner
from minllm.parallel.cuda_ranks import TensorParallelCudaOps
from minllm.parallel.grid import Grid


class Graphs:
    """What captured NCCL's operations."""


def rank_runner(calls):
    """A runner with graphs, and ops with two links; all note what happens to them."""
    runner = RankRunner.__new__(RankRunner)
    runner.ops = TensorParallelCudaOps("float32", Grid(0, 2), 8, 8, simulated=True)
    runner.ops.core_stream = SimpleNamespace(sync=lambda: calls.append("sync"))
    runner.ops.links = [SimpleNamespace(abort=lambda name=name: calls.append(name)) for name in ("world", "stage")]
    runner.machine = SimpleNamespace(use_in_this_thread=lambda: calls.append("context"))
    runner.graphs = Graphs()
    weakref.finalize(runner.graphs, calls.append, "graphs")
    return runner


def engine(runner, calls):
    """An Engine of which only the runner and the other ranks matter."""
    found = Engine.__new__(Engine)
    found.runner, found.processes = runner, SimpleNamespace(close=lambda: calls.append("processes"))
    return found


def test_the_stream_ends_before_graphs_and_graphs_before_links():
    calls = []
    engine(rank_runner(calls), calls).close()
    assert calls == ["context", "sync", "graphs", "world", "stage", "processes"]


def test_an_error_of_the_device_stops_nothing():
    calls = []
    runner = rank_runner(calls)

    def sync():
        raise RuntimeError("an illegal memory access")

    runner.ops.core_stream = SimpleNamespace(sync=sync)
    engine(runner, calls).close()
    assert calls == ["context", "graphs", "world", "stage", "processes"]


def test_other_ranks_end_even_if_this_one_cannot_close():
    calls = []
    runner = rank_runner(calls)
    runner.ops.links = [SimpleNamespace(abort=lambda: 1 / 0)]
    with pytest.raises(ZeroDivisionError):
        engine(runner, calls).close()
    assert calls[-1] == "processes"
