"""Arrays of a simulated device: those of Numba's own simulator, which hold NumPy arrays, with what these lack.

Memory of `cuda.device_array` counts as unwritten. If a float array is copied to the host while some of its elements have not been written,
this is reported, as compute-sanitizer's initcheck does on a GPU.
"""

import ctypes
import sys

import numpy as np
from numba.cuda.args import ArgHint, In
from numba.cuda.simulator.cudadrv import devicearray

from minllm.errors import SimulationError
from minllm.sim.array_bytes import place_of
from minllm.sim.arrays import poisoned
from minllm.sim.detectors import is_detecting
from minllm.sim.detectors.unwritten import holds_poison
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.place import describe

DeviceArray = devicearray.FakeCUDAArray
copy_of_simulator = DeviceArray.copy_to_host


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    """`cuda.device_array`."""
    made = np.ndarray(shape, dtype, strides=strides, order=order)
    if is_detecting() and made.dtype.kind == "f" and strides is None:
        made = poisoned(made.shape if made.ndim else (1,), made.dtype).reshape(made.shape, order=order)
    return DeviceArray(made, stream)


def copy_to_host(self, ary=None, stream=0):
    """`array.copy_to_host()`; fails under detectors if elements have not been written."""
    if is_detecting():
        check_written(self._ary, sys._getframe(1))
    return copy_of_simulator(self, host_array(ary), stream)


def check_written(data, frame):
    """Fail if a float array that is copied to the host has elements that nobody wrote."""
    missing = holds_poison(data) if data.dtype.kind == "f" and data.flags.forc else np.zeros(0, bool)
    if missing.any() and not waived_frame("unwritten", frame):
        first = list(place_of(data, int(missing.argmax()) * data.itemsize))
        raise SimulationError(
            f"{int(missing.sum())} of the {data.size} elements of a device array that is copied to the host have not been written; the "
            f"first is element {first}: is a grid too small, or a condition too narrow? ({describe(frame)})"
        )


def interface(self):
    """`array.__cuda_array_interface__`."""
    found = dict(self._ary.__array_interface__)
    return {name: found[name] for name in ("shape", "strides", "typestr", "data", "version")} | {"version": 3, "stream": None}


def is_cuda_array(value):
    """`cuda.is_cuda_array`."""
    return hasattr(value, "__cuda_array_interface__")


def as_cuda_array(value, sync=True):
    """`cuda.as_cuda_array`: any array as a device array over the same memory."""
    if isinstance(value, DeviceArray):
        return value
    if not is_cuda_array(value):
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    return DeviceArray(host_array(value))


def host_array(argument):
    """The NumPy array inside a device array or an argument's hint (cuda.In, cuda.Out); other arguments unchanged."""
    if isinstance(argument, ArgHint):
        found = host_array(argument.value)
        return found.copy() if isinstance(argument, In) and isinstance(found, np.ndarray) else found
    if isinstance(argument, DeviceArray):
        return argument._ary
    if isinstance(argument, tuple):
        made = [host_array(one) for one in argument]
        return type(argument)._make(made) if hasattr(argument, "_make") else tuple(made)
    if hasattr(argument, "__cuda_array_interface__"):
        return foreign_array(argument)
    return argument


def foreign_array(value):
    """The memory of an object with a __cuda_array_interface__ as a NumPy array."""
    described = value.__cuda_array_interface__
    address, read_only = described["data"]
    shape, dtype = described["shape"], np.dtype(described["typestr"])
    if 0 in shape or not address:
        return np.empty(shape, dtype)
    strides = described.get("strides") or np.empty(shape, dtype).strides
    low = sum((extent - 1) * stride for extent, stride in zip(shape, strides) if stride < 0)
    high = sum((extent - 1) * stride for extent, stride in zip(shape, strides) if stride > 0) + dtype.itemsize
    memory = (ctypes.c_char * (high - low)).from_address(address + low)
    memory.owner = value
    made = np.ndarray(shape, dtype, memory, -low, strides)
    made.flags.writeable = not read_only
    return made


REPLACED = [
    (DeviceArray, "copy_to_host", copy_to_host),
    (DeviceArray, "__cuda_array_interface__", property(interface)),
    (devicearray, "device_array", device_array),
]
