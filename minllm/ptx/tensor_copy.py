"""Tensor copies: asynchronous copies of tiles of 1 to 5 axes by TMA.

One thread starts a copy; TMA (the tensor memory accelerator) executes it. A tensor map describes the array, the box (shape of a tile), and
the layout of a tile in shared memory (runtime/tensor_map.py). A tile is given by the coordinates of its corner, fastest axis first as in
PTX. A load fills elements outside the array, a store skips them; only a load may begin at negative coordinates. bulk_copy.py describes how
to wait for a copy. PTX ISA, "Data movement and conversion instructions: tensor copy".
"""

import itertools
import sys

import numpy as np

from minllm.ptx.bulk_copy import start_copy
from minllm.ptx.instruction import instruction
from minllm.ptx.swizzle import CHUNK_BYTES, swizzled
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import RANK_SHIFT, BulkStore, asynchronous_view, shared_bytes, state
from minllm.sim.mbarrier import mbarrier_at
from minllm.sim.place import kernel_frame
from minllm.sim.thread import current_thread
from minllm.sim.transfer import run_of_chunks

TENSOR_ALIGNMENT = 128


def overlap(tensor_map, corner):
    """The overlap of a tile with its array: (slices of the array, slices of the tile)."""
    start = [max(at, 0) for at in corner]
    stop = [max(min(at + extent, size), first) for at, extent, size, first in zip(corner, tensor_map.box, tensor_map.array.shape, start)]
    places = list(zip(start, stop, corner))
    return tuple(slice(a, b) for a, b, _ in places), tuple(slice(a - at, b - at) for a, b, at in places)


def read_tile(tensor_map, corner):
    """The tile at `corner` (in the order of the array's axes), with the fill value for elements outside the array."""
    inside, within = overlap(tensor_map, corner)
    part = tensor_map.array.data[inside]
    if part.shape == tensor_map.box:
        return part
    tile = np.zeros(tensor_map.box, part.dtype)
    if tensor_map.fill == "nan":
        tile[...] = np.nan
    tile[within] = part
    return tile


def write_tile(tensor_map, corner, tile):
    """Write the part of a tile that lies inside the array."""
    inside, within = overlap(tensor_map, corner)
    tensor_map.array.data[inside] = tile[within]


def report_tile(tensor_map, corner, kind):
    """Report to the monitor, for each line of the tile, the bytes of the array that a copy reads or writes; returns the lines.

    Each line is (array, first byte in its root, bytes); none without a monitor.
    """
    thread, array = current_thread(), tensor_map.array
    if thread.block.monitor is None:
        return []
    frame, itemsize = kernel_frame(sys._getframe(1)), array.dtype.itemsize
    *outer, inner = overlap(tensor_map, corner)[0]
    count = (inner.stop - inner.start) * itemsize
    if count == 0:
        return []
    places = [range(part.start * stride, part.stop * stride, stride) for part, stride in zip(outer, array.strides)]
    first = array.base + inner.start * array.strides[-1]
    starts = [first + sum(place) for place in itertools.product(*places)]
    thread.block.monitor.accesses(thread, array, starts, count, kind, frame)
    return [(array, start, count) for start in starts]


def corner_of(coordinates, tensor_map):
    """A kernel's coordinates, uint32 with the fastest axis first, as signed indices in the order of the array's axes."""
    if len(coordinates) != len(tensor_map.box):
        fail(f"a copy with {len(coordinates)} coordinates from an array with {len(tensor_map.box)} axes")
    return [(int(at) + (1 << 31)) % (1 << 32) - (1 << 31) for at in reversed(coordinates)]


def loaded_corner(coordinates, tensor_map):
    """corner_of for a load, which must begin at a multiple of 16 bytes in a row of the array."""
    corner, itemsize = corner_of(coordinates, tensor_map), tensor_map.array.dtype.itemsize
    if corner[-1] * itemsize % CHUNK_BYTES:
        start = f"element {corner[-1]}, {itemsize} bytes each, of a row"
        fail(f"a tile is loaded from {start}: a GPU traps (an illegal instruction) unless that is a multiple of {CHUNK_BYTES} bytes")
    return corner


def tile_chunks(offset, tensor_map):
    """For each 16-byte chunk of a tile, its swizzled position in shared memory (address / 16)."""
    return swizzled(offset // CHUNK_BYTES + np.arange(tensor_map.box_bytes // CHUNK_BYTES), tensor_map.swizzle)


def tile_lines(offset, tensor_map, corner):
    """The bytes of a tile in the swizzled layout of shared memory from `offset` on."""
    tile = np.ascontiguousarray(read_tile(tensor_map, corner)).reshape(-1).view(np.uint8).reshape(-1, CHUNK_BYTES)
    lines = np.empty_like(tile)
    lines[tile_chunks(offset, tensor_map) - offset // CHUNK_BYTES] = tile
    return lines.reshape(-1)


def start_tile(block, offset, tensor_map, corner, barrier):
    """Start the copy of a tile to shared memory."""
    start_copy(block, offset, tensor_map.box_bytes, barrier, lambda: tile_lines(offset, tensor_map, corner))


def make_tensor_load(axes):
    """The functions for cp.async.bulk.tensor.Nd from global to shared memory: (of one block, of several blocks of the cluster)."""

    def load(address, tensor_map, *operands):
        *coordinates, barrier = operands
        block, offset = tile_place(address, tensor_map)
        completes = mbarrier_at(barrier)
        if completes.block is not block:
            fail("a tile for one block that completes on another block's mbarrier")
        corner = loaded_corner(coordinates, tensor_map)
        report_tile(tensor_map, corner, "read")
        start_tile(block, offset, tensor_map, corner, completes)

    def multicast(address, tensor_map, *operands):
        *coordinates, barrier, mask = operands
        cluster, corner = current_thread().block.cluster, loaded_corner(coordinates, tensor_map)
        if cluster is None or int(mask) >> len(cluster.blocks):
            fail(f"a multicast copy to the blocks {int(mask):#x} of a cluster of {len(cluster.blocks) if cluster else 1}")
        report_tile(tensor_map, corner, "read")
        for rank in range(len(cluster.blocks)):
            if int(mask) >> rank & 1:
                in_rank = (rank + 1) << RANK_SHIFT
                block, offset = tile_place(in_rank | int(address) & (1 << RANK_SHIFT) - 1, tensor_map)
                start_tile(block, offset, tensor_map, corner, mbarrier_at(in_rank | int(barrier) & (1 << RANK_SHIFT) - 1))

    places = ", ".join(f"c{axis}" for axis in range(axes))
    load.__name__ = f"cp_async_bulk_tensor_{axes}d_shared_global"
    load.__doc__ = f"""{load.__name__}(address, tensor_map, {places}, barrier): start copying the tile at these coordinates (fastest axis
    first) to a shared address, a multiple of 128; the copy completes on the mbarrier. An H100 traps unless c0 is a multiple of 16 bytes.
    PTX ISA, "cp.async.bulk.tensor"."""
    multicast.__name__ = f"{load.__name__}_multicast"
    multicast.__doc__ = f"""{multicast.__name__}(address, tensor_map, {places}, barrier, mask): the same to the same address of every
    block of the cluster whose rank's bit is set in `mask`; each completes on the mbarrier at the same address there. PTX ISA,
    "cp.async.bulk.tensor"."""
    corner = ", ".join(f"${2 + axis}" for axis in range(axes))
    text = f"cp.async.bulk.tensor.{axes}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    operands = f"[$0], [$1, {{{corner}}}], [${2 + axes}]"
    return (
        instruction(f"{text} {operands};", "", "rl" + "r" * axes + "r", emulation=load, touches_memory=True),
        instruction(
            f"{text}.multicast::cluster {operands}, ${3 + axes};", "", "rl" + "r" * axes + "rh", emulation=multicast, touches_memory=True
        ),
    )


def tile_place(address, tensor_map):
    """(block, offset) of the shared memory for a tile."""
    return shared_bytes(address, tensor_map.box_bytes, TENSOR_ALIGNMENT)


def make_tensor_store(axes):
    """The function for cp.async.bulk.tensor.Nd from shared to global memory."""

    def store(tensor_map, *operands):
        *coordinates, address = operands
        block, offset = tile_place(address, tensor_map)
        corner, chunks = corner_of(coordinates, tensor_map), tile_chunks(offset, tensor_map)
        if min(corner) < 0:
            fail(f"a tile is stored at {corner}: a GPU traps at a negative coordinate (an illegal instruction), though it fetches from one")
        targets = report_tile(tensor_map, corner, "write")

        def read():
            lines = asynchronous_view(block).reshape(-1, CHUNK_BYTES)
            return lines[chunks].reshape(-1).view(tensor_map.array.dtype).reshape(tensor_map.box)

        own = run_of_chunks(offset, tensor_map.box_bytes)
        state(current_thread()).stores.append(BulkStore(read, lambda tile: write_tile(tensor_map, corner, tile), block, own, targets))

    store.__name__ = f"cp_async_bulk_tensor_{axes}d_global_shared"
    places = ", ".join(f"c{axis}" for axis in range(axes))
    store.__doc__ = f"""{store.__name__}(tensor_map, {places}, address): start copying a tile from a shared address, a multiple of 128,
    to these coordinates (fastest axis first), in the thread's open bulk group. A tile may extend beyond the array's end, where nothing is
    written, but its coordinates must not be negative: an H200 traps at such a store. PTX ISA, "cp.async.bulk.tensor"."""
    corner = ", ".join(f"${1 + axis}" for axis in range(axes))
    text = f"cp.async.bulk.tensor.{axes}d.global.shared::cta.bulk_group [$0, {{{corner}}}], [${1 + axes}];"
    return instruction(text, "", "l" + "r" * axes + "r", emulation=store, touches_memory=True)


cp_async_bulk_tensor_1d_shared_global, cp_async_bulk_tensor_1d_shared_global_multicast = make_tensor_load(1)
cp_async_bulk_tensor_2d_shared_global, cp_async_bulk_tensor_2d_shared_global_multicast = make_tensor_load(2)
cp_async_bulk_tensor_3d_shared_global, cp_async_bulk_tensor_3d_shared_global_multicast = make_tensor_load(3)
cp_async_bulk_tensor_4d_shared_global, cp_async_bulk_tensor_4d_shared_global_multicast = make_tensor_load(4)
cp_async_bulk_tensor_5d_shared_global, cp_async_bulk_tensor_5d_shared_global_multicast = make_tensor_load(5)
cp_async_bulk_tensor_1d_global_shared = make_tensor_store(1)
cp_async_bulk_tensor_2d_global_shared = make_tensor_store(2)
cp_async_bulk_tensor_3d_global_shared = make_tensor_store(3)
cp_async_bulk_tensor_4d_global_shared = make_tensor_store(4)
cp_async_bulk_tensor_5d_global_shared = make_tensor_store(5)
