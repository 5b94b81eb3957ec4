"""For every kernel of the package the two engines leave the same bits in memory; which launches the lanes leave to the threads, and why."""

import numpy as np
import pytest

from minllm.sim import detecting, simulator, using_engine
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
    """Runs each launch in lanes and then in threads, and compares. left: why the threads alone ran launches."""

    def __init__(self):
        self.run_in_lanes, self.run, self.left, self.waiting = simulator.run_in_lanes, simulator.run, [], None

    def lanes(self, how, names, arguments, indices, detect, resident):
        before = [one.copy() for one in arrays_in(arguments)]
        why = self.run_in_lanes(how, names, arguments, indices, detect, resident)
        found = [one.copy() for one in arrays_in(arguments)]
        for array, contents, new in zip(arrays_in(arguments), before, found):
            assert why is None or new.tobytes() == contents.tobytes(), "a launch that went to the threads has changed memory"
            if array.flags.writeable:
                array[...] = contents
        self.waiting = found if why is None else None
        if why is not None:
            self.left.append(why)
        return why or "compared"

    def threads(self, how, arguments, monitor, share=slice(None)):
        self.run(how, arguments, monitor, share)
        for array, found in zip(arrays_in(arguments), self.waiting or ()):
            assert array.tobytes() == found.tobytes(), f"the engines differ in {plain_function(how.kernel).__name__}"
        self.waiting = None


@pytest.mark.covering("stage", "detect")
@pytest.mark.parametrize("detect", [True, False])
@pytest.mark.parametrize("name, stage", [(name, row.launch.stage if row.launch else "") for name, row in ROWS.items()], ids=str)
def test_both_engines_leave_the_same_bits(name, stage, detect, monkeypatch):
    comparison = Comparison()
    monkeypatch.setattr(simulator, "run_in_lanes", comparison.lanes)
    monkeypatch.setattr(simulator, "run", comparison.threads)
    with detecting(detect), using_engine("lanes"):
        ROWS[name].run()
    expected = IN_THREADS.get(name.partition("(")[0])
    if expected is None:
        assert comparison.left == []
    else:
        assert {why[: len(expected)] for why in comparison.left} == {expected}


def test_most_kernels_run_in_lanes():
    assert len(IN_THREADS) < 0.05 * len(ROWS)
