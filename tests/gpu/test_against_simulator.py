"""Every kernel of the package on a GPU and in the simulator: the same arguments, and then the same bits in every array.

Each launch is compared by itself: what the simulator has written goes on to the next one, so that no difference is inherited. Some kernels
differ by a few roundings of float32, for reasons that stand there with their names; all that is 16 bits wide, and every integer, is the
same to the last bit, save for one kernel that rounds on the way.
"""

import re

import numpy as np
import pytest

from minllm.catalogue.attention.quantized import FLOAT8_WEIGHTS
from minllm.runtime.kernel import Simulation
from minllm.runtime.tensor_map import TensorMap, tensor_map
from minllm.sim import simulate
from tests.gpu.supported import skip_if_not_supported
from tests.kernels.guarded import BFLOAT16
from tests.sim.every_kernel import COARSE_ROUNDING, ROUNDED, ROUNDING, ROWS, SEVERAL_GPUS


def arrays_in(arguments):
    """All host arrays of these arguments, those in NamedTuples too."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from arrays_in(argument)
        elif isinstance(argument, np.ndarray):
            yield argument


def copies_of(arguments, device):
    """{id of an array: its copy on the device}. Two views of the same memory share one copy, as a cache that is copied within itself."""
    by_memory, twins = {}, {}
    for array in arrays_in(arguments):
        memory = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
        if memory not in by_memory:
            by_memory[memory] = device.array(array)
        twins[id(array)] = by_memory[memory]
    return twins


def twin(argument, twins, device):
    """What the GPU is given in an argument's place: an array's copy there, the tensor map of one, or a NamedTuple of copies."""
    if isinstance(argument, tuple):
        return type(argument)(*(twin(one, twins, device) for one in argument))
    if isinstance(argument, TensorMap):
        array = twins.get(id(argument.array))
        return tensor_map(device.array(argument.array) if array is None else array, argument.box, argument.swizzle, argument.fill)
    return twins.get(id(argument), argument)


def run_on_both(row, device, monkeypatch):
    """Run a row of every_kernel.py on both -> [(kernel, array's number among its arguments, the GPU's array, the simulator's)]."""
    found = []

    def configured(simulation, configuration):
        grid, block, _, shared_bytes, cluster = configuration

        def run(*arguments):
            twins = copies_of(arguments, device)
            simulation.kernel[grid, block, None, shared_bytes, cluster](*(twin(a, twins, device) for a in arguments))
            simulate(simulation.kernel, grid, block, *arguments, shared_bytes=shared_bytes, cluster=cluster)
            for number, host in enumerate(arrays_in(arguments)):
                found.append((simulation.kernel.__name__, number, device.host(twins[id(host)]), host.copy()))

        return run

    monkeypatch.setattr(Simulation, "__getitem__", configured)
    row.run()
    return found


@pytest.mark.parametrize("name", [name for name in ROWS if name not in SEVERAL_GPUS], ids=str)
def test_the_gpu_and_the_simulator_write_the_same(name, device, monkeypatch):
    if ROWS[name].launch:
        skip_if_not_supported(ROWS[name].launch)
    found = run_on_both(ROWS[name], device, monkeypatch)
    assert {kernel for kernel, *_ in found} >= set(ROWS[name].kernels)
    for kernel, number, there, here in found:
        what = f"array {number} of {kernel}"
        if COARSE_ROUNDING.keys() & {kernel, *re.findall(r"\w+", name)} and here.dtype == BFLOAT16:
            np.testing.assert_allclose(there.astype(np.float32), here.astype(np.float32), rtol=2.0**-7, atol=1e-3, err_msg=what)
        elif kernel == "flash_attention_3_float8_kernel" and here.dtype == BFLOAT16:
            there, here = there.astype(np.float32), here.astype(np.float32)
            allowed = FLOAT8_WEIGHTS * np.abs(here[np.isfinite(here)]).max(initial=0)
            np.testing.assert_allclose(there, here, rtol=0, atol=allowed, equal_nan=True, err_msg=what)
        elif kernel in ROUNDED and here.dtype == np.float32:
            allowed = COARSE_ROUNDING.get(kernel, ROUNDING) * np.abs(here[np.isfinite(here)]).max(initial=0)
            np.testing.assert_allclose(there, here, rtol=0, atol=allowed, equal_nan=True, err_msg=what)
        else:
            np.testing.assert_array_equal(there.view(np.uint8), here.view(np.uint8), err_msg=what)
