"""Loads and stores of system scope: flags and words that one GPU writes and another one reads.

An `index` is the flat index of an element of a C-contiguous array, in this GPU's memory or in a peer's. Each element is read and written
as a whole, never in halves. PTX ISA, "Memory Consistency Model".

    release    a thread that reads the stored value with acquire also sees the storing thread's earlier writes
    relaxed    orders no other access: for a value that is complete in itself, such as a word that holds both data and flag
"""

import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated
from minllm.sim import system_scope

I32, I64 = ir.IntType(32), ir.IntType(64)


def make_store(name, text, element, words, ordering, description):
    """The function for a store of `words` elements of a Numba type. text: PTX; ordering: "release" or "relaxed"."""
    low = I32 if element is types.uint32 else I64
    dtype = np.uint32 if element is types.uint32 else np.uint64

    def lower(context, builder, signature, arguments):
        pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
        values = [context.cast(builder, a, t, element) for a, t in zip(arguments[2:], signature.args[2:])]
        constraints = ["l", *("r" if low is I32 else "l" for _ in values)]
        value = assembly(text, constraints, ir.VoidType(), [I64, *(low for _ in values)])
        call_assembly(builder, value, [builder.ptrtoint(pointer, I64), *values])
        return context.get_dummy_value()

    def one(typing_context, array, index, word):
        return types.void(array, index, word), lower

    def two(typing_context, array, index, word0, word1):
        return types.void(array, index, word0, word1), lower

    def emulation(array, index, *values):
        mask = (1 << 8 * dtype().itemsize) - 1
        stored = np.array([int(value) & mask for value in values], dtype)
        system_scope.window(array, index, stored.nbytes, ordering)[:] = stored.view(np.uint8)

    return finished(one if words == 1 else two, emulation, name, description)


def make_load(name, text, element, words, ordering, description):
    """The function for a load of `words` elements of a Numba type. text: PTX; ordering: "acquire" or "relaxed"."""
    low = I32 if element is types.uint32 else I64
    dtype = np.dtype(np.uint32 if element is types.uint32 else np.uint64)

    def load(typing_context, array, index):
        def lower(context, builder, signature, arguments):
            pointer = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            result = low if words == 1 else ir.LiteralStructType([low] * words)
            constraints = [*("=r" if low is I32 else "=l" for _ in range(words)), "l"]
            found = call_assembly(builder, assembly(text, constraints, result, [I64]), [builder.ptrtoint(pointer, I64)])
            if words == 1:
                return found
            return context.make_tuple(builder, signature.return_type, [builder.extract_value(found, i) for i in range(words)])

        return (element if words == 1 else types.UniTuple(element, words))(array, index), lower

    def emulation(array, index):
        found = system_scope.load(array, index, words * dtype.itemsize, dtype, ordering)
        return found[0] if words == 1 else found

    return finished(load, emulation, name, description)


def finished(function, emulation, name, description):
    """The intrinsic with its emulation attached, both with this name and docstring."""
    function.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(function), emulation)


st_release_sys_u32 = make_store(
    "st_release_sys_u32",
    "st.release.sys.global.u32 [$0], $1;",
    types.uint32,
    1,
    "release",
    """st_release_sys_u32(array, index, value): store a flag after which this thread's earlier writes are visible to all GPUs. PTX ISA,
    "st", .release, .sys.""",
)
ld_acquire_sys_u32 = make_load(
    "ld_acquire_sys_u32",
    "ld.acquire.sys.global.u32 $0, [$1];",
    types.uint32,
    1,
    "acquire",
    """ld_acquire_sys_u32(array, index) -> uint32: load a flag; what its writer did before storing it with release is visible from then on.
    PTX ISA, "ld", .acquire, .sys.""",
)
st_relaxed_sys_u32 = make_store(
    "st_relaxed_sys_u32",
    "st.relaxed.sys.global.u32 [$0], $1;",
    types.uint32,
    1,
    "relaxed",
    """st_relaxed_sys_u32(array, index, value): store a word that other GPUs read; it says nothing of other writes. PTX ISA, "st", .relaxed,
    .sys.""",
)
st_relaxed_sys_v2_u64 = make_store(
    "st_relaxed_sys_v2_u64",
    "st.relaxed.sys.global.v2.u64 [$0], {$1, $2};",
    types.uint64,
    2,
    "relaxed",
    """st_relaxed_sys_v2_u64(array, index, word0, word1): store two words of 8 bytes, each of them whole, in an order that is not defined.
    PTX ISA, "st", .relaxed, .sys, vector v2.""",
)
ld_relaxed_sys_v2_u64 = make_load(
    "ld_relaxed_sys_v2_u64",
    "ld.relaxed.sys.global.v2.u64 {$0, $1}, [$2];",
    types.uint64,
    2,
    "relaxed",
    """ld_relaxed_sys_v2_u64(array, index) -> two uint64, each of them whole. PTX ISA, "ld", .relaxed, .sys, vector v2.""",
)
