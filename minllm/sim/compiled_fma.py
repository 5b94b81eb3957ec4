"""a * b + c, rounded once, as machine code: Python before 3.13 and NumPy have no fma, and one made of their operations is ten times slower.

    vectors()                       a NumPy ufunc for float32 and float64
    of_numbers(kind, otherwise)     a function of three numbers of exactly the type `kind`; all others go to the function `otherwise`

llvmlite, which Numba brings along, compiles them at their first use, in some milliseconds. Where the processor has no such instruction, the
machine code calls the C library's fma.
"""

import ctypes
import functools

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba.np.ufunc import _internal

FLOATS = {np.float32: ir.FloatType(), np.float64: ir.DoubleType()}
WORD, BYTES, NOTHING = ir.IntType(64), ir.IntType(8).as_pointer(), ir.VoidType()
WIDTH = 8  # numbers in a vector of the processor's
FASTCALL = 0x80  # METH_FASTCALL of Python.h
_kept = []  # what the machine code refers to


def add_loop(module, kind):
    """Write the inner loop of the ufunc: out[i] = fma(a[i], b[i], c[i]) with any distance between elements."""
    number = FLOATS[kind]
    of_type = ir.FunctionType(NOTHING, [BYTES.as_pointer(), WORD.as_pointer(), WORD.as_pointer(), BYTES])
    function = ir.Function(module, of_type, f"loop_{number}")
    build = ir.IRBuilder(function.append_basic_block())
    arrays, sizes, steps, _ = function.args
    count = build.load(sizes)
    bases = [build.load(build.gep(arrays, [WORD(k)])) for k in range(4)]
    apart = [build.load(build.gep(steps, [WORD(k)])) for k in range(4)]
    size = WORD(np.dtype(kind).itemsize)
    dense = build.and_(build.icmp_signed("==", apart[0], size), build.icmp_signed("==", apart[1], size))
    dense = build.and_(dense, build.and_(build.icmp_signed("==", apart[2], size), build.icmp_signed("==", apart[3], size)))
    whole = build.select(dense, build.and_(count, WORD(-WIDTH)), WORD(0))
    begin = add_steps(build, function, ir.VectorType(number, WIDTH), bases, apart, WORD(0), whole, np.dtype(kind).itemsize)
    add_steps(build, function, number, bases, apart, begin, count, np.dtype(kind).itemsize)
    build.ret_void()


def add_steps(build, function, number, bases, apart, first, last, alignment):
    """Write a loop from `first` to `last`, by as many elements as `number` has; returns where it ends."""
    width = getattr(number, "count", 1)
    before, head, body, after = build.block, *(function.append_basic_block() for _ in range(3))
    build.branch(head)
    build.position_at_end(head)
    i = build.phi(WORD)
    i.add_incoming(first, before)
    build.cbranch(build.icmp_signed("<", i, last), body, after)
    build.position_at_end(body)
    places = [build.bitcast(build.gep(base, [build.mul(i, step)]), number.as_pointer()) for base, step in zip(bases, apart)]
    values = [build.load(place, align=alignment) for place in places[:3]]
    build.store(fused(build, *values), places[3], align=alignment)
    i.add_incoming(build.add(i, WORD(width)), body)
    build.branch(head)
    build.position_at_end(after)
    return i


def fused(build, *values):
    """The instruction fma of three numbers or vectors."""
    kind = values[0].type
    name = f"llvm.fma.{f'v{WIDTH}' if isinstance(kind, ir.VectorType) else ''}{getattr(kind, 'element', kind).intrinsic_name}"
    module = build.module
    return build.call(module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, [kind] * 3), name), values)


def add_call(module, kind, otherwise):
    """Write a built-in function of Python: fma of three numbers of the type `kind`, and otherwise(a, b, c)."""
    number, one = FLOATS[kind], kind(1)
    _kept.extend([otherwise, one])

    def outside(name, result, *arguments, more=False):
        llvm.add_symbol(name, ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value)
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(result, arguments, var_arg=more), name)

    def object_at(thing):
        return WORD(id(thing)).inttoptr(BYTES)

    function = ir.Function(module, ir.FunctionType(BYTES, [BYTES, BYTES.as_pointer(), WORD]), f"call_{number}")
    build, call = ir.IRBuilder(function.append_basic_block()), outside("PyObject_CallFunctionObjArgs", BYTES, BYTES, more=True)
    with build.if_then(build.icmp_signed("!=", function.args[2], WORD(3))):
        build.ret(build.call(call, [object_at(otherwise), ir.Constant(BYTES, None)]))  # which raises TypeError
    given = [build.load(build.gep(function.args[1], [WORD(k)])) for k in range(3)]
    release = outside("Py_DecRef", NOTHING, BYTES)
    exact = ir.IntType(1)(1)
    for one_given in given:
        found = build.call(outside("PyObject_Type", BYTES, BYTES), [one_given])
        exact = build.and_(exact, build.icmp_unsigned("==", found, object_at(kind)))
        build.call(release, [found])
    with build.if_then(build.not_(exact)):
        build.ret(build.call(call, [object_at(otherwise), *given, ir.Constant(BYTES, None)]))
    values = [build.call(outside("PyFloat_AsDouble", ir.DoubleType(), BYTES), [one_given]) for one_given in given]
    if kind is np.float32:
        values = [build.fptrunc(value, number) for value in values]
    result = fused(build, *values)
    result = result if kind is np.float64 else build.fpext(result, ir.DoubleType())
    made = build.call(outside("PyFloat_FromDouble", BYTES, ir.DoubleType()), [result])
    boxed = build.call(outside("PyNumber_Multiply", BYTES, BYTES, BYTES), [object_at(one), made])
    build.call(release, [made])
    build.ret(boxed)


def compiled(module):
    """The addresses of a module's functions."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    parsed = llvm.parse_assembly(str(module))
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    _kept.append(engine)
    return engine.get_function_address


@functools.cache
def vectors():
    """The ufunc fma."""
    module = ir.Module()
    for kind in FLOATS:
        add_loop(module, kind)
    address = compiled(module)
    loops = [address(f"loop_{number}") for number in FLOATS.values()]
    kinds = [[np.dtype(kind).num] * 4 for kind in FLOATS]
    return _internal.fromfunc("fma", "a * b + c, rounded once", loops, kinds, 3, 1, [None] * len(loops), module, _internal.PyUFunc_None)


class Definition(ctypes.Structure):
    """PyMethodDef of Python.h."""

    _fields_ = [("name", ctypes.c_char_p), ("address", ctypes.c_void_p), ("flags", ctypes.c_int), ("text", ctypes.c_char_p)]


def of_numbers(kind, otherwise):
    """A function of three numbers: fma if all have exactly the type `kind`, np.float32 or np.float64; else otherwise(a, b, c)."""
    module = ir.Module()
    add_call(module, kind, otherwise)
    definition = Definition(b"fma", compiled(module)(f"call_{FLOATS[kind]}"), FASTCALL, b"a * b + c, rounded once")
    _kept.append(definition)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return make(ctypes.addressof(definition), None, None)
