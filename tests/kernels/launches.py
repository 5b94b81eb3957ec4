"""The check of a launch of the catalogue, in the simulator and on a GPU: its reference and its kernels against an oracle."""

import contextlib
import importlib
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from minllm.catalogue.launch import on_device
from minllm.catalogue.noise import LENGTH, SHORT, Noise
from minllm.kernels.matmul.quantized.tensor_core_gemv import gemv as tensor_core_gemv
from minllm.kernels.matmul.quantized.tensor_core_gemv.tiling import TensorCoreGemvTiling
from tests.kernels.guarded import HALF_STEP, SLACK, Guarded, assert_close, bits

LARGE = 1000  # a size with many tiles
COUNTS = ("m", "tokens", "heads", "kv_heads", "sliding_window", "window")  # sizes that nothing reads in vectors
ON_FEW_SMS = {TensorCoreGemvTiling: tensor_core_gemv}


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
    """The function of tests/kernels/STAGE/oracles.py that computes a launch's results in another way; None if there is none.

    It returns {name: the right result, or a function of all results and of the reference's that compares them by itself}.
    """
    try:
        module = importlib.import_module(f"tests.kernels.{launch.stage}.oracles")
    except ModuleNotFoundError:
        return None
    return getattr(module, launch.name, None)


def options_of(launch):
    """Features of a launch for tests/covering.py: each of its options with its words (variant and form), tilings with the variant alone."""
    given = {**launch.shape, **launch.shape.get("options", {})}
    words = [one for one in given.values() if isinstance(one, str)]
    options = [(name, one) for name, one in given.items() if type(one) not in (int, str, dict)]
    return [(launch.name, *words[: 1 if isinstance(one, tuple) else None], name, repr(one)) for name, one in options]


def sizes_of(launch):
    """A feature of a launch: its sizes with the variant."""
    words, sizes = ([one for one in launch.shape.values() if type(one) is kind] for kind in (str, int))
    return [(launch.name, *words[:1], *sizes)]


def check(launch, device):
    """Reference and kernels agree with the oracle, or with each other; nothing else is written."""
    host, oracle, ops = launch.arrays(noise_of(launch)), oracle_of(launch), GuardedOps(device)
    before = {name: np.copy(array) for name, array in host.items() if isinstance(array, np.ndarray)}
    expected = launch.reference(**host)
    for name, array in before.items():
        np.testing.assert_array_equal(bits(host[name]), bits(array), err_msg=f"the reference has changed {name}")
    exact = oracle(launch.shape, **host) if oracle else {}
    given = {name: ops.written(array) if name in expected else on_device(ops, array) for name, array in host.items()}
    with few_sms(launch):
        results = launch.run(ops, given)
    for name, array in before.items():
        if name not in (*expected, *launch.scratch):
            np.testing.assert_array_equal(bits(device.host(given[name])), bits(array), err_msg=f"the launch has changed {name}")
    if isinstance(device.array(np.zeros(1)), np.ndarray):  # the simulator's tensor cores lose nothing
        launch = replace(launch, lost=0.0)
    for name, reference in expected.items():
        found, right = ops.host(results[name]), exact.get(name, reference)
        assert found.dtype == reference.dtype and found.shape == reference.shape == getattr(right, "shape", found.shape), name
        if callable(right):
            right({one: ops.host(results[one]) for one in expected}, expected)
            continue
        untouched = left_alone(before[name], reference, right) if name in before else np.zeros(reference.shape, bool)
        np.testing.assert_array_equal(raw(found)[untouched], raw(reference)[untouched], err_msg=f"{name}: written where nothing was due")
        compare(launch, name, found[~untouched], reference[~untouched], right[~untouched], name in exact)


def code_of(launch):
    """Features of a launch for tests/covering.py on which its machine code depends, each with its variant.

    They are its form, dtype, head size and block size together; flags; tilings and other options; which sizes are whole vectors, and which
    are large.
    """
    given = {**launch.shape, **launch.shape.get("options", {})}
    which = launch.name, given.get("variant")
    form, dtype, head_dim, block_size = (str(given.get(name)) for name in ("form", "dtype", "head_dim", "block_size"))
    is_prompt = max(given.get("query_lens", (1,))) > 1
    sizes = [(name, size * launch.dtype.itemsize % 16 == 0) for name, size in given.items() if type(size) is int and name not in COUNTS]
    flags = [(dtype, head_dim, name, repr(one)) for name, one in given.items() if type(one) in (bool, tuple)]
    options = [(name, repr(one)) for name, one in given.items() if type(one) not in (int, dict, bool, tuple) and one not in which]
    large = [(form, name, size > LARGE) for name, size in given.items() if type(size) is int]
    features = (form, dtype, head_dim, block_size, is_prompt), *((form, dtype, *size) for size in sizes), *flags, *options, *large
    return [(*which, *one) for one in features]


def noise_of(launch):
    """Noise for its arrays. In sums of squares, of a row of x and its copy in the weight, tensor cores lose more of fp8 than in others."""
    return Noise(length=LENGTH if launch.name == "quantized_product" and launch.lost else SHORT)


def left_alone(before, reference, right):
    """Which elements nothing is written to; an element whose result is rounded to what it was before is none of them."""
    same = raw(reference) == raw(before)
    return same & ((right == before.astype(right.dtype)) | np.isnan(right)) if right.dtype == np.float64 else same


def result(launch, device, sms=2):
    """The main result of a launch on the host, on a GPU of this many SMs as in few_sms."""
    host, ops = launch.arrays(Noise(length=SHORT)), GuardedOps(device)
    given = {name: ops.written(one) if name == "out" else on_device(ops, one) for name, one in host.items()}
    with few_sms(launch, sms):
        return ops.host(launch.run(ops, given)["out"])


def few_sms(launch, count=2):
    """A context in which a GEMV with a tiling of its own runs as on a GPU of few SMs, where a block or a cluster has several tiles."""
    module = ON_FEW_SMS.get(type(launch.shape.get("tiling")))
    return patch.object(module, "sms_here", lambda: count) if module else contextlib.nullcontext()


def compare(launch, name, found, reference, right, by_oracle):
    """Bits where the launch is exact or the right result is of the result's dtype; neighbouring codes; else within roundings."""
    if right.dtype == np.float64:
        slack = slack_of(launch)
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
        slack = slack_of(launch) + HALF_STEP[found.dtype]  # the reference is rounded too
        right = reference.astype(np.float64)
        assert_close(found, right, found.dtype, each_by_itself(slack, right) if launch.elementwise else slack)


def slack_of(launch):
    """The allowed error of a launch beside roundings."""
    return (SLACK if launch.slack is None else launch.slack) + launch.lost


def each_by_itself(slack, right):
    """The slack of each element, or of 1 where it is smaller, in terms of the largest."""
    finite = np.where(np.isfinite(right), np.abs(right), 1)
    return slack * np.maximum(finite, 1) / max(finite.max(initial=0), 1e-300)


def raw(array):
    """The elements' bits, as unsigned integers."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
