"""Loads, stores, shared addresses; instructions without an effect in the simulator."""

import numpy as np

from minllm.ptx import array_layout, launch, memory, register
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.lanes.faults import Fault
from minllm.sim.lanes.windows import active, load_units, store_units, units

WORD = np.dtype(np.uint32)


@in_lanes(memory.load_128, memory.load_128_streaming)
def load_128(lanes, array, index):
    """Four uint32 words from an element on."""
    return tuple(load_units(lanes, array, index, 4, WORD))


@in_lanes(memory.load_32, memory.load_32_ordered)
def load_32(lanes, array, index):
    """One uint32 word from an element on."""
    return load_units(lanes, array, index, 1, WORD)[0]


@in_lanes(memory.load_64_ordered)
def load_64(lanes, array, index):
    """Two uint32 words from an element on."""
    return tuple(load_units(lanes, array, index, 2, WORD))


@in_lanes(memory.load_float32, memory.load_float32_streaming)
def load_float32(lanes, array, index):
    """16 bytes of elements as float32."""
    found = load_units(lanes, array, index, 16 // array.itemsize, array.dtype)
    return tuple(one.astype(np.float32) for one in found)


@in_lanes(memory.store_128, memory.store_64, memory.store_32)
def store_words(lanes, array, index, *words):
    """Store uint32 words from an element on."""
    store_units(lanes, array, index, words, WORD)


@in_lanes(memory.prefetch_l2)
def prefetch_l2(lanes, array, index):
    """Check the element that is prefetched; nothing else happens."""
    if active(lanes, (index < 0) | (index >= array.size)):
        raise Fault("a prefetch is out of bounds")


@in_lanes(memory.shared_address)
def shared_address(lanes, array, index):
    """The shared address of an element in its block."""
    return (array.offset + index) * array.itemsize - lanes.shared_base()


def shared_place(lanes, address, count):
    """The byte in the memory of all blocks of a checked shared address."""
    outside = (address < 0) | (address + count > lanes.memory.top) | (address % count != 0)
    if active(lanes, outside):
        raise Fault("a shared address is out of bounds or not aligned")
    return np.where(outside, 0, address) + lanes.shared_base()


@in_lanes(memory.load_shared_32)
def load_shared_32(lanes, address):
    """A uint32 word at a shared address."""
    lanes.shared_base()
    place = shared_place(lanes, address, 4) // 4
    lanes.trace_at("shared", "", address, 4, "read")
    lanes.read(lanes.memory.root, place, 4)
    return units(lanes.memory.root, WORD)[place].astype(np.int64)


@in_lanes(launch.griddepcontrol_wait)
def griddepcontrol_wait(lanes):
    """Note that the lanes of the mask have waited for earlier launches."""
    lanes.wait_for_predecessors()


@in_lanes(launch.griddepcontrol_launch_dependents)
def griddepcontrol_launch_dependents(lanes):
    """Nothing: simulated launches run one after another."""
    return None


@in_lanes(register.keep_register)
def keep_register(lanes, value):
    """The same value."""
    return value


@in_lanes(register.keep_registers)
def keep_registers(lanes, array, count):
    """Nothing: the simulator has no compiler that moves registers."""
    return None


@in_lanes(array_layout.token_stride)
def token_stride(lanes, cache, row):
    """The distance between two tokens of a KV cache, in elements."""
    return row if cache.contiguous else cache.strides[array_layout.axis_of_tokens(cache.ndim)]
