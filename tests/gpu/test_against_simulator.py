"""Every kernel of the package on a GPU and in the simulator: the same arguments, and then the same bits in every array.

Each launch is compared by itself: what the simulator has written goes on to the next one, so that no difference is inherited.
"""

import numpy as np
import pytest

from minllm.runtime.kernel import Simulation
from minllm.sim import simulate
from tests.sim.every_kernel import ROWS


def run_on_both(row, device, monkeypatch):
    """Run a row of every_kernel.py on both -> [(kernel, argument's number, the GPU's array, the simulator's)]."""
    found = []

    def configured(simulation, configuration):
        grid, block, _, shared_bytes, cluster = configuration

        def run(*arguments):
            twins = {id(a): device.array(a) for a in arguments if isinstance(a, np.ndarray)}
            simulation.kernel[grid, block, None, shared_bytes, cluster](*(twins.get(id(a), a) for a in arguments))
            simulate(simulation.kernel, grid, block, *arguments, shared_bytes=shared_bytes, cluster=cluster)
            for number, host in enumerate(arguments):
                if id(host) in twins:
                    found.append((simulation.kernel.__name__, number, device.host(twins[id(host)]), host.copy()))

        return run

    monkeypatch.setattr(Simulation, "__getitem__", configured)
    row.run()
    return found


@pytest.mark.parametrize("name", ROWS)
def test_same(name, device, monkeypatch):
    for kernel, number, there, here in run_on_both(ROWS[name], device, monkeypatch):
        a, b = there.astype(np.float64), here.astype(np.float64)
        differ = ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differ.any():
            d = np.abs(a - b)[differ]
            print(f"DIFF {name} {kernel} arg{number} {here.dtype} {here.shape}: {differ.sum()} of {a.size} differ, max abs {d.max():.3g} max rel {np.nanmax(d / np.abs(b[differ])):.3g} of largest {d.max() / np.nanmax(np.abs(b[np.isfinite(b)])):.3g}")
        else:
            print(f"SAME {name} {kernel} arg{number} {here.dtype}")
