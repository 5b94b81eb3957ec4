"""cp.async: asynchronous copies of 16 bytes from global to shared memory.

A thread commits its copies in groups, and waits until at most N of its groups are in flight. From then on it sees the data of the complete
groups; other threads see them after a barrier. PTX ISA, "Data Movement and Conversion Instructions: cp.async".
"""

import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.sim.arrays import fail
from minllm.sim.thread import current_thread
from minllm.sim.transfer import commit, end_transfer, start_transfer

I32, I64 = ir.IntType(32), ir.IntType(64)


def make_cp_async_16(name, prefetch, description):
    """The function for cp.async of 16 bytes that bypasses L1; prefetch: the qualifier for the size of L2's fetch."""

    def emulation(address, array, index, valid_bytes):
        thread, valid = current_thread(), int(valid_bytes)
        if int(address) % 16:
            fail(f"cp.async to shared address {int(address)}, which is not aligned to 16 bytes")
        source = array.window(index, valid, alignment=16) if valid else np.empty(0, np.uint8)
        thread.block.shared_transfer(thread, "cp_async", int(address), 16)
        chunk = int(address) // 16
        transfer = start_transfer(thread, thread.block, "cp.async", "write", np.arange(chunk, chunk + 1)) if thread.block.monitor else None
        thread.copies.append((int(address), source, valid, transfer))

    def copy(typing_context, address, array, index, valid_bytes):
        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[1], arguments[1], signature.args[2], arguments[2])
            address = context.cast(builder, arguments[0], signature.args[0], types.uint32)
            valid = context.cast(builder, arguments[3], signature.args[3], types.uint32)
            text = f"cp.async.cg.shared.global{prefetch} [$0], [$1], 16, $2;"
            value = assembly(text, ["r", "l", "r"], ir.VoidType(), [I32, I64, I32])
            call_assembly(builder, value, [address, builder.ptrtoint(pointer, I64), valid])
            return context.get_dummy_value()

        return types.void(address, array, index, valid_bytes), lower

    copy.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(copy), emulation)


cp_async_16 = make_cp_async_16(
    "cp_async_16",
    ".L2::128B",
    """cp_async_16(shared_address, array, index, valid_bytes): start copying 16 bytes to shared memory; the copy is complete once its group
    has been waited for. Only the first `valid_bytes` (0 to 16; 0 or 16 before compute capability 8.0) are read, the rest are zeros,
    for tiles at the edge of a matrix. L2 fetches the line of 128 bytes. PTX ISA, "cp.async", with src-size and .level::prefetch_size.""",
)
cp_async_16_narrow = make_cp_async_16(
    "cp_async_16_narrow",
    "",
    """cp_async_16_narrow(shared_address, array, index, valid_bytes): as cp_async_16, but L2 fetches only the sector of 32 bytes: for rows
    shorter than a line whose neighbours are not needed soon.""",
)


def cp_async_commit_group():
    """Commit this thread's copies since its last group as a new group. PTX ISA, "cp.async.commit_group"."""
    thread = current_thread()
    commit(transfer for *_, transfer in thread.copies)
    thread.copy_groups.append(thread.copies)
    thread.copies = []
    thread.block.shared_transfer(thread, "cp_async_commit_group", 0, 0)


def finish_copies(pending_groups):
    """Complete all but the newest `pending_groups` groups of this thread's copies."""
    thread = current_thread()
    while len(thread.copy_groups) > pending_groups:
        for address, source, valid, transfer in thread.copy_groups.popleft():
            end_transfer(transfer, [thread])
            target = thread.block.shared_root.window(address, 16, kind="write")
            target[:valid] = source
            target[valid:] = 0


def make_wait_group(pending):
    """The function for cp.async.wait_group with `pending` as its literal operand."""

    def wait():
        thread = current_thread()
        thread.block.shared_transfer(thread, f"cp_async_wait_group_{pending}", 0, 0)
        finish_copies(pending)

    wait.__name__ = f"cp_async_wait_group_{pending}"
    wait.__doc__ = f"""Wait until at most {pending} of this thread's copy groups are in flight. PTX ISA, "cp.async.wait_group"."""
    return instruction(f"cp.async.wait_group {pending};", emulation=wait, touches_memory=True)


cp_async_commit_group = instruction("cp.async.commit_group;", emulation=cp_async_commit_group, touches_memory=True)
(
    cp_async_wait_group_0,
    cp_async_wait_group_1,
    cp_async_wait_group_2,
    cp_async_wait_group_3,
    cp_async_wait_group_4,
    cp_async_wait_group_5,
    cp_async_wait_group_6,
    cp_async_wait_group_7,
) = (make_wait_group(pending) for pending in range(8))
