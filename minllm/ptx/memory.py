"""Moving data: 128-bit loads and stores, and asynchronous copies from global to shared memory.

An `index` is always the flat index of an element of a C-contiguous array; 128-bit accesses must be aligned to 16 bytes.
"""

import numpy as np
from greenlet import getcurrent
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction

I16, I32, I64, F32 = ir.IntType(16), ir.IntType(32), ir.IntType(64), ir.FloatType()
VECTOR = ir.VectorType(I32, 4)


def plain_words(builder, pointer):
    """Four words by one vector load: LLVM knows what it reads and from which memory, so that it can be scheduled."""
    vector = builder.load(builder.bitcast(pointer, VECTOR.as_pointer()), align=16)
    return [builder.extract_element(vector, I32(i)) for i in range(4)]


def streaming_words(builder, pointer):
    """Four words through the read-only path, past L1, fetching 256 bytes into L2."""
    text = "ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3}, [$4];"
    value = assembly(text, ["=r"] * 4 + ["l"], ir.LiteralStructType([I32] * 4), [I64], touches_memory=False)
    words = call_assembly(builder, value, [builder.ptrtoint(pointer, I64)])
    return [builder.extract_value(words, i) for i in range(4)]


def as_words(builder, words, element):
    """The words as they are."""
    return words


def as_float32(builder, words, element):
    """The elements of four words as float32: four of float32, eight of float16 or bfloat16."""
    values = []
    for word in words:
        if element == types.float32:
            values.append(builder.bitcast(word, F32))
        elif element == types.float16:
            for half in (builder.trunc(word, I16), builder.trunc(builder.lshr(word, I32(16)), I16)):
                values.append(builder.fpext(builder.bitcast(half, ir.HalfType()), F32))
        else:  # a bfloat16 is the upper half of a float32
            values.append(builder.bitcast(builder.shl(word, I32(16)), F32))
            values.append(builder.bitcast(builder.and_(word, I32(0xFFFF0000)), F32))
    return values


def words_of(array, index):
    """The 16 bytes at element `index` as four uint32."""
    return tuple(int(word) for word in array.window(index, 16).view(np.uint32))


def floats_of(array, index):
    """The elements in the 16 bytes at element `index` as float32."""
    return tuple(array.window(index, 16).view(array.dtype).astype(np.float32))


def make_load(name, read_words, convert, emulate, description):
    """A 128-bit load: how the words are read, and what is made of them."""

    def load(typing_context, array, index):
        if convert is as_words:
            return_type = types.UniTuple(types.uint32, 4)
        else:
            return_type = types.UniTuple(types.float32, 4 if array.dtype == types.float32 else 8)

        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            values = convert(builder, read_words(builder, pointer), signature.args[0].dtype)
            return context.make_tuple(builder, signature.return_type, values)

        return return_type(array, index), lower

    def emulation(array, index):
        return emulate(array, index)

    load.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(load), emulation)


load_128 = make_load(
    "load_128",
    plain_words,
    as_words,
    words_of,
    """load_128(array, index) -> four uint32: the 16 bytes from element `index` on. PTX ISA, "ld", vector v4.""",
)
load_128_streaming = make_load(
    "load_128_streaming",
    streaming_words,
    as_words,
    words_of,
    """load_128_streaming(array, index) -> four uint32, through the read-only path and past L1: for global data that is read once and
    that no thread writes while the kernel runs. PTX ISA, "ld.global.nc".""",
)
load_float32 = make_load(
    "load_float32",
    plain_words,
    as_float32,
    floats_of,
    """load_float32(array, index) -> 16 bytes from element `index` on as float32 values: 4 of float32, 8 of bfloat16 or float16.""",
)
load_float32_streaming = make_load(
    "load_float32_streaming",
    streaming_words,
    as_float32,
    floats_of,
    """load_float32_streaming(array, index): as load_float32, through the read-only path and past L1, for data that is read once.""",
)


def store_128_emulation(array, index, word0, word1, word2, word3):
    """store_128(array, index, w0, w1, w2, w3): write 16 bytes from element `index` on. PTX ISA, "st", vector v4."""
    words = [int(word) & 0xFFFFFFFF for word in (word0, word1, word2, word3)]
    array.window(index, 16)[:] = np.array(words, np.uint32).view(np.uint8)


@intrinsic
def store_128(typing_context, array, index, word0, word1, word2, word3):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        vector = ir.Constant(VECTOR, ir.Undefined)
        for i, (word, given) in enumerate(zip(arguments[2:], signature.args[2:])):
            vector = builder.insert_element(vector, context.cast(builder, word, given, types.uint32), I32(i))
        builder.store(vector, builder.bitcast(pointer, VECTOR.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, index, word0, word1, word2, word3), lower


store_128_emulation.__name__ = "store_128"
emulated(store_128, store_128_emulation)


def shared_address_emulation(array, index):
    """shared_address(array, index) -> uint32: where element `index` lies in the block's shared window. PTX ISA, "cvta.to.shared"."""
    return array.base + int(index) * array.dtype.itemsize


@intrinsic
def shared_address(typing_context, array, index):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        window = ir.PointerType(pointer.type.pointee, addrspace=3)
        return builder.ptrtoint(builder.addrspacecast(pointer, window), I32)

    return types.uint32(array, index), lower


shared_address_emulation.__name__ = "shared_address"
emulated(shared_address, shared_address_emulation)


def cp_async_16_emulation(address, array, index, valid_bytes):
    """cp_async_16(shared_address, array, index, valid_bytes): start copying 16 bytes to shared memory; it is done once its group is
    waited for. Only the first `valid_bytes` (0 to 16) are read, the rest are zeros: how a tile reaches over a matrix's edge.
    PTX ISA, "cp.async", with src-size."""
    thread, valid = getcurrent(), int(valid_bytes)
    if int(address) % 16:
        from minllm.sim.arrays import fail

        fail(f"cp.async to shared address {int(address)}, which is not aligned to 16 bytes")
    source = array.window(index, valid, alignment=16) if valid else np.empty(0, np.uint8)
    thread.copies.append((int(address), source, valid))


@intrinsic
def cp_async_16(typing_context, address, array, index, valid_bytes):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[1], arguments[1], signature.args[2], arguments[2])
        address = context.cast(builder, arguments[0], signature.args[0], types.uint32)
        valid = context.cast(builder, arguments[3], signature.args[3], types.uint32)
        text = "cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;"
        value = assembly(text, ["r", "l", "r"], ir.VoidType(), [I32, I64, I32])
        call_assembly(builder, value, [address, builder.ptrtoint(pointer, I64), valid])
        return context.get_dummy_value()

    return types.void(address, array, index, valid_bytes), lower


cp_async_16_emulation.__name__ = "cp_async_16"
emulated(cp_async_16, cp_async_16_emulation)


def cp_async_commit_group():
    """Close the group of copies started since the last one. PTX ISA, "cp.async.commit_group"."""
    thread = getcurrent()
    thread.copy_groups.append(thread.copies)
    thread.copies = []


def finish_copies(pending_groups):
    """Let all but the newest `pending_groups` groups of this thread's copies arrive."""
    thread = getcurrent()
    while len(thread.copy_groups) > pending_groups:
        for address, source, valid in thread.copy_groups.popleft():
            thread.block.shared[address : address + valid] = source
            thread.block.shared[address + valid : address + 16] = 0


def make_wait_group(pending):
    """cp.async.wait_group with its literal operand."""

    def wait():
        finish_copies(pending)

    wait.__name__ = f"cp_async_wait_group_{pending}"
    wait.__doc__ = f"""Wait until at most {pending} of this thread's copy groups are under way. PTX ISA, "cp.async.wait_group"."""
    return instruction(f"cp.async.wait_group {pending};", emulation=wait, touches_memory=True)


cp_async_commit_group = instruction("cp.async.commit_group;", emulation=cp_async_commit_group, touches_memory=True)
cp_async_wait_group_0 = make_wait_group(0)
cp_async_wait_group_1 = make_wait_group(1)
cp_async_wait_group_2 = make_wait_group(2)
cp_async_wait_group_3 = make_wait_group(3)
