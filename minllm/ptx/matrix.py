"""Tensor cores: ldmatrix, which loads 8x8 tiles into a warp's registers, and mma.sync, which multiplies them.

Fragments live in `cuda.local.array`s, which the compiler keeps in registers where they are indexed by constants. Lane l of a warp
holds, with g = l // 4 and t = l % 4 (PTX ISA, "Matrix fragments for mma.m16n8k16 with floating point type"):

    A [16, 16]: 4 words: rows g, g+8, g, g+8, columns (2t, 2t+1), the same, (2t+8, 2t+9), the same
    B [16, 8]:  2 words: rows (2t, 2t+1) and (2t+8, 2t+9) of column g
    C [16, 8]:  4 float32: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
"""

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic

from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated
from minllm.sim.arrays import fail
from minllm.sim.machine import collective, current_thread

I32, F32 = ir.IntType(32), ir.FloatType()
GROUP, WITHIN = np.arange(32) // 4, np.arange(32) % 4


def offset(builder, pointer, i):
    """Pointer to the i-th element behind `pointer`."""
    return builder.gep(pointer, [I32(i)])


def make_ldmatrix(name, modifier, transposed, description):
    """ldmatrix.x4 with or without .trans."""

    def load(typing_context, fragment, at, address):
        def lower(context, builder, signature, arguments):
            target = element_pointer(context, builder, signature.args[0], arguments[0], signature.args[1], arguments[1])
            source = context.cast(builder, arguments[2], signature.args[2], types.uint32)
            text = f"ldmatrix.sync.aligned.m8n8.x4{modifier}.shared.b16 {{$0,$1,$2,$3}}, [$4];"
            value = assembly(text, ["=r"] * 4 + ["r"], ir.LiteralStructType([I32] * 4), [I32], convergent=True)
            words = call_assembly(builder, value, [source], convergent=True)
            for i in range(4):
                builder.store(builder.extract_value(words, i), offset(builder, target, i))
            return context.get_dummy_value()

        return types.void(fragment, at, address), lower

    def emulation(fragment, at, address):
        if int(address) % 16:
            fail(f"ldmatrix from shared address {int(address)}, which is not aligned to 16 bytes")

        def gather(windows):
            rows = np.concatenate([windows[lane] for lane in range(32)]).view(np.uint16).reshape(4, 8, 8)
            tiles = rows.transpose(0, 2, 1) if transposed else rows
            low, high = tiles[:, GROUP, 2 * WITHIN].astype(np.uint32), tiles[:, GROUP, 2 * WITHIN + 1].astype(np.uint32)
            words = low | high << np.uint32(16)  # [4 tiles, 32 lanes]
            return np.ascontiguousarray(words.T).view(np.uint8)  # [32 lanes, 16 bytes]

        words = collective(name, current_thread().block.shared_root.window(int(address), 16), gather)
        registers(fragment, at, 4, "write")[:] = words

    load.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(load), emulation)


ldmatrix_x4 = make_ldmatrix(
    "ldmatrix_x4",
    "",
    False,
    """ldmatrix_x4(fragment, at, address): load four 8x8 tiles of 16-bit elements into fragment[at:at+4] (uint32). Lane l brings the
    shared address of row l % 8 of tile l // 8, 16 bytes each. PTX ISA, "ldmatrix".""",
)
ldmatrix_x4_trans = make_ldmatrix(
    "ldmatrix_x4_trans", ".trans", True, """ldmatrix_x4_trans(fragment, at, address): as ldmatrix_x4, each tile transposed."""
)


def registers(fragment, at, count, kind="read"):
    """The bytes of `count` 32-bit registers: elements `at` and following of a thread's local array."""
    return fragment.window(int(at), 4 * count, alignment=4, kind=kind)


# Where each element of a matrix lies in the fragments of all lanes, one lane's behind the other's: A [16, 16] and B [16, 8] of 16-bit
# elements (8 and 4 a lane), C [16, 8] of float32 (4 a lane); and where each lane's part of C lies in the matrix.
ROW, COLUMN = np.mgrid[0:16, 0:16]
A_PLACE = (ROW % 8 * 4 + COLUMN % 8 // 2) * 8 + COLUMN // 8 * 4 + ROW // 8 * 2 + COLUMN % 2
B_PLACE = (COLUMN[:, :8] * 4 + ROW[:, :8] % 8 // 2) * 4 + ROW[:, :8] // 8 * 2 + ROW[:, :8] % 2
C_PLACE = (ROW[:, :8] % 8 * 4 + COLUMN[:, :8] // 2) * 4 + ROW[:, :8] // 8 * 2 + COLUMN[:, :8] % 2
C_ELEMENTS = np.argsort(C_PLACE, axis=None)


def warp_product(values, dtype):
    """D = A B + C of a warp: values[lane] = (bytes of A's 4 words, of B's 2, of C's 4 floats) -> bytes of D's 4 floats, [32, 16]."""
    a_bytes, b_bytes, c_bytes = (np.concatenate(parts) for parts in zip(*(values[lane] for lane in range(32))))
    a = a_bytes.view(dtype).astype(np.float32)[A_PLACE]
    b = b_bytes.view(dtype).astype(np.float32)[B_PLACE]
    with np.errstate(all="ignore"):
        d = a @ b + c_bytes.view(np.float32)[C_PLACE]
    return d.reshape(-1)[C_ELEMENTS].view(np.uint8).reshape(32, 16)


def make_mma(name, letters, dtype, description):
    """mma.sync.m16n8k16 with float32 accumulators."""

    def multiply(typing_context, acc, acc_at, a, a_at, b, b_at):
        def lower(context, builder, signature, arguments):
            places = [
                element_pointer(context, builder, signature.args[i], arguments[i], signature.args[i + 1], arguments[i + 1])
                for i in (0, 2, 4)
            ]
            c, a_words, b_words = (
                [builder.load(offset(builder, place, i)) for i in range(count)] for place, count in zip(places, (4, 4, 2))
            )
            text = (
                f"mma.sync.aligned.m16n8k16.row.col.f32.{letters}.{letters}.f32 "
                "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
            )
            constraints = ["=f"] * 4 + ["r"] * 6 + ["f"] * 4
            value = assembly(text, constraints, ir.LiteralStructType([F32] * 4), [I32] * 6 + [F32] * 4, touches_memory=False)
            result = call_assembly(builder, value, [*a_words, *b_words, *c], convergent=True)
            for i in range(4):
                builder.store(builder.extract_value(result, i), offset(builder, places[0], i))
            return context.get_dummy_value()

        return types.void(acc, acc_at, a, a_at, b, b_at), lower

    def product(values):
        thread = current_thread()
        if thread.block.monitor is not None:
            thread.block.monitor.flops(thread, 2 * 16 * 8 * 16, name)
        return warp_product(values, dtype)

    def emulation(acc, acc_at, a, a_at, b, b_at):
        result = collective(name, (registers(a, a_at, 4), registers(b, b_at, 2), registers(acc, acc_at, 4)), product)
        registers(acc, acc_at, 4, "write")[:] = result

    multiply.__name__ = emulation.__name__ = name
    emulation.__doc__ = description
    return emulated(intrinsic(multiply), emulation)


mma_m16n8k16_bf16 = make_mma(
    "mma_m16n8k16_bf16",
    "bf16",
    ml_dtypes.bfloat16,
    """mma_m16n8k16_bf16(acc, at, a, a_at, b, b_at): acc[at:at+4] += A B over the whole warp; A [16, 16] from a[a_at:a_at+4], B [16, 8]
    from b[b_at:b_at+2], bfloat16 pairs in uint32, accumulated in float32. PTX ISA, "mma".""",
)
mma_m16n8k16_f16 = make_mma(
    "mma_m16n8k16_f16", "f16", np.float16, """mma_m16n8k16_f16(acc, at, a, a_at, b, b_at): as mma_m16n8k16_bf16, for float16 pairs."""
)
