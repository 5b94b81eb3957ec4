"""For every kernel of the package the two engines leave the same bits in memory and make the same trace; which launches the lanes leave to
the threads, and why."""

import contextlib

import numpy as np
import pytest

from minllm.sim import detecting, simulator, tracing, using_engine
from minllm.sim.rewrite import plain_function
from tests.sim.every_kernel import ROWS

# The rows, without their shapes, of which the lanes leave a launch to the threads, with detectors and without, and how the reason begins.
IN_THREADS = {"kv/qkv_rope_append_quantized": "a variable that is another array in other threads"}


def arrays_in(arguments):
    """The NumPy arrays among arguments, in tuples too."""
    for one in arguments:
        if isinstance(one, np.ndarray):
            yield one
        elif isinstance(one, tuple):
            yield from arrays_in(one)


class Comparison:
    """Runs each launch in lanes and then in threads, and compares. left: why the threads alone ran launches; traces: those of the lanes."""

    def __init__(self):
        self.run_in_lanes, self.run, self.left, self.waiting = simulator.run_in_lanes, simulator.run, [], None
        self.traces, self.under_way = [], False

    def lanes(self, how, names, arguments, indices, detect, resident, timeline):
        before = [one.copy() for one in arrays_in(arguments)]
        self.under_way = True
        why, trace = self.run_in_lanes(how, names, arguments, indices, detect, resident, timeline)
        self.under_way = False
        found = [one.copy() for one in arrays_in(arguments)]
        for array, contents, new in zip(arrays_in(arguments), before, found):
            assert why is None or new.tobytes() == contents.tobytes(), "a launch that went to the threads has changed memory"
            if array.flags.writeable:
                array[...] = contents
        self.waiting = found if why is None else None
        if why is not None:
            self.left.append(why)
        self.traces.append(trace)
        return why or "compared", None

    def threads(self, how, arguments, monitor, share=slice(None)):
        self.run(how, arguments, monitor, share)
        if self.under_way:  # for the timeline of a trace
            return
        for array, found in zip(arrays_in(arguments), self.waiting or ()):
            assert array.tobytes() == found.tobytes(), f"the engines differ in {plain_function(how.kernel).__name__}"
        self.waiting = None


@pytest.mark.covering("stage", "watched")
@pytest.mark.parametrize("watched", ["detected", "plain", "traced"])
@pytest.mark.parametrize("name, stage", [(name, row.launch.stage if row.launch else "") for name, row in ROWS.items()], ids=str)
def test_both_engines_do_the_same(name, stage, watched, monkeypatch):
    comparison = Comparison()
    monkeypatch.setattr(simulator, "run_in_lanes", comparison.lanes)
    monkeypatch.setattr(simulator, "run", comparison.threads)
    with detecting(watched == "detected"), using_engine("lanes"), tracing() if watched == "traced" else contextlib.nullcontext() as traces:
        ROWS[name].run()
    if watched == "traced" and comparison.traces:  # launches of several GPUs do not ask for lanes
        assert [found or trace for found, trace in zip(comparison.traces, traces, strict=True)] == traces
    expected = IN_THREADS.get(name.partition("(")[0])
    if expected is None:
        assert comparison.left == []
    else:
        assert {why[: len(expected)] for why in comparison.left} == {expected}


def test_most_kernels_run_in_lanes():
    assert len(IN_THREADS) < 0.05 * len(ROWS)
