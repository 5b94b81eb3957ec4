"""The check of a launch of the catalogue, in the simulator and on a GPU: its reference and its kernels against an oracle."""

import importlib

import numpy as np

from minllm.catalogue.launch import on_device
from minllm.catalogue.noise import SHORT, Noise
from tests.kernels.guarded import HALF_STEP, SLACK, Guarded, assert_close, bits


class HostOps:
    """What a launch in the simulator needs of a device."""

    stream, empty, zeros, array = None, staticmethod(np.empty), staticmethod(np.zeros), staticmethod(np.array)


class GuardedOps:
    """What a launch needs of a device; every array that is written lies between guard bands."""

    stream = None

    def __init__(self, device):
        self.device, self.guarded = device, {}

    def array(self, host):
        """An input on the device."""
        return self.device.array(host)

    def written(self, contents):
        """An array with these contents that a kernel may write."""
        guarded = Guarded(self.device, contents)
        self.guarded[id(guarded.array)] = guarded
        return guarded.array

    def empty(self, shape, dtype):
        """An array that nobody has written yet."""
        return self.written(Noise.unwritten(shape, dtype))

    def zeros(self, shape, dtype):
        """An array of zeros."""
        return self.written(np.zeros(shape, dtype))

    def host(self, array):
        """An array's contents, if the bands around it are untouched."""
        guarded = self.guarded.get(id(array))
        return self.device.host(array) if guarded is None else guarded.result()


def oracle_of(launch):
    """The function of tests/kernels/STAGE/oracles.py that computes a launch's results in another way; None if there is none."""
    try:
        module = importlib.import_module(f"tests.kernels.{launch.stage}.oracles")
    except ModuleNotFoundError:
        return None
    return getattr(module, launch.name, None)


def options_of(launch):
    """Features of a launch for tests/covering.py: each of its options, of a kernel that its words name."""
    given = {**launch.shape, **launch.shape.get("options", {})}
    words = (launch.stage, launch.name, *(one for one in given.values() if isinstance(one, str)))
    return [(*words, name, repr(one)) for name, one in given.items() if type(one) not in (int, str, dict)]


def sizes_of(launch):
    """A feature of a launch: its sizes, of a kernel that its words name."""
    return [(launch.stage, launch.name, *(one for one in launch.shape.values() if type(one) in (int, str)))]


def check(launch, device):
    """Reference and kernels agree with the oracle, or with each other; nothing else is written."""
    host, oracle, ops = launch.arrays(Noise(length=SHORT)), oracle_of(launch), GuardedOps(device)
    before = {name: np.copy(array) for name, array in host.items() if isinstance(array, np.ndarray)}
    expected = launch.reference(**host)
    for name, array in before.items():
        np.testing.assert_array_equal(bits(host[name]), bits(array), err_msg=f"the reference has changed {name}")
    exact = oracle(launch.shape, **host) if oracle else {}
    given = {name: ops.written(array) if name in expected else on_device(ops, array) for name, array in host.items()}
    results = launch.run(ops, given)
    for name, array in before.items():
        if name not in (*expected, *launch.scratch):
            np.testing.assert_array_equal(bits(device.host(given[name])), bits(array), err_msg=f"the launch has changed {name}")
    for name, reference in expected.items():
        found, right = ops.host(results[name]), exact.get(name, reference)
        assert found.dtype == reference.dtype and found.shape == reference.shape == right.shape, name
        untouched = raw(reference) == raw(before[name]) if name in before else np.zeros(reference.shape, bool)
        np.testing.assert_array_equal(raw(found)[untouched], raw(reference)[untouched], err_msg=f"{name}: written where nothing was due")
        compare(launch, name, found[~untouched], reference[~untouched], right[~untouched], name in exact)


def compare(launch, name, found, reference, right, by_oracle):
    """Bits where the launch is exact or the right result is of the result's dtype; neighbouring codes; else within roundings."""
    if right.dtype == np.float64:
        slack = SLACK if launch.slack is None else launch.slack
        if launch.elementwise:
            slack = each_by_itself(slack, right)
        for one in (reference, found):
            assert_close(one, right, one.dtype, slack)
        if launch.is_exact(name):
            np.testing.assert_array_equal(raw(found), raw(reference))
    elif launch.is_exact(name) or by_oracle:
        for one in (reference, found):
            np.testing.assert_array_equal(raw(one), raw(right))
    elif found.dtype.kind in "iu":
        steps = np.abs(found.view(np.int8).astype(int) - reference.view(np.int8))
        assert steps.max(initial=0) <= 1 and (steps > 0).sum() <= 0.01 * steps.size
    else:
        slack = (SLACK if launch.slack is None else launch.slack) + HALF_STEP[found.dtype]  # the reference is rounded too
        right = reference.astype(np.float64)
        assert_close(found, right, found.dtype, each_by_itself(slack, right) if launch.elementwise else slack)


def each_by_itself(slack, right):
    """The slack of each element, or of 1 where it is smaller, in terms of the largest."""
    finite = np.where(np.isfinite(right), np.abs(right), 1)
    return slack * np.maximum(finite, 1) / max(finite.max(initial=0), 1e-300)


def raw(array):
    """The elements' bits, as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
