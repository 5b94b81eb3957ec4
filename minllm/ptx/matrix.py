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
            rows = np.stack([windows[lane] for lane in range(32)]).view(np.uint16).reshape(4, 8, 8)
            tiles = rows.transpose(0, 2, 1) if transposed else rows
            low, high = tiles[:, GROUP, 2 * WITHIN].astype(np.uint32), tiles[:, GROUP, 2 * WITHIN + 1].astype(np.uint32)
            words = low | high << np.uint32(16)  # [4 tiles, 32 lanes]
            return {lane: words[:, lane] for lane in range(32)}

        words = collective(name, current_thread().block.shared_root.window(int(address), 16), gather)
        for i in range(4):
            fragment[int(at) + i] = words[i]

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


def warp_product(values, dtype):
    """D = A B + C of a warp: values[lane] = (4 words of A, 2 words of B, 4 floats of C) -> {lane: 4 floats}."""
    words = np.array([values[lane][0] for lane in range(32)], np.uint32)
    pairs = words.view(dtype).astype(np.float32).reshape(32, 6, 2)
    accumulators = np.array([values[lane][1] for lane in range(32)], np.float32)
    a, b, c = np.empty((16, 16), np.float32), np.empty((16, 8), np.float32), np.empty((16, 8), np.float32)
    for half in (0, 1):
        a[GROUP, 2 * WITHIN + half], a[GROUP + 8, 2 * WITHIN + half] = pairs[:, 0, half], pairs[:, 1, half]
        a[GROUP, 2 * WITHIN + 8 + half], a[GROUP + 8, 2 * WITHIN + 8 + half] = pairs[:, 2, half], pairs[:, 3, half]
        b[2 * WITHIN + half, GROUP], b[2 * WITHIN + 8 + half, GROUP] = pairs[:, 4, half], pairs[:, 5, half]
        c[GROUP, 2 * WITHIN + half], c[GROUP + 8, 2 * WITHIN + half] = accumulators[:, half], accumulators[:, 2 + half]
    with np.errstate(all="ignore"):
        d = a @ b + c
    result = np.stack([d[GROUP, 2 * WITHIN], d[GROUP, 2 * WITHIN + 1], d[GROUP + 8, 2 * WITHIN], d[GROUP + 8, 2 * WITHIN + 1]], 1)
    return {lane: result[lane] for lane in range(32)}


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
        words = [a[int(a_at) + i] for i in range(4)] + [b[int(b_at) + i] for i in range(2)]
        floats = [acc[int(acc_at) + i] for i in range(4)]
        result = collective(name, (words, floats), product)
        for i in range(4):
            acc[int(acc_at) + i] = result[i]

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
