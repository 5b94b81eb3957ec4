"""Bulk copies: asynchronous copies of contiguous bytes by TMA.

One thread starts a copy; TMA (the tensor memory accelerator) executes it. A copy into shared memory completes on an mbarrier, at which
readers wait. The thread that starts copies out of shared memory commits them in groups and waits for these: with `..._read` until the
sources may be overwritten, without it until the writes are done. A copy sees threads' stores only after a `fence_proxy_async`. All this is
also true of the tiles of tensor_copy.py. PTX ISA, "Data movement and conversion instructions: bulk copy".
"""

from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.ptx.swizzle import CHUNK_BYTES
from minllm.sim.arrays import fail
from minllm.sim.asynchrony import BulkStore, asynchronous_view, commit_stores, shared_bytes, state, wait_for_stores
from minllm.sim.mbarrier import mbarrier_at
from minllm.sim.thread import current_thread
from minllm.sim.transfer import end_transfer, run_of_chunks, start_transfer

I32, I64 = ir.IntType(32), ir.IntType(64)


def deliver(block, offset, data):
    """Write bytes to shared memory as TMA does: visible to threads and to the async proxy."""
    block.shared[offset : offset + data.size] = data
    asynchronous_view(block)[offset : offset + data.size] = data


def start_copy(block, offset, byte_count, barrier, data):
    """Start a copy into shared memory that completes on an MBarrier; `data()` returns the bytes that arrive."""
    thread = current_thread()
    block.shared_transfer(thread, "bulk", offset, byte_count)
    transfer = start_transfer(thread, block, "a bulk copy", "write", run_of_chunks(offset, byte_count), barrier)
    barrier.start_copy(byte_count, lambda starter: deliver(block, offset, data()), transfer)


def check_run(address, byte_count):
    """(block, offset, length) of contiguous bytes in shared memory. Raises SimulationError if a bulk copy does not support them."""
    if int(byte_count) % CHUNK_BYTES:
        fail(f"a bulk copy of {int(byte_count)} bytes; it takes multiples of {CHUNK_BYTES}")
    return *shared_bytes(address, int(byte_count), CHUNK_BYTES), int(byte_count)


def shared_global_emulation(address, array, index, byte_count, barrier):
    """cp_async_bulk_shared_global(address, array, index, byte_count, barrier): start copying `byte_count` bytes (a multiple of 16) from
    element `index` on to a shared address; the copy completes on the mbarrier. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    source = array.window(index, count, alignment=CHUNK_BYTES)
    start_copy(block, offset, count, mbarrier_at(barrier), lambda: source)


def global_shared_emulation(array, index, address, byte_count):
    """cp_async_bulk_global_shared(array, index, address, byte_count): start copying `byte_count` bytes (a multiple of 16) from a shared
    address to element `index` on, in the thread's open bulk group. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    target = array.window(index, count, alignment=CHUNK_BYTES, kind="write")

    def write(data):
        target[:] = data

    def read():
        return asynchronous_view(block)[offset : offset + count].copy()

    targets = [(array, array.base + int(index) * array.itemsize, count)]
    state(current_thread()).stores.append(BulkStore(read, write, block, run_of_chunks(offset, count), targets))


def cp_async_bulk_shared_shared(address, source, byte_count, barrier):
    """cp_async_bulk_shared_shared(address, source, byte_count, barrier): start copying `byte_count` bytes (a multiple of 16) from this
    block's shared address `source` to a shared::cluster address; the copy completes on an mbarrier there. PTX ISA, "cp.async.bulk"."""
    block, offset, count = check_run(address, byte_count)
    own, start, _ = check_run(source, byte_count)
    reading = start_transfer(current_thread(), own, "a bulk copy", "read", run_of_chunks(start, count))

    def read():
        end_transfer(reading, [current_thread()] if current_thread().block is own else [])
        return asynchronous_view(own)[start : start + count].copy()

    start_copy(block, offset, count, mbarrier_at(barrier), read)


@intrinsic
def cp_async_bulk_shared_global(typing_context, address, array, index, byte_count, barrier):
    """Start copying bytes from array[index] on to shared memory at `address`; the copy completes on the mbarrier `barrier`."""

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
    """Start copying bytes from shared memory at `address` to array[index] on, as part of the thread's bulk group."""

    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        address, count = (context.cast(builder, arguments[i], signature.args[i], types.uint32) for i in (2, 3))
        text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
        value = assembly(text, ["l", "r", "r"], ir.VoidType(), [I64, I32, I32])
        call_assembly(builder, value, [builder.ptrtoint(pointer, I64), address, count])
        return context.get_dummy_value()

    return types.void(array, index, address, byte_count), lower


def cp_async_bulk_commit_group():
    """Commit this thread's bulk copies out of shared memory since its last group as a new group. PTX ISA, "cp.async.bulk.commit_group"."""
    commit_stores()


def make_wait_group(pending, read):
    """The function for cp.async.bulk.wait_group, with or without .read, with `pending` as its literal operand."""

    def wait():
        wait_for_stores(pending, only_read=read)

    wait.__name__ = f"cp_async_bulk_wait_group{'_read' if read else ''}_{pending}"
    done = "have yet to read their sources" if read else "are in flight"
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
