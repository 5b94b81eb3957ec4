"""Make Python functions of PTX instructions.

`instruction(...)` is for scalar operands, `intrinsic` and `emulated` for others. Every function of this package has an attribute
`.emulation`: a Python function with the same parameters that computes the same result. The simulator calls the emulation in place of the
function, so one kernel source serves both GPU and simulator.
"""

from llvmlite import ir

from minllm.machine.numba_cuda import intrinsic, types

# Constraint letters: "Inline PTX Assembly in CUDA", section 1.2.
REGISTERS = {
    "f": (ir.FloatType(), types.float32),
    "r": (ir.IntType(32), types.uint32),
    "h": (ir.IntType(16), types.uint16),
    "l": (ir.IntType(64), types.uint64),
}


def assembly(text, constraints, result, operands, *, touches_memory=True, convergent=False):
    """An LLVM inline-assembly value. text: PTX with operands $0, $1, ..., outputs first; operands: their LLVM types."""
    function = ir.FunctionType(result, operands)
    constraints = ",".join([*constraints, "~{memory}"] if touches_memory else constraints)
    value = ir.InlineAsm(function, text, constraints, side_effect=touches_memory or convergent)
    return value


def call_assembly(builder, value, arguments, convergent=False):
    """Call inline assembly; `convergent` keeps LLVM from moving a warp-wide instruction across divergent branches."""
    return builder.call(value, arguments, attrs=("convergent",) if convergent else ())


def instruction(text, outputs="", inputs="", *, emulation, touches_memory=False, convergent=False):
    """An intrinsic with one operand per constraint letter, which returns None, a scalar, or a tuple of several outputs.

    touches_memory: whether it reads or writes memory, so that the compiler must not move or drop it. convergent: whether the whole warp
    must execute it together.
    """
    output_types = [REGISTERS[letter][1] for letter in outputs]
    input_types = [REGISTERS[letter][1] for letter in inputs]
    low_inputs = [REGISTERS[letter][0] for letter in inputs]
    low_outputs = [REGISTERS[letter][0] for letter in outputs]
    return_type = {0: types.void, 1: output_types[0] if outputs else None}.get(len(outputs)) or types.Tuple(output_types)
    if len(outputs) > 1 and len(set(outputs)) == 1:
        return_type = types.UniTuple(output_types[0], len(outputs))
    low_result = {0: ir.VoidType(), 1: low_outputs[0] if outputs else None}.get(len(outputs)) or ir.LiteralStructType(low_outputs)
    constraints = [f"={letter}" for letter in outputs] + list(inputs)

    def lower(context, builder, signature, arguments):
        arguments = [context.cast(builder, a, given, wanted) for a, given, wanted in zip(arguments, signature.args, input_types)]
        value = assembly(text, constraints, low_result, low_inputs, touches_memory=touches_memory, convergent=convergent)
        result = call_assembly(builder, value, arguments, convergent)
        if not outputs:
            return context.get_dummy_value()
        if len(outputs) == 1:
            return result
        parts = [builder.extract_value(result, i) for i in range(len(outputs))]
        return context.make_tuple(builder, return_type, parts)

    # Numba reads the number of parameters from the typing function's signature, so that function is generated.
    parameters = ", ".join(f"operand{i}" for i in range(len(inputs)))
    source = f"def {emulation.__name__}(typing_context{', ' if inputs else ''}{parameters}):\n    return signature, lower\n"
    namespace = {"signature": return_type(*input_types), "lower": lower, "__name__": emulation.__module__}
    exec(source, namespace)
    made = emulated(intrinsic(namespace[emulation.__name__]), emulation)
    made.pure = not (touches_memory or convergent)
    return made


def emulated(function, emulation):
    """Attach the emulation, and its docstring and name, to an intrinsic; returns the intrinsic."""
    function.emulation = emulation
    function.__doc__ = emulation.__doc__
    function.__module__ = emulation.__module__
    function.__qualname__ = emulation.__name__
    return function


def element_pointer(context, builder, array_type, array, index_type, index):
    """LLVM pointer to the element at flat `index` of a C-contiguous array."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [context.cast(builder, index, index_type, types.int64)])
