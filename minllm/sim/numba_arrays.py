"""Arrays of a simulated device: those of Numba's own simulator, which hold NumPy arrays, with functions that these lack.

New memory of `cuda.device_array` counts as unwritten. Copying an array with unwritten elements to the host is an error, which
compute-sanitizer's initcheck also reports on a GPU.
"""

import ctypes
import sys
from types import SimpleNamespace

import numba.cuda
import numpy as np
from numba.cuda.args import ArgHint, In
from numba.cuda.cudadrv import devicearray as numba_devicearray
from numba.cuda.simulator.cudadrv import devicearray

from minllm.errors import SimulationError
from minllm.sim import host_memory
from minllm.sim.detectors import is_detecting
from minllm.sim.detectors.streams import READ, WRITE, order
from minllm.sim.detectors.waivers import waived_frame
from minllm.sim.device_memory import mark_written, unwritten_elements, watch
from minllm.sim.host_memory import HostArray, part_of, plain
from minllm.sim.place import describe

DeviceArray = devicearray.FakeCUDAArray
copy_of_simulator = DeviceArray.copy_to_host
copy_into_simulator = DeviceArray.copy_to_device
assignment_of_simulator = DeviceArray.__setitem__
preparation_of_simulator = DeviceArray.__init__
element_of_simulator = DeviceArray.__getitem__
devicearray_to_device = devicearray.to_device


def device_array(shape, dtype=np.float64, strides=None, order="C", stream=0):
    """`cuda.device_array`."""
    made = np.ndarray(shape, dtype, strides=strides, order=order)
    return DeviceArray(watch(made) if is_detecting() else made, stream)


def prepare(self, array, strides=0, dtype=None, stream=0, gpu_data=None):
    """`DeviceArray(array, stream)`, or `DeviceNDArray(shape, strides, dtype, stream)`, as numba.cuda makes one, in memory of its own."""
    if dtype is None:
        preparation_of_simulator(self, array, strides)
    else:
        preparation_of_simulator(self, device_array(array, dtype, strides)._ary, stream)


def to_device(ary, stream=0, copy=True, to=None):
    """`cuda.to_device`."""
    made = devicearray_to_device(plain(ary), stream, copy, to)
    if to is None:
        made.stream = stream
        note_copy("cuda.to_device", stream, (made._ary, WRITE), host=(ary, READ))
    return made


def note_copy(what, stream, *parts, host=None):
    """Report a copy to the detector of races between streams. host: (array, READ or WRITE) of the host.

    The host waits for a copy of memory that is not pinned, and for one on the default stream. (To the device the driver copies it first.)
    """
    array, kind = host or (None, READ)
    pinned = isinstance(array, np.ndarray) and bool(stream) and order().is_pinned(array)
    order().copy(what, stream, *parts, *([host] if pinned else ()), waits=not stream or (kind == WRITE and not pinned))


def copy_to_host(self, ary=None, stream=0):
    """`array.copy_to_host()`; under detectors, raises SimulationError if elements have not been written."""
    if is_detecting():
        check_written(self._ary, sys._getframe(1))
    found = copy_of_simulator(self, plain(host_array(ary)), stream)
    note_copy("copy_to_host", stream or self.stream, (self._ary, READ), host=(found, WRITE))
    return found if ary is None else ary


def copy_to_device(self, ary, stream=0):
    """`array.copy_to_device(ary)`."""
    copy_into_simulator(self, plain(ary), stream)
    mark_written(self._ary)
    source = [(ary._ary, READ)] if isinstance(ary, DeviceArray) else []
    note_copy("copy_to_device", stream or self.stream, (self._ary, WRITE), *source, host=None if source else (ary, READ))


def element(self, index):
    """`array[index]` on the host."""
    found = element_of_simulator(self, index)
    if not isinstance(found, DeviceArray):
        note_copy("a read of an element", self.stream, (part_of(self._ary, index), READ), host=(found, WRITE))
    return found


def assign(self, index, value):
    """`array[index] = value` on the host."""
    assignment_of_simulator(self, index, value)
    note_copy("an assignment", self.stream, (part_of(self._ary, index), WRITE))
    if isinstance(index, str):
        mark_written(self._ary[index])
    else:
        changed = np.zeros(self._ary.shape, bool)
        changed[index] = True
        mark_written(self._ary, changed[..., None])


def check_written(data, frame):
    """Raise SimulationError if an array that is copied to the host has unwritten elements."""
    missing = unwritten_elements(data)
    if missing is not None and missing.any() and not waived_frame("unwritten", frame):
        first = [int(place) for place in np.argwhere(missing)[0]]
        raise SimulationError(
            f"{int(missing.sum())} of the {data.size} elements of a device array that is copied to the host have not been written; the "
            f"first is element {first}: is a grid too small, or a condition too narrow? ({describe(frame)})"
        )


def interface(self):
    """`array.__cuda_array_interface__`."""
    mark_written(self._ary)  # code that gets the address may write there unnoticed
    found = dict(self._ary.__array_interface__)
    return {name: found[name] for name in ("shape", "strides", "typestr", "data", "version")} | {"version": 3, "stream": None}


def is_cuda_array(value):
    """`cuda.is_cuda_array`."""
    return isinstance(value, DeviceArray) or hasattr(value, "__cuda_array_interface__")


def as_cuda_array(value, sync=True):
    """`cuda.as_cuda_array`: any array as a device array over the same memory."""
    if isinstance(value, DeviceArray):
        return value
    if not is_cuda_array(value):
        raise TypeError("*obj* doesn't implement the cuda array interface.")
    return DeviceArray(host_array(value))


def from_cuda_array_interface(described, owner=None, sync=True):
    """`cuda.from_cuda_array_interface`: a device array over the memory that `owner` keeps."""
    return DeviceArray(foreign_array(SimpleNamespace(__cuda_array_interface__=described, owner=owner)))


def host_array(argument):
    """The NumPy array in a device array or in an argument's hint (cuda.In, cuda.Out); other arguments are returned unchanged."""
    if isinstance(argument, ArgHint):
        found = host_array(argument.value)
        return found.copy() if isinstance(argument, In) and isinstance(found, np.ndarray) else found
    if isinstance(argument, DeviceArray):
        return argument._ary
    if isinstance(argument, HostArray):
        return plain(argument)
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
    (numba.cuda, "from_cuda_array_interface", from_cuda_array_interface),
    (numba_devicearray, "DeviceNDArray", DeviceArray),  # programs ask isinstance(x, cuda.devicearray.DeviceNDArray)
    (numba_devicearray, "auto_device", devicearray.auto_device),
    (DeviceArray, "__init__", prepare),
    (DeviceArray, "__getitem__", element),
    (devicearray, "to_device", to_device),
    (devicearray, "pinned_array", host_memory.pinned_array),
    (devicearray, "pinned_array_like", host_memory.pinned_array_like),
    (devicearray, "managed_array", host_memory.managed_array),
    (DeviceArray, "copy_to_host", copy_to_host),
    (DeviceArray, "copy_to_device", copy_to_device),
    (DeviceArray, "__setitem__", assign),
    (DeviceArray, "__cuda_array_interface__", property(interface)),
    (devicearray, "device_array", device_array),
]
