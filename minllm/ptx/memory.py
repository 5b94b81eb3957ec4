"""Loads and stores of 32 to 128 bits, L2 prefetch, shared addresses and loads from them.

An `index` is the flat index of an element of a C-contiguous array; an access must be aligned to its size.
"""

import struct

import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.sim.arrays import fail
from minllm.sim.thread import current_thread

I32, I64 = ir.IntType(32), ir.IntType(64)
WORD, TWO_WORDS, WORDS = struct.Struct("<I"), struct.Struct("<2I"), struct.Struct("<4I")
FOUR_WORDS = ir.LiteralStructType([I32] * 4)


def four_words(array, index):
    """The 16 bytes at element `index` as four uint32."""
    return WORDS.unpack(array.window(index, 16))


def plain_words(builder, pointer):
    """The 16 bytes at `pointer` as four i32, by an LLVM vector load; LLVM infers its address space (global, shared, local)."""
    vector = builder.load(builder.bitcast(pointer, ir.VectorType(I32, 4).as_pointer()), align=16)
    return [builder.extract_element(vector, I32(i)) for i in range(4)]


def streaming_words(builder, pointer):
    """The 16 bytes at `pointer` in global memory as four i32, by a load that bypasses L1.

    It is not ld.global.nc, because ptxas moves read-only loads across any fence to their first use, so that only one is in flight at a
    time.
    """
    text = "ld.global.L1::no_allocate.L2::256B.v4.u32 {$0,$1,$2,$3}, [$4];"
    words = call_assembly(builder, assembly(text, ["=r"] * 4 + ["l"], FOUR_WORDS, [I64]), [builder.ptrtoint(pointer, I64)])
    return [builder.extract_value(words, i) for i in range(4)]


def make_ordered_load(name, word_count, description):
    """The function for a load of `word_count` words from global memory that the compiler does not move across a fence."""

    def load(typing_context, array, index):
        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            names = ",".join(f"${i}" for i in range(word_count))
            operands = f"{{{names}}}, [${word_count}]" if word_count > 1 else "$0, [$1]"
            vector = f".v{word_count}" if word_count > 1 else ""
            returned = ir.LiteralStructType([I32] * word_count) if word_count > 1 else I32
            code = assembly(f"ld.global.L2::256B{vector}.u32 {operands};", ["=r"] * word_count + ["l"], returned, [I64])
            words = call_assembly(builder, code, [builder.ptrtoint(pointer, I64)])
            if word_count == 1:
                return words
            return context.make_tuple(builder, signature.return_type, [builder.extract_value(words, i) for i in range(word_count)])

        returned = types.UniTuple(types.uint32, word_count) if word_count > 1 else types.uint32
        return returned(array, index), lower

    def emulation(array, index):
        words = [int(word) for word in array.window(index, 4 * word_count).view(np.uint32)]
        return tuple(words) if word_count > 1 else words[0]

    load.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(load), emulation)


load_32_ordered = make_ordered_load(
    "load_32_ordered",
    1,
    """load_32_ordered(array, index) -> uint32: 4 bytes from global memory; the compiler does not move the load across a
    `cuda.syncwarp()`. PTX ISA, "ld".""",
)
load_64_ordered = make_ordered_load(
    "load_64_ordered",
    2,
    """load_64_ordered(array, index) -> two uint32 from global memory; the compiler does not move the load across a `cuda.syncwarp()`. PTX
    ISA, "ld", vector v2.""",
)


def make_load_128(name, load_words, description):
    """The function for a 128-bit load that returns four words."""

    def load(typing_context, array, index):
        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            return context.make_tuple(builder, signature.return_type, load_words(builder, pointer))

        return types.UniTuple(types.uint32, 4)(array, index), lower

    def emulation(array, index):
        return four_words(array, index)

    load.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(load), emulation)


load_128 = make_load_128(
    "load_128",
    plain_words,
    """load_128(array, index) -> four uint32: the 16 bytes from element `index` on. PTX ISA, "ld", vector v4.""",
)
load_128_streaming = make_load_128(
    "load_128_streaming",
    streaming_words,
    """load_128_streaming(array, index) -> four uint32 from global memory, bypassing L1: for data that is read once. The compiler does not
    move the load across a `cuda.syncwarp()`. PTX ISA, "ld", with .level::eviction_priority and .level::prefetch_size.""",
)


def make_load_float32(name, load_words, description):
    """The function for a 128-bit load that returns 4 float32, or 8 bfloat16 or float16, as float32."""

    def load(typing_context, array, index):
        element = array.dtype
        single = element == types.float32
        count = 4 if single else 8

        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            values = []
            for word in load_words(builder, pointer):
                if single:
                    values.append(builder.bitcast(word, ir.FloatType()))
                elif element == types.float16:
                    for half in (builder.trunc(word, ir.IntType(16)), builder.trunc(builder.lshr(word, I32(16)), ir.IntType(16))):
                        values.append(builder.fpext(builder.bitcast(half, ir.HalfType()), ir.FloatType()))
                else:  # bfloat16 is the upper half of a float32
                    values.append(builder.bitcast(builder.shl(word, I32(16)), ir.FloatType()))
                    values.append(builder.bitcast(builder.and_(word, I32(0xFFFF0000)), ir.FloatType()))
            return context.make_tuple(builder, signature.return_type, values)

        return types.UniTuple(types.float32, count)(array, index), lower

    def emulation(array, index):
        return tuple(array.window(index, 16).view(array.dtype).astype(np.float32))

    load.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(load), emulation)


load_float32 = make_load_float32(
    "load_float32",
    plain_words,
    """load_float32(array, index) -> 16 bytes from element `index` on as float32 values: 4 of float32, 8 of bfloat16 or float16.""",
)
load_float32_streaming = make_load_float32(
    "load_float32_streaming",
    streaming_words,
    """load_float32_streaming(array, index): as load_float32, from global memory, bypassing L1: for data that is read once.""",
)


def store_128_emulation(array, index, word0, word1, word2, word3):
    """store_128(array, index, w0, w1, w2, w3): write 16 bytes from element `index` on. PTX ISA, "st", vector v4."""
    WORDS.pack_into(array.window(index, 16, kind="write"), 0, *(int(word) & 0xFFFFFFFF for word in (word0, word1, word2, word3)))


@intrinsic
def store_128(typing_context, array, index, word0, word1, word2, word3):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        words = [context.cast(builder, a, t, types.uint32) for a, t in zip(arguments[2:], signature.args[2:])]
        vector = ir.Constant(ir.VectorType(I32, 4), ir.Undefined)
        for i, word in enumerate(words):
            vector = builder.insert_element(vector, word, I32(i))
        builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=16)
        return context.get_dummy_value()

    return types.void(array, index, word0, word1, word2, word3), lower


store_128_emulation.__name__ = "store_128"
emulated(store_128, store_128_emulation)


def load_32_emulation(array, index):
    """load_32(array, index) -> uint32: 4 bytes, such as two bfloat16 or float16, from element `index` on. PTX ISA, "ld"."""
    return WORD.unpack(array.window(index, 4))[0]


@intrinsic
def load_32(typing_context, array, index):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        return builder.load(builder.bitcast(pointer, I32.as_pointer()), align=4)

    return types.uint32(array, index), lower


load_32_emulation.__name__ = "load_32"
emulated(load_32, load_32_emulation)


def prefetch_l2_emulation(array, index):
    """prefetch_l2(array, index): start fetching the line of global memory that holds element `index` into L2. PTX ISA, "prefetch"."""
    if not 0 <= int(index) < array.size:
        fail(f"a prefetch of element {int(index)} of the {array} of {array.size} elements")


@intrinsic
def prefetch_l2(typing_context, array, index):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        value = assembly("prefetch.global.L2 [$0];", ["l"], ir.VoidType(), [I64])
        call_assembly(builder, value, [builder.ptrtoint(pointer, I64)])
        return context.get_dummy_value()

    return types.void(array, index), lower


prefetch_l2_emulation.__name__ = "prefetch_l2"
emulated(prefetch_l2, prefetch_l2_emulation)


def store_32_emulation(array, index, word):
    """store_32(array, index, word): write 4 bytes, such as two bfloat16 or float16, from element `index` on. PTX ISA, "st"."""
    WORD.pack_into(array.window(index, 4, kind="write"), 0, int(word) & 0xFFFFFFFF)


@intrinsic
def store_32(typing_context, array, index, word):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        value = context.cast(builder, arguments[2], signature.args[2], types.uint32)
        builder.store(value, builder.bitcast(pointer, I32.as_pointer()), align=4)
        return context.get_dummy_value()

    return types.void(array, index, word), lower


store_32_emulation.__name__ = "store_32"
emulated(store_32, store_32_emulation)


def store_64_emulation(array, index, word0, word1):
    """store_64(array, index, w0, w1): write 8 bytes from element `index` on, aligned to 8 bytes. PTX ISA, "st", vector v2."""
    TWO_WORDS.pack_into(array.window(index, 8, alignment=8, kind="write"), 0, int(word0) & 0xFFFFFFFF, int(word1) & 0xFFFFFFFF)


@intrinsic
def store_64(typing_context, array, index, word0, word1):
    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        vector = ir.Constant(ir.VectorType(I32, 2), ir.Undefined)
        for i in range(2):
            word = context.cast(builder, arguments[2 + i], signature.args[2 + i], types.uint32)
            vector = builder.insert_element(vector, word, I32(i))
        builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(array, index, word0, word1), lower


store_64_emulation.__name__ = "store_64"
emulated(store_64, store_64_emulation)


def shared_address_emulation(array, index):
    """shared_address(array, index) -> uint32: the shared address of element `index`. PTX ISA, "cvta.to.shared"."""
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


def load_shared_32(address):
    """load_shared_32(address) -> uint32 at a shared address. The compiler may move the load anywhere between the computation of `address`
    and the use of the result, so the contents must not change in between. PTX ISA, "ld.shared"."""
    return int(current_thread().block.shared_root.window(int(address), 4, kind="read").view(np.uint32)[0])


load_shared_32 = instruction("ld.shared.b32 $0, [$1];", "r", "r", emulation=load_shared_32)
