"""Registers: move them between warpgroups (setmaxnreg), and keep values in them."""

from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types
from minllm.ptx.instruction import assembly, call_assembly, element_pointer, emulated, instruction
from minllm.sim.arrays import fail
from minllm.sim.registers import set_registers

REGISTER_TYPES = {types.float32: ("f", ir.FloatType()), types.uint32: ("r", ir.IntType(32)), types.int32: ("r", ir.IntType(32))}


def make_setmaxnreg(action, description):
    """The function for setmaxnreg.dec or .inc, which takes a literal operand."""

    def setmaxnreg(typing_context, count):
        if not isinstance(count, types.IntegerLiteral):
            return None  # Numba calls this again with the literal's type

        def lower(context, builder, signature, arguments):
            text = f"setmaxnreg.{action}.sync.aligned.u32 {count.literal_value};"
            call_assembly(builder, assembly(text, [], ir.VoidType(), [], convergent=True), [], convergent=True)
            return context.get_dummy_value()

        return types.void(count), lower

    def emulation(count):
        if not 24 <= int(count) <= 256 or int(count) % 8:
            fail(f"setmaxnreg to {int(count)} registers; it takes a multiple of 8 from 24 to 256")
        set_registers(action, int(count))

    setmaxnreg.__name__ = emulation.__name__ = f"setmaxnreg_{action}"
    emulation.__doc__ = description
    made = emulated(intrinsic(setmaxnreg), emulation)
    made.meets = True
    return made


setmaxnreg_dec = make_setmaxnreg(
    "dec",
    """setmaxnreg_dec(count): all threads of a warpgroup release registers, so that each keeps `count`, a constant from 24 to 256 in steps
    of 8. The kernel needs launch_bounds, from which ptxas derives the number at the start. PTX ISA, "setmaxnreg".""",
)
setmaxnreg_inc = make_setmaxnreg(
    "inc",
    """setmaxnreg_inc(count): all threads of a warpgroup wait for released registers until each has `count`. PTX ISA, "setmaxnreg".""",
)


def keep_registers_emulation(array, count):
    """keep_registers(array, count): the first `count` elements (a constant) of a local array are in registers at this point; the compiler
    computes none of them later and reads none earlier. Use it after wgmma_wait_group, for accumulators that the wait completes and for
    registers that were a wgmma's A operand. It emits no instruction."""


@intrinsic
def keep_registers(typing_context, array, count):
    if not isinstance(count, types.IntegerLiteral):
        return None  # Numba calls this again with the literal's type
    letter, low_type = REGISTER_TYPES[array.dtype]
    size = count.literal_value

    def lower(context, builder, signature, arguments):
        start = element_pointer(context, builder, signature.args[0], arguments[0], types.int64, ir.Constant(ir.IntType(64), 0))
        places = [builder.gep(start, [ir.IntType(32)(i)]) for i in range(size)]
        constraints = [f"={letter}"] * size + [str(i) for i in range(size)]
        value = assembly("", constraints, ir.LiteralStructType([low_type] * size), [low_type] * size, convergent=True)
        kept = call_assembly(builder, value, [builder.load(place) for place in places], convergent=True)
        for i, place in enumerate(places):
            builder.store(builder.extract_value(kept, i), place)
        return context.get_dummy_value()

    return types.void(array, count), lower


def keep_register(value):
    """keep_register(value) -> uint32: the same number, kept in a register from here on. Use it, for example, for an address that the
    compiler would otherwise recompute in every iteration of a loop. PTX ISA, "mov"."""
    return int(value)


keep_register = instruction("mov.b32 $0, $1;", "r", "r", emulation=keep_register, touches_memory=True)
keep_registers_emulation.__name__ = "keep_registers"
emulated(keep_registers, keep_registers_emulation)
