"""Bulk copies: one thread starts a copy of a whole tile or a run of bytes, and the copy engine does it beside the threads.

Into shared memory, a copy reports its bytes to an mbarrier, for which the readers wait. Out of shared memory, copies are put in groups
for which the thread that started them waits: `..._read` until their source may be overwritten, without it until they are written.
What threads themselves have stored reaches a copy only past a `fence_proxy_async`. Tensor copies name a tile by the coordinates of its
corner, the fastest axis first, as PTX does; runtime/tensor_map.py says how the tile lies in shared memory.
PTX ISA, "Data movement and conversion instructions: bulk copy" and "Tensor copy".
"""

import numpy as np
from greenlet import getcurrent
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.ptx.swizzle import CHUNK_BYTES, swizzled
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import (
    RANK_SHIFT,
    BulkStore,
    asynchronous_view,
    commit_stores,
    mbarrier_at,
    shared_bytes,
    state,
    wait_for_stores,
)

I32, I64 = ir.IntType(32), ir.IntType(64)
TENSOR_ALIGNMENT = 128


def read_tile(tensor_map, corner):
    """The tile whose first element is at `corner` (the array's axes, may lie outside), filled where there is no array."""
    array, box = tensor_map.array, tensor_map.box
    start = [max(at, 0) for at in corner]
    stop = [max(min(at + extent, size), first) for at, extent, size, first in zip(corner, box, array.shape, start)]
    part = array[tuple(slice(a, b) for a, b in zip(start, stop))]
    if part.shape == box:
        return part
    tile = np.zeros(box, array.dtype)
    if tensor_map.fill == "nan":
        tile[...] = np.nan
    tile[tuple(slice(a - at, b - at) for a, b, at in zip(start, stop, corner))] = part
    return tile


def write_tile(tensor_map, corner, tile):
    """Write the part of a tile that lies inside of the array."""
    array = tensor_map.array
    start = [max(at, 0) for at in corner]
    stop = [max(min(at + extent, size), first) for at, extent, size, first in zip(corner, tensor_map.box, array.shape, start)]
    part = tile[tuple(slice(a - at, b - at) for a, b, at in zip(start, stop, corner))]
    array[tuple(slice(a, b) for a, b in zip(start, stop))] = part


def corner_of(coordinates, tensor_map):
    """Coordinates as a kernel gives them, fastest axis first, as indices of the array's axes."""
    if len(coordinates) != len(tensor_map.box):
        fail(f"a copy with {len(coordinates)} coordinates from an array with {len(tensor_map.box)} axes")
    return [(int(at) + (1 << 31)) % (1 << 32) - (1 << 31) for at in reversed(coordinates)]


def tile_chunks(offset, tensor_map):
    """Where the 16-byte chunks of a tile lie in shared memory, in units of chunks."""
    return swizzled(offset // CHUNK_BYTES + np.arange(tensor_map.box_bytes // CHUNK_BYTES), tensor_map.swizzle)


def deliver(block, offset, data, thread):
    """Write bytes to shared memory as the copy engine does for `thread`: visible to threads and to the asynchronous units."""
    block.shared_root.window(offset, data.size, alignment=1, kind="write", thread=thread)[:] = data
    asynchronous_view(block)[offset : offset + data.size] = data


def deliver_tile(block, offset, tensor_map, corner, thread):
    """Fetch a tile and write it to shared memory, swizzled."""
    tile = np.ascontiguousarray(read_tile(tensor_map, corner)).reshape(-1).view(np.uint8).reshape(-1, CHUNK_BYTES)
    lines = np.empty_like(tile)
    lines[tile_chunks(offset, tensor_map) - offset // CHUNK_BYTES] = tile
    deliver(block, offset, lines.reshape(-1), thread)


def start_tile(block, offset, tensor_map, corner, barrier):
    """A tile is on its way to shared memory."""
    barrier.block.shared_transfer(getcurrent(), "bulk", offset, tensor_map.box_bytes)
    barrier.start_copy(tensor_map.box_bytes, lambda thread: deliver_tile(block, offset, tensor_map, corner, thread))


def make_tensor_load(axes):
    """cp.async.bulk.tensor.Nd from global to shared memory, to one block or to several of the cluster."""

    def load(address, tensor_map, *operands):
        *coordinates, barrier = operands
        block, offset = tile_place(address, tensor_map)
        completes = mbarrier_at(barrier)
        if completes.block is not block:
            fail("a tile for one block that completes on another block's mbarrier")
        start_tile(block, offset, tensor_map, corner_of(coordinates, tensor_map), completes)

    def multicast(address, tensor_map, *operands):
        *coordinates, barrier, mask = operands
        cluster, corner = getcurrent().block.cluster, corner_of(coordinates, tensor_map)
        if cluster is None or int(mask) >> len(cluster.blocks):
            fail(f"a multicast copy to the blocks {int(mask):#x} of a cluster of {len(cluster.blocks) if cluster else 1}")
        for rank in range(len(cluster.blocks)):
            if int(mask) >> rank & 1:
                in_rank = (rank + 1) << RANK_SHIFT
                block, offset = tile_place(in_rank | int(address) & (1 << RANK_SHIFT) - 1, tensor_map)
                start_tile(block, offset, tensor_map, corner, mbarrier_at(in_rank | int(barrier) & (1 << RANK_SHIFT) - 1))

    places = ", ".join(f"c{axis}" for axis in range(axes))
    load.__name__ = f"cp_async_bulk_tensor_{axes}d_shared_global"
    load.__doc__ = f"""{load.__name__}(address, tensor_map, {places}, barrier): start copying the tile at these coordinates (fastest axis
    first) to a shared address, a multiple of 128; its bytes are reported to the mbarrier. PTX ISA, "cp.async.bulk.tensor"."""
    multicast.__name__ = f"{load.__name__}_multicast"
    multicast.__doc__ = f"""{multicast.__name__}(address, tensor_map, {places}, barrier, mask): the same to the same address of every
    block of the cluster whose rank's bit is set in `mask`, each reported to the mbarrier at the same address there. PTX ISA,
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
    """cp.async.bulk.tensor.Nd from shared to global memory."""

    def store(tensor_map, *operands):
        *coordinates, address = operands
        block, offset = tile_place(address, tensor_map)
        corner, chunks = corner_of(coordinates, tensor_map), tile_chunks(offset, tensor_map)

        def read():
            lines = asynchronous_view(block).reshape(-1, CHUNK_BYTES)
            return lines[chunks].reshape(-1).view(tensor_map.array.dtype).reshape(tensor_map.box)

        state(getcurrent()).stores.append(BulkStore(read, lambda tile: write_tile(tensor_map, corner, tile)))

    store.__name__ = f"cp_async_bulk_tensor_{axes}d_global_shared"
    places = ", ".join(f"c{axis}" for axis in range(axes))
    store.__doc__ = f"""{store.__name__}(tensor_map, {places}, address): start copying a tile from a shared address, a multiple of 128,
    to these coordinates (fastest axis first), in the thread's open bulk group. PTX ISA, "cp.async.bulk.tensor"."""
    corner = ", ".join(f"${1 + axis}" for axis in range(axes))
    text = f"cp.async.bulk.tensor.{axes}d.global.shared::cta.bulk_group [$0, {{{corner}}}], [${1 + axes}];"
    return instruction(text, "", "l" + "r" * axes + "r", emulation=store, touches_memory=True)


def check_run(address, byte_count):
    """(block, offset) of a run of bytes in shared memory, and its length."""
    if int(byte_count) % CHUNK_BYTES:
        fail(f"a bulk copy of {int(byte_count)} bytes; it takes multiples of {CHUNK_BYTES}")
    return *shared_bytes(address, int(byte_count), CHUNK_BYTES), int(byte_count)


def shared_global_emulation(address, array, index, byte_count, barrier):
    """cp_async_bulk_shared_global(address, array, index, byte_count, barrier): start copying `byte_count` bytes (a multiple of 16) from
    element `index` on to a shared address; they are reported to the mbarrier. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    source = array.window(index, count, alignment=CHUNK_BYTES)
    block.shared_transfer(getcurrent(), "bulk", offset, count)
    mbarrier_at(barrier).start_copy(count, lambda thread: deliver(block, offset, source, thread))


def global_shared_emulation(array, index, address, byte_count):
    """cp_async_bulk_global_shared(array, index, address, byte_count): start copying `byte_count` bytes (a multiple of 16) from a shared
    address to element `index` on, in the thread's open bulk group. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    target = array.window(index, count, alignment=CHUNK_BYTES, kind="write")

    def write(data):
        target[:] = data

    state(getcurrent()).stores.append(BulkStore(lambda: asynchronous_view(block)[offset : offset + count].copy(), write))


def cp_async_bulk_shared_shared(address, source, byte_count, barrier):
    """cp_async_bulk_shared_shared(address, source, byte_count, barrier): start copying `byte_count` bytes (a multiple of 16) from this
    block's shared address `source` to a shared::cluster address, reported to the mbarrier of the block there. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    own, start, _ = check_run(source, byte_count)
    view = asynchronous_view(own)
    mbarrier_at(barrier).start_copy(count, lambda thread: deliver(block, offset, view[start : start + count].copy(), thread))


@intrinsic
def cp_async_bulk_shared_global(typing_context, address, array, index, byte_count, barrier):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[1], arguments[1], signature.args[2], arguments[2])
        address, count, completes = (context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (0, 3, 4))
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
        value = assembly(text, ["r", "l", "r", "r"], ir.VoidType(), [I32, I64, I32, I32])
        call_assembly(builder, value, [address, builder.ptrtoint(pointer, I64), count, completes])
        return context.get_dummy_value()

    return types.void(address, array, index, byte_count, barrier), lower


@intrinsic
def cp_async_bulk_global_shared(typing_context, array, index, address, byte_count):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        address, count = (context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (2, 3))
        text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
        value = assembly(text, ["l", "r", "r"], ir.VoidType(), [I64, I32, I32])
        call_assembly(builder, value, [builder.ptrtoint(pointer, I64), address, count])
        return context.get_dummy_value()

    return types.void(array, index, address, byte_count), lower


def cp_async_bulk_commit_group():
    """Close the group of bulk copies out of shared memory that this thread has started since the last one. PTX ISA,
    "cp.async.bulk.commit_group"."""
    commit_stores()


def make_wait_group(pending, read):
    """cp.async.bulk.wait_group, with or without .read, with its literal operand."""

    def wait():
        wait_for_stores(pending, only_read=read)

    wait.__name__ = f"cp_async_bulk_wait_group{'_read' if read else ''}_{pending}"
    done = "have yet to read their sources" if read else "are under way"
    wait.__doc__ = f"""Wait until at most {pending} of this thread's bulk groups {done}. PTX ISA, "cp.async.bulk.wait_group"."""
    return instruction(f"cp.async.bulk.wait_group{'.read' if read else ''} {pending};", emulation=wait, touches_memory=True)


shared_global_emulation.__name__ = "cp_async_bulk_shared_global"
emulated(cp_async_bulk_shared_global, shared_global_emulation)
global_shared_emulation.__name__ = "cp_async_bulk_global_shared"
emulated(cp_async_bulk_global_shared, global_shared_emulation)
cp_async_bulk_shared_shared = instruction(
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    "",
    "rrrr",
    emulation=cp_async_bulk_shared_shared,
    touches_memory=True,
)
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
cp_async_bulk_commit_group = instruction("cp.async.bulk.commit_group;", emulation=cp_async_bulk_commit_group, touches_memory=True)
cp_async_bulk_wait_group_0, cp_async_bulk_wait_group_1, cp_async_bulk_wait_group_2, cp_async_bulk_wait_group_3 = (
    make_wait_group(pending, False) for pending in range(4)
)
(
    cp_async_bulk_wait_group_read_0,
    cp_async_bulk_wait_group_read_1,
    cp_async_bulk_wait_group_read_2,
    cp_async_bulk_wait_group_read_3,
) = (make_wait_group(pending, True) for pending in range(4))
