"""cp.async: the copies of a group run when it is waited for, as those of a thread do."""

import numpy as np

from minllm.ptx import async_copy
from minllm.ptx.lanes.form import in_lanes
from minllm.sim.lanes.accesses import READ, WRITE
from minllm.sim.lanes.faults import Fault, NotInLanes
from minllm.sim.lanes.masks import VECTOR, some
from minllm.sim.lanes.windows import units

BYTES = np.arange(16)


@in_lanes(async_copy.cp_async_16, async_copy.cp_async_16_narrow)
def cp_async_16(lanes, address, array, index, valid_bytes):
    """Start a copy of 16 bytes per lane; it takes place when its group is waited for."""
    lanes.shared_base()
    chosen = np.arange(lanes.size) if lanes.chosen is None else lanes.chosen
    address, index, valid = ((one if type(one) is VECTOR else np.full(lanes.size, one))[chosen] for one in (address, index, valid_bytes))
    if some((address % 16 != 0) | (address < 0) | (address + 16 > lanes.memory.top) | (valid < 0) | (valid > 16)):
        raise Fault("cp.async to an address that is out of bounds or not aligned")
    if array.local or array.varies or not array.contiguous:
        raise NotInLanes("cp.async from a part of an array")
    size, base = array.itemsize, array.root.flat.__array_interface__["data"][0]
    start = (array.offset + index) * size
    reads = valid > 0
    if some(reads & ((index < 0) | (index * size + valid > array.size * size) | ((base + start) % 16 != 0))):
        raise Fault("cp.async from elements that are out of bounds or not aligned")
    if lanes.tracer is not None:
        lanes.tracer.copies_start(lanes, chosen, array, start, valid, address)
    target = address + (0 if lanes.count == 1 else lanes.shared_base()[chosen])
    start = np.where(reads, start, 0)
    if lanes.watch is not None:
        watch_start(lanes, array.root, target, start, valid)
    lanes.copies.append((target, array.root, start, valid, chosen))


def watch_start(lanes, root, target, start, valid):
    """Report the start of copies to the detectors: a write that is in flight until it is waited for, and reads of words."""
    if some(valid % 4):
        raise NotInLanes("cp.async of a part of a word under detectors")
    watch_target(lanes, target)
    memory, mask = lanes.memory.root, lanes.mask
    memory.flights[target >> 4] = True
    lanes.flying += 1
    for number in range(4):
        lanes.mask = np.zeros(lanes.size, bool)
        reads = valid > 4 * number
        lanes.mask[(lanes.lane if mask is None else np.flatnonzero(mask))[reads]] = True
        if some(reads):
            lanes.watch.access(lanes, root, start[reads] // 4 + number, 4, READ)
    lanes.mask = mask


def watch_target(lanes, target):
    """Report a write of 16 bytes of each lane of the mask to the detectors."""
    for number in range(2):
        lanes.watch.access(lanes, lanes.memory.root, target // 8 + number, 8, WRITE)


def everyone(lanes):
    """Send the launch to the threads unless all threads are here."""
    if lanes.mask is not None and not (lanes.dead is not False and (lanes.mask | lanes.dead).all()):
        raise NotInLanes("groups of cp.async that differ between threads")


@in_lanes(async_copy.cp_async_commit_group)
def cp_async_commit_group(lanes):
    """Commit the copies since the last group as a new group."""
    everyone(lanes)
    if lanes.tracer is not None:
        lanes.tracer.copies_committed(lanes)
    lanes.groups.append(lanes.copies)
    lanes.copies = []


def make_wait_group(pending):
    """The form of cp.async.wait_group with `pending` as its literal operand."""

    def wait(lanes):
        everyone(lanes)
        if lanes.tracer is not None:
            lanes.tracer.copies_awaited(lanes, pending)
        while len(lanes.groups) > pending:
            for copy in lanes.groups.pop(0):
                finish_copy(lanes, *copy)

    return wait


def finish_copy(lanes, target, root, start, valid, chosen):
    """Copy 16 bytes a lane; zeros behind those that are valid."""
    if lanes.watch is not None:
        lanes.memory.root.flights[target >> 4] = False
        lanes.flying -= 1
        mask, lanes.mask = lanes.mask, np.zeros(lanes.size, bool)
        lanes.mask[chosen] = True
        watch_target(lanes, target)
        lanes.mask = mask
    raw = units(root, np.dtype(np.uint8))
    found = raw[np.minimum(start[:, None] + BYTES, raw.size - 1)]
    lanes.memory.bytes[target[:, None] + BYTES] = np.where(BYTES < valid[:, None], found, 0)


for _pending in range(8):
    in_lanes(getattr(async_copy, f"cp_async_wait_group_{_pending}"))(make_wait_group(_pending))
