"""What closing a rank does, in which order, and for how long: NCCL waits for graphs that captured it, and for other ranks."""

import subprocess
import sys
import threading
import time
import weakref
from types import SimpleNamespace

import pytest

from minllm.engine.build.engine import Engine
from minllm.engine.ranks.rank_runner import LeadingRunner, RankRunner
from minllm.engine.ranks.watchdog import Watchdog
from minllm.parallel.cuda_ranks import TensorParallelCudaOps
from minllm.parallel.grid import Grid


class Graphs:
    """What captured NCCL's operations."""


def rank_runner(calls):
    """A runner with graphs, and ops with two links; all note what happens to them."""
    runner = RankRunner.__new__(RankRunner)
    runner.ops = TensorParallelCudaOps("float32", Grid(0, 2), 8, 8, simulated=True)
    runner.ops.core_stream = SimpleNamespace(sync=lambda: calls.append("sync"))
    runner.ops.links = [SimpleNamespace(close=lambda name=name: calls.append(name)) for name in ("world", "stage")]
    runner.machine = SimpleNamespace(use_in_this_thread=lambda: calls.append("context"))
    runner.graphs = Graphs()
    weakref.finalize(runner.graphs, calls.append, "graphs")
    return runner


def engine(runner, calls):
    """An Engine of which only the runner and the other ranks matter."""
    found = Engine.__new__(Engine)
    found.runner, found.ops, found.processes = runner, runner.ops, SimpleNamespace(close=lambda: calls.append("processes"))
    return found


def test_the_stream_ends_before_graphs_and_graphs_and_ranks_before_links():
    calls = []
    engine(rank_runner(calls), calls).close()
    assert calls == ["context", "sync", "graphs", "processes", "world", "stage"]


def test_an_error_of_the_device_stops_nothing():
    calls = []
    runner = rank_runner(calls)

    def sync():
        raise RuntimeError("an illegal memory access")

    runner.ops.core_stream = SimpleNamespace(sync=sync)
    engine(runner, calls).close()
    assert calls == ["context", "graphs", "processes", "world", "stage"]


def test_other_ranks_end_even_if_this_one_cannot_close():
    calls = []
    runner = rank_runner(calls)
    runner.machine = SimpleNamespace(use_in_this_thread=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        engine(runner, calls).close()
    assert calls == ["processes", "world", "stage"]


def test_a_device_that_waits_for_a_peer_is_let_go_by_the_watchdog():
    calls, let_go = [], threading.Event()
    runner = rank_runner(calls)
    runner.ops.core_stream = SimpleNamespace(sync=lambda: let_go.wait(20) or calls.append("never"))
    runner.__class__, runner.watchdog = LeadingRunner, Watchdog(let_go.set, seconds=0.05)
    engine(runner, calls).close()
    assert calls == ["context", "graphs", "processes", "world", "stage"]


HANGING = """
import threading
from types import SimpleNamespace
from minllm.parallel.nccl import NcclCommunicator
from minllm.parallel.processes import RankError
from tests.engine.ranks.test_closing import engine, rank_runner
library = SimpleNamespace(comm_init_rank_scalable=lambda *_: "handle", comm_abort=lambda _: threading.Event().wait(), NCCLError=OSError)
link = NcclCommunicator(0, 2, b"id", 77, library)
runner = rank_runner([])
runner.ops.links = [SimpleNamespace(close=lambda: link.close(limit_s=0.2))]
try:
    raise RankError("Rank 1 has failed: the cause")
finally:
    engine(runner, []).close()
"""


def test_an_error_is_shown_and_the_process_ends_although_nccl_does_not_close():
    start = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "RankError: Rank 1 has failed: the cause" in ended.stderr
    assert "NCCL has not closed the links of rank 0 within 0.2 s" in ended.stderr and time.monotonic() - start < 20
