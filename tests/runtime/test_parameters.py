"""What the driver reads at a launch: values, 8 bytes apart, and a table of their addresses."""

import ctypes
import struct
import threading
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.runtime.argument_type import argument_type
from minllm.runtime.array import DeviceArray
from minllm.runtime.kernel import Kernel, kernel
from minllm.runtime.parameters import LARGEST_COUNT, parameter, write_parameters


def device_array(shape, dtype, pointer=4096):
    return DeviceArray(pointer, shape, dtype, None, None)


def values_at(table, count):
    """The 64-bit words that a table of addresses leads to."""
    addresses = (ctypes.c_void_p * count).from_address(table)
    return [ctypes.c_uint64.from_address(address).value for address in addresses]


def test_arrays_have_numbas_layout():
    _, packed = parameter(device_array((2, 3, 4), np.float16))
    assert struct.unpack("<11Q", packed) == (0, 0, 24, 2, 4096, 2, 3, 4, 24, 8, 2)


def test_arrays_are_told_apart_by_dtype_and_rank_alone():
    kind = parameter(device_array((2, 3), np.float16))[0]
    assert parameter(device_array((7, 1), np.float16, pointer=512))[0] == kind
    others = [device_array((2, 3), np.int16), device_array((6,), np.float16), device_array((1, 2, 3), np.float16)]
    assert len({kind, *(parameter(other)[0] for other in others)}) == 4


@pytest.mark.parametrize(
    ("value", "kind", "packed"),
    [
        (-2, int, struct.pack("<i4x", -2)),
        (0.5, float, struct.pack("<f4x", 0.5)),
        (None, None, bytes(8)),
        (np.int64(2**40), np.dtype(np.int64), struct.pack("<q", 2**40)),
        (np.uint8(7), np.dtype(np.uint8), struct.pack("<B7x", 7)),
        (np.float64(0.1), np.dtype(np.float64), struct.pack("<d", 0.1)),
    ],
)
def test_scalars(value, kind, packed):
    assert parameter(value) == (kind, packed)


def test_the_table_leads_to_the_values():
    packed = [parameter(argument)[1] for argument in (device_array((5,), np.float32), 3, None)]
    words = values_at(write_parameters(packed), 9)
    assert words == [0, 0, 5, 4, 4096, 5, 4, 3, 0]


class Arrays(NamedTuple):
    codes: Any
    count: Any


def test_a_tuple_is_packed_item_by_item():
    """As Numba takes it: peers' arrays, or those of a weight, are one argument of a kernel."""
    one, two = device_array((5,), np.float32), device_array((7,), np.float32)
    (key, packed), (first, of_one), (second, of_two) = parameter((one, two)), parameter(one), parameter(two)
    assert key == (tuple, first, second) and packed == of_one + of_two
    assert str(argument_type((one, 3))) == "Tuple(array(float32, 1d, C), int32)"
    assert str(argument_type(Arrays(one, 3))) == "Arrays(array(float32, 1d, C), int32)"
    assert parameter(Arrays(one, 3)) == ((Arrays, first, int), of_one + parameter(3)[1])


def test_threads_do_not_share_a_buffer():
    mine, theirs = write_parameters([parameter(1)[1]]), []
    thread = threading.Thread(target=lambda: theirs.append(write_parameters([parameter(2)[1]])))
    thread.start()
    thread.join()
    assert theirs[0] != mine and values_at(mine, 1) == [1]


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (2**31, "does not fit int32"),
        ("text", "takes arrays, ints, floats, None, tuples and NamedTuples"),
        (True, "of type bool"),
        (np.zeros(3, np.float32), "copy it there first"),
    ],
)
def test_what_a_launch_does_not_take(value, complaint):
    with pytest.raises(KernelArgumentError, match=complaint):
        parameter(value)


def test_a_launch_has_room_for_so_many_values():
    with pytest.raises(KernelArgumentError, match=f"up to {LARGEST_COUNT} fit"):
        write_parameters([bytes(8)] * (LARGEST_COUNT + 1))


@pytest.fixture
def launches(monkeypatch):
    """What the driver is called with."""
    from cuda.bindings import driver

    calls = []
    loaded = []

    def load(self, arguments):
        loaded.append(tuple(map(type, arguments)))
        return SimpleNamespace(function="function", shared_bytes_allowed=1 << 17, dependent_launch=self.dependent_launch)

    def plain(function, *sizes_and_table):
        *sizes, table, _ = sizes_and_table
        calls.append((sizes, values_at(table, 2)))
        return (0,)

    def extended(configuration, function, table, _):
        calls.append((configuration, values_at(table, 2)))
        return (0,)

    monkeypatch.setattr(Kernel, "load", load)
    monkeypatch.setattr(driver, "cuLaunchKernel", plain)
    monkeypatch.setattr(driver, "cuLaunchKernelEx", extended)
    return SimpleNamespace(calls=calls, loaded=loaded)


def test_a_kernel_is_loaded_once_for_each_choice_of_types(launches):
    @kernel
    def function(a, b):
        pass

    function[(2, 3), 64, 9, 1000](1, 2.0)
    function[(2, 3), 64, 9, 1000](4, 5.0)
    function[1, 64](4, 5)
    assert launches.loaded == [(int, float), (int, int)]
    assert launches.calls[0][0] == [2, 3, 1, 64, 1, 1, 1000, 9] and launches.calls[0][1][0] == 1
    assert launches.calls[1][1][0] == 4 and launches.calls[2][0] == [1, 1, 1, 64, 1, 1, 0, 0]


def test_a_kernel_may_overlap_its_predecessor_if_it_was_made_so(launches):
    @kernel(dependent_launch=True)
    def function(a, b):
        pass

    function[5, 64, 9](1, 2)
    configuration, words = launches.calls[0]
    assert configuration.gridDimX == 5 and configuration.numAttrs == 1 and words == [1, 2]
    assert configuration.attrs[0].value.programmaticStreamSerializationAllowed == 1
