"""Memory that host and device share: `cuda.pinned_array`, `cuda.managed_array`.

On a GPU the host may read and write it only once the device is done with it. So under detectors these arrays report what the host's code
does to the detector of races between streams.
"""

import weakref
from types import SimpleNamespace

import numpy as np
from numba.cuda.simulator.cudadrv import devicearray

from minllm.sim.detectors import is_detecting
from minllm.sim.detectors.streams import READ, WRITE, order

of_simulator = SimpleNamespace(pinned_array=devicearray.pinned_array, managed_array=devicearray.managed_array)
READING = (
    *("__repr__", "__str__", "__format__", "__float__", "__int__", "__bool__", "__iter__", "__contains__", "argmax", "argmin", "astype"),
    *("byteswap", "copy", "cumprod", "cumsum", "dot", "flatten", "item", "nonzero", "round", "take", "tobytes", "tofile", "tolist"),
)
WRITING = ("fill", "itemset", "partition", "put", "sort")
OF_SHAPES = {"empty_like", "zeros_like", "ones_like", "full_like", "shape", "ndim", "size", "result_type", "shares_memory"}


class HostArray(np.ndarray):
    """An array in memory that the device sees too."""

    def __getitem__(self, index):
        found = np.ndarray.__getitem__(self, index)
        if not isinstance(found, np.ndarray):
            order().host_access(part_of(self, index), READ)
        return found

    def __setitem__(self, index, value):
        order().host_access(part_of(self, index), WRITE)
        np.ndarray.__setitem__(plain(self), index, plain(value))

    def __array_ufunc__(self, function, method, *operands, out=(), **options):
        report(operands, READ)
        report(out, WRITE)
        if out:
            options["out"] = tuple(map(plain, out))
        found = getattr(function, method)(*map(plain, operands), **options)
        return out[0] if len(out) == 1 else found

    def __array_function__(self, function, types, arguments, options):
        if function.__name__ in OF_SHAPES:
            return super().__array_function__(function, types, arguments, options)
        given = [*arguments, *options.values()]
        if function is np.copyto:
            report(given[:1], WRITE)
            given = given[1:]
        report(given, READ)
        return function(*map(plain, arguments), **{name: plain(value) for name, value in options.items()})


def reporting(name, kind):
    """A method of ndarray that reports an access to the whole array first."""
    method = getattr(np.ndarray, name, None)

    def call(self, *arguments, **options):
        order().host_access(self, kind)
        return method(plain(self), *map(plain, arguments), **options)

    return call


for _kind, _names in ((READ, READING), (WRITE, WRITING)):
    for _name in _names:
        if hasattr(np.ndarray, _name):
            setattr(HostArray, _name, reporting(_name, _kind))


def report(values, kind):
    """Report accesses to the HostArrays among values, and in lists and tuples of them."""
    for one in values:
        if isinstance(one, HostArray):
            order().host_access(one, kind)
        elif isinstance(one, (list, tuple)):
            report(one, kind)


def plain(value):
    """A value without HostArrays: views of the same memory as ordinary arrays."""
    if isinstance(value, HostArray):
        return value.view(np.ndarray)
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def part_of(array, index):
    """The part of an array that an index selects; an empty one for an index of arrays, whose part has no bounds."""
    whole = plain(array)
    if isinstance(index, str):
        return whole[index]
    indices = index if isinstance(index, tuple) else (index,)
    if any(isinstance(one, (np.ndarray, list)) or one is True or one is False for one in indices):
        return whole[:0]
    return whole[index if any(one is Ellipsis for one in indices) else (*indices, ...)]


def pinned_array(*arguments, **options):
    """`cuda.pinned_array`."""
    made = of_simulator.pinned_array(*arguments, **options)
    if is_detecting():
        pin = order().pin(made)
        pin.__enter__()
        weakref.finalize(made, pin.__exit__, None, None, None)
    return shared_with_device(made)


def pinned_array_like(array):
    """`cuda.pinned_array_like`."""
    return pinned_array(array.shape, array.dtype, order="F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C")


def managed_array(*arguments, **options):
    """`cuda.managed_array`."""
    options.pop("attach_global", None)
    return shared_with_device(of_simulator.managed_array(*arguments, **options))


def shared_with_device(made):
    """An array as a HostArray, under detectors."""
    if not is_detecting():
        return made
    order().keep()
    return made.view(HostArray)
