"""mma.sync: a matrix multiply-accumulate of a warp on tensor cores, D [16, 8] = A [16, K] B [K, 8] + D.

A row of A and a column of B have K elements, 32 bytes: K is 8 for tf32, 16 for bfloat16 and float16, 32 for int8 and fp8. A may be uint8
while B is int8. Fragments are `cuda.local.array`s. With E elements per word (1, 2, 4), g = l // 4 and t = l % 4, lane l holds (PTX ISA,
"Matrix fragments for mma"):

    A: 4 words: row g and row g+8 from element t*E on, then both from element K/2 + t*E on
    B: 2 words: column g from element t*E on, and from element K/2 + t*E on
    D: 4 float32 or int32: (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1)
"""

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated
from minllm.ptx.matrix import registers
from minllm.sim.machine import collective
from minllm.sim.thread import current_thread

I32, F32 = ir.IntType(32), ir.FloatType()
TF32_BITS = np.uint32(0xFFFFE000)  # tf32 uses a float32's sign, exponent and upper ten bits of the fraction


@dataclass(frozen=True)
class Kind:
    """The operand types of an mma.sync."""

    element: str  # PTX name of A's element type
    dtype: np.dtype  # NumPy dtype of A's elements; for tf32 that of the 32-bit word
    per_word: int  # elements per 32-bit word
    of_b: "Kind | None" = None  # the kind of B's elements if it differs from A's

    @property
    def right(self):
        """The kind of B's elements."""
        return self.of_b or self

    @property
    def depth(self):
        """K, the depth of the product."""
        return 8 * self.per_word

    @property
    def integer(self):
        """Whether the accumulators are int32 instead of float32."""
        return self.dtype.itemsize == 1 and self.dtype.kind in "iu"

    def values(self, raw):
        """The elements in the bytes `raw`, as float32, or as int32 for integers."""
        if self.element == "tf32":
            return (raw.view(np.uint32) & TF32_BITS).view(np.float32)
        return raw.view(self.dtype).astype(np.int32 if self.integer else np.float32)


def places(per_word):
    """Index arrays of shapes [16, K] and [K, 8]: where each element of A and B is in the concatenated fragments of all lanes."""
    depth = 8 * per_word
    row, column = np.mgrid[0:16, 0:depth]
    half, lane, element = column // (depth // 2), column % (depth // 2) // per_word, column % per_word
    a = (row % 8 * 4 + lane) * 4 * per_word + (half * 2 + row // 8) * per_word + element
    b = (row % 8 * 4 + lane) * 2 * per_word + half * per_word + element
    return a, b[:8].T.copy()


PLACES = {per_word: places(per_word) for per_word in (1, 2, 4)}
ROW, COLUMN = np.mgrid[0:16, 0:8]
D_PLACE = (ROW % 8 * 4 + COLUMN // 2) * 4 + ROW // 8 * 2 + COLUMN % 2
D_ELEMENTS = np.argsort(D_PLACE, axis=None)  # flat index in D of each element of the concatenated fragments


def warp_product(values, kind):
    """D = A B + D of a warp. values[lane]: bytes of 4 words of A, 2 of B and 4 of D; returns the bytes of the new D, [32, 16]."""
    a_bytes, b_bytes, d_bytes = (np.concatenate(parts) for parts in zip(*(values[lane] for lane in range(32))))
    a_place, b_place = PLACES[kind.per_word]
    with np.errstate(all="ignore"):
        d = kind.values(a_bytes)[a_place] @ kind.right.values(b_bytes)[b_place]
        d = d + d_bytes.view(np.int32 if kind.integer else np.float32)[D_PLACE]
    return d.reshape(-1)[D_ELEMENTS].view(np.uint8).reshape(32, 16)


def make_mma(kind):
    """The function for mma.sync.m16n8k<depth> with operands of one kind."""
    letter, low_type, result_name = ("r", I32, "s32") if kind.integer else ("f", F32, "f32")

    def multiply(typing_context, acc, acc_at, a, a_at, b, b_at):
        def lower(context, builder, signature, arguments):
            starts = [
                element_pointer(context, builder, signature.args[i], arguments[i], signature.args[i + 1], arguments[i + 1])
                for i in (0, 2, 4)
            ]
            d, a_words, b_words = (
                [builder.load(builder.gep(start, [I32(i)])) for i in range(count)] for start, count in zip(starts, (4, 4, 2))
            )
            text = (
                f"mma.sync.aligned.m16n8k{kind.depth}.row.col.{result_name}.{kind.element}.{kind.right.element}.{result_name} "
                "{$0,$1,$2,$3}, {$4,$5,$6,$7}, {$8,$9}, {$10,$11,$12,$13};"
            )
            constraints = [f"={letter}"] * 4 + ["r"] * 6 + [letter] * 4
            value = assembly(text, constraints, ir.LiteralStructType([low_type] * 4), [I32] * 6 + [low_type] * 4, touches_memory=False)
            result = call_assembly(builder, value, [*a_words, *b_words, *d], convergent=True)
            for i in range(4):
                builder.store(builder.extract_value(result, i), builder.gep(starts[0], [I32(i)]))
            return context.get_dummy_value()

        return types.void(acc, acc_at, a, a_at, b, b_at), lower

    def product(values):
        thread = current_thread()
        if thread.block.monitor is not None:
            thread.block.monitor.flops(thread, 2 * 16 * 8 * kind.depth, name)
        return warp_product(values, kind)

    def emulation(acc, acc_at, a, a_at, b, b_at):
        result = collective(name, (registers(a, a_at, 4), registers(b, b_at, 2), registers(acc, acc_at, 4)), product)
        registers(acc, acc_at, 4, "write")[:] = result

    emulation.kind = kind
    elements = kind.element if kind.of_b is None else f"{kind.element}_{kind.right.element}"
    name = multiply.__name__ = emulation.__name__ = f"mma_m16n8k{kind.depth}_{elements}"
    accumulators = "int32, wrapping around" if kind.integer else "float32"
    emulation.__doc__ = f"""{name}(acc, at, a, a_at, b, b_at): acc[at:at+4] += A B over the whole warp; A [16, {kind.depth}] from
    a[a_at:a_at+4], B [{kind.depth}, 8] from b[b_at:b_at+2], {kind.per_word} {elements.replace("_", " by ")} per uint32, accumulated in
    {accumulators}. PTX ISA, "mma"."""
    return emulated(intrinsic(multiply), emulation)


mma_m16n8k8_tf32 = make_mma(Kind("tf32", np.dtype(np.uint32), 1))
mma_m16n8k16_bf16 = make_mma(Kind("bf16", np.dtype(ml_dtypes.bfloat16), 2))
mma_m16n8k16_f16 = make_mma(Kind("f16", np.dtype(np.float16), 2))
S8 = Kind("s8", np.dtype(np.int8), 4)
mma_m16n8k32_s8 = make_mma(S8)
mma_m16n8k32_u8_s8 = make_mma(Kind("u8", np.dtype(np.uint8), 4, S8))
mma_m16n8k32_e4m3 = make_mma(Kind("e4m3", np.dtype(ml_dtypes.float8_e4m3fn), 4))
mma_m16n8k32_e5m2 = make_mma(Kind("e5m2", np.dtype(ml_dtypes.float8_e5m2), 4))
