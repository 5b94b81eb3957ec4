"""The types of a whole function: statements, branches, loops and calls of device functions.

A variable has the type of its last assignment. Where two branches meet, or a loop returns to its beginning, Numba gives a variable one type
for both (the "phi" of static single assignment); a cast is recorded at the end of a branch with another type.
"""

import ast
import builtins
import functools
import inspect
import warnings

import numpy as np

from minllm.errors import SimulationError
from minllm.machine.numba_cuda import types
from minllm.sim.numba_cuda_mlir import of_numba_cuda
from minllm.sim.place import file_of
from minllm.sim.typing.arithmetic import BINARY, COUNTER_BITS, binary
from minllm.sim.typing.calls import Calls
from minllm.sim.typing.contraction import contracted
from minllm.sim.typing.expressions import iterated
from minllm.sim.typing.nested import NestedFunctions
from minllm.sim.typing.refusals import refused_construct
from minllm.sim.typing.rules import best_signature
from minllm.sim.typing.source import function_tree
from minllm.sim.typing.values import (
    NOTHING,
    UNKNOWN,
    Constant,
    Value,
    changes_type,
    is_integer,
    is_scalar,
    merge,
    must_cast,
    numba_type,
    of_constant,
    of_type,
    range_bits,
    steps,
)

KEPT_BITS = (8, 16, 31, 32, 48, COUNTER_BITS, 63, 64)  # sizes to which arguments are rounded up, so that inferences are shared
PASSES = 8  # limit of walks over a loop's body, until the types of its variables no longer change


class Inference:
    """The casts of one function for one tuple of argument types.

    casts: {expression: types, one after the other}. wraps: {-x or ~x: type}, before these casts. calls: {call: replacement}.
    devices: {call: Inference of a device function that has casts itself}. methods: calls among them that pass the owner as first argument.
    values: {expression: its Value without these casts}. called: {call: Inference of the device function, with or without casts}.
    edges: {end of a branch: [(variable, type)]}. placeholders: {statement: {variable that may have no value, but takes part in a shuffle:
    type}}. operators: {BinOp or AugAssign: a function or Guard that stands for its operator}. names: the globals and closure of the
    function when it was inferred. result: a Value. arguments: {parameter: Value}. augmented: {AugAssign: type of its result}. inlined: the
    calls among `called` of functions without an emulation. taken: {condition: whether Numba takes its branch when it compiles}, for those
    that it knows (branches.py). fields: attributes that are fields of arrays of records. contraction: which sums are fused with a product
    (contraction.py), or None. has_floats: whether an operator of the function's own gives a float.
    """

    def __init__(self, function, tree, arguments, device):
        self.function, self.tree, self.arguments, self.device = function, tree, dict(arguments), device
        self.casts, self.wraps, self.calls, self.devices, self.edges, self.names = {}, {}, {}, {}, {}, {}
        self.placeholders, self.operators = {}, {}
        self.values, self.called, self.augmented = {}, {}, {}
        self.methods, self.inlined, self.taken, self.fields = set(), set(), {}, set()
        self.contraction, self.has_floats = None, False
        self.result = UNKNOWN

    @property
    def edited(self):
        """Whether the function needs changed code, or its own copies of global arrays."""
        arrays = any(isinstance(value, np.ndarray) for value in self.names.values())
        changes = self.casts, self.calls, self.operators, self.devices, self.placeholders, self.fields, *(self.contraction or ())
        return arrays or any(changes) or any(self.wraps.values()) or any(self.edges.values())


def infer_kernel(function, argument_types, contract=True):
    """The Inference of a kernel, made once for each tuple of argument types; None if its source is not available.

    contract: whether a sum is one fma with a product, as the compiler makes it (contraction.py).
    """
    found = inference(function, tuple(UNKNOWN if kind is None else of_type(kind) for kind in argument_types), device=False)
    return contracted(found) if found is not None and contract else found


def inference(function, arguments, device=True, declared=None):
    """The Inference of a function for the Values of its arguments; None if there is none, or in a recursion while it is made.

    declared: the type of the result in an eager signature.
    """
    made, key = function.__dict__.setdefault("simulator_inferences", {}), (arguments, declared)
    if key not in made:
        made[key] = None
        tree = function_tree(function)
        if tree is None:
            warn_without_source(function)
        bound = None if tree is None else bind(tree, function, arguments)
        try:
            made[key] = None if bound is None else Walk(function, tree, bound, device, declared).run()
        except BaseException:  # Ctrl-C, too: the next launch begins anew, and does not run without types
            del made[key]
            raise
    return made[key]


def warn_without_source(function):
    """Warn that a function runs without Numba's types."""
    code = function.__code__
    what = f"the source of {function.__name__} ({file_of(code)}:{code.co_firstlineno}) is not available, or was edited after its import"
    warnings.warn(
        f"{what}: the simulator computes with NumPy's types, and numbers may differ from a GPU's. Run it from a file.", stacklevel=2
    )


def bind(tree, function, arguments):
    """{parameter: Value} for a call with these arguments; None if they do not fit."""
    names = [parameter.arg for parameter in (*tree.args.posonlyargs, *tree.args.args)]
    bound = dict(zip(names, arguments))
    if len(arguments) > len(names):
        if tree.args.vararg is None:
            return None
        bound[tree.args.vararg.arg] = Value(items=tuple(arguments[len(names) :]))
    elif tree.args.vararg is not None:
        bound[tree.args.vararg.arg] = Value(items=())
    defaults = function.__defaults__ or ()
    for name, default in zip(names[len(names) - len(defaults) :], defaults):
        bound.setdefault(name, of_constant(default))
    return bound if set(names) <= set(bound) else None


def coarse(value):
    """The Value for which a device function is inferred: without constants, and with a size from KEPT_BITS."""
    if value.items is not None:
        items = tuple(map(coarse, value.items))
        return value._replace(items=items, constant=value.constant if items == value.items else None)
    if is_integer(value.type):
        return Value(value.type, next(bits for bits in KEPT_BITS if bits >= value.bits), value.wide)
    known = value.constant is not None and value != NOTHING
    return value._replace(constant=None if is_scalar(value.type) else Constant(value.constant.value)) if known else value


def in_order(call, function, count):
    """The expressions of a call's `count` arguments by parameter: None for defaults, the Starred from an unpacked tuple on."""
    for number, argument in enumerate(call.args):
        if isinstance(argument, ast.Starred):
            return call.args[:number] + [argument] * (count - number)
    named = {one.arg: one.value for one in call.keywords}
    left = list(inspect.signature(function).parameters)[len(call.args) :] if named else []
    return [*call.args, *map(named.get, left)]


class Walk(NestedFunctions, Calls):
    """One walk over a function's statements; `variables` is None after a return, break or continue."""

    def __init__(self, function, tree, arguments, device=True, declared=None):
        self.device, self.declared = device, declared
        self.found = Inference(function, tree, arguments, device)
        self.function, self.variables = function, arguments
        self.loops = []  # for each loop around the statement: (paths of break, paths of continue)
        self.returns = []
        self.partial = set()  # variables that have been assigned on some of the paths that meet
        self.missed = set()  # names that were read and are no variables yet: of globals, or assigned further down in a loop
        self.closure = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        self.of_names = {}  # the Values of names that `outer` has found
        self.nested = {}  # {definition: Nested} of functions inside of the function

    def run(self):
        """Walk over the function; returns its Inference."""
        self.block(self.found.tree.body)
        if self.variables is not None:
            self.returns.append((None, NOTHING))
        if self.returns:
            self.found.result = self.result()
        self.check_nested()
        return self.found

    def result(self):
        """The merged Value of all return statements; records their casts to its type."""
        given = (value for _, value in self.returns)
        merged = functools.reduce(merge, given) if self.declared is None else of_type(self.declared)
        for node, value in self.returns:
            if node is not None and not self.device and is_scalar(value.type):
                self.refuse(node, "a kernel returns a number, and numba-cuda compiles kernels without a result: store it in an array")
            if node is not None:
                self.cast_returned(node, value, merged)
            if isinstance(node, ast.Tuple) and merged.items is not None and len(node.elts) == len(merged.items):
                for parts in zip(node.elts, value.items, merged.items):
                    self.cast_returned(*parts)
        return merged._replace(constant=None) if is_scalar(merged.type) else merged

    def cast_returned(self, node, value, wanted):
        """Record the cast of a returned expression to the Value of the function's result, which may be wide."""
        if is_scalar(wanted.type) and must_cast(value, wanted.type) and not (wanted.wide and value.type == wanted.type):
            self.cast(node, value, wanted.type)

    def is_parameter_of_device_function(self, node):
        """Whether an expression is a parameter of a device function, which may be a literal in the call."""
        code = self.function.__code__
        return self.device and isinstance(node, ast.Name) and node.id in code.co_varnames[: code.co_argcount]

    def outer(self, name):
        """The Value of a name of the closure, the globals or the builtins."""
        if name not in self.of_names:
            if name in self.closure:
                value = self.closure[name].cell_contents
            elif name in self.function.__globals__:
                value = self.function.__globals__[name]
            else:
                return of_constant(getattr(builtins, name)) if hasattr(builtins, name) else UNKNOWN
            self.found.names[name] = frozen(of_numba_cuda(value))
            self.of_names[name] = of_constant(self.found.names[name])
        return self.of_names[name]

    def call_device(self, node, called, arguments, named):
        """The Value of a call of a device function."""
        function = getattr(called, "py_func", called)
        if named:
            try:
                bound = inspect.signature(function).bind(*arguments, **named)
            except TypeError:
                return UNKNOWN
            for name, parameter in bound.signature.parameters.items():
                if parameter.default is not parameter.empty:
                    bound.arguments.setdefault(name, of_constant(parameter.default))
            arguments = list(bound.args)
        arguments, declared = self.as_declared(node, called, function, arguments)
        found = inference(function, tuple(map(coarse, arguments)), declared=declared)
        self.found.devices.pop(node, None)
        self.found.called[node] = found
        if found is None:
            return UNKNOWN
        if getattr(called, "emulation", None) is None:
            self.found.inlined.add(node)
            if found.edited or called is function:
                self.found.devices[node] = found
        return found.result

    def as_declared(self, node, called, function, arguments):
        """The Values of a device function's arguments, converted to the types of its eager signature, and the type of its result there."""
        signatures, given = getattr(called, "simulated_signatures", {}), list(map(numba_type, arguments))
        wanted = best_signature(tuple(signatures), given) if signatures and None not in given else None
        if wanted is None:
            return arguments, None
        for expression, value, kind in zip(in_order(node, function, len(arguments)), arguments, wanted):
            if must_cast(value, kind):
                if isinstance(expression, ast.Starred):
                    self.refuse(node, f"an eager signature converts an argument to {kind}: pass arguments one by one, not a tuple")
                if expression is not None:
                    self.cast(expression, value, kind)
        return [of_type(kind) if is_scalar(kind) else value for kind, value in zip(wanted, arguments)], signatures[wanted]

    # Statements

    def block(self, statements):
        """Walk over statements in order, up to the first after which none is reached."""
        for statement in statements:
            if self.variables is None:
                return
            self.statement = statement
            visit = getattr(self, "do_" + statement.__class__.__name__, None)
            if why := refused_construct(statement):
                self.refuse(statement, why)
            if visit is not None:
                visit(statement)

    def do_Expr(self, node):
        self.value(node.value)

    def do_Assert(self, node):
        self.settled(node.test)

    def do_Raise(self, node):
        self.variables = None

    def do_Return(self, node):
        self.returns.append((node.value, NOTHING if node.value is None else self.value(node.value)))
        self.variables = None

    def do_Assign(self, node):
        value = self.value(node.value)
        for target in node.targets:
            self.settle_stored(target, node.value, value)
            self.assign(target, value)

    def settle_stored(self, target, node, value):
        """Record casts that wrap what is stored in arrays and fields into the ranges of its types."""
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(node, ast.Tuple) and len(target.elts) == len(node.elts) == len(value.items or ()):
                for parts in zip(target.elts, node.elts, value.items):
                    self.settle_stored(*parts)
        elif value.wide and not isinstance(target, ast.Name):
            self.cast(node, value, value.type)

    def do_AnnAssign(self, node):
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def do_AugAssign(self, node):
        left, right = self.value(node.target), self.value(node.value)
        result, casts = binary(BINARY[type(node.op)], left, right)
        self.check_operator(node, result, left, right)
        self.cast(node.value, right, casts[1])
        if isinstance(node.target, ast.Name):
            self.cast(node.target, left, casts[0])
            self.variables[node.target.id] = result
        self.found.augmented[node] = result.type
        self.replace_operator(node, left, right, result)

    def assign(self, target, value):
        """Assign a Value to the target of an assignment."""
        if isinstance(target, ast.Name):
            self.variables[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            known = value.items is not None and len(value.items) == len(target.elts)
            for number, element in enumerate(target.elts):
                self.assign(element, value.items[number] if known else iterated(value))
        elif isinstance(target, ast.Subscript):
            array = self.value(target.value)
            self.index(target.slice)
            if isinstance(array.type, types.Array) and value == NOTHING:
                self.refuse(target, "None, the result of a function that returns nothing, is stored in an array")

    def refuse(self, node, why):
        """Raise SimulationError for code that Numba does not compile."""
        code = self.function.__code__
        raise SimulationError(f"{why} ({file_of(code)}:{node.lineno} in {code.co_name})")

    def do_If(self, node):
        taken = self.tested(node.test)
        if taken is not None:
            self.block(node.body if taken else node.orelse)
            return
        start = dict(self.variables)
        self.block(node.body)
        body = self.variables
        self.variables = start
        self.block(node.orelse)
        self.variables = self.join([(body, (node, "body")), (self.variables, (node, "orelse"))])

    def do_While(self, node):
        if self.tested(node.test) is False:
            self.block(node.orelse)
            return
        self.loop(node, lambda: self.tested(node.test))

    def do_For(self, node):
        display = ast.Tuple(node.iter.elts, node.iter.ctx) if isinstance(node.iter, ast.List) else node.iter  # Numba unrolls either
        element = self.elements(node, self.value(display))
        self.loop(node, lambda: self.assign(node.target, element))

    def loop(self, node, begin):
        """Walk over a loop's body until the types at its beginning no longer change. begin: tests, or assigns the loop variable."""
        entry = self.variables
        header = widen(dict(entry), entry, 0)
        for number in range(PASSES):
            self.variables, paths = dict(header), ([], [])
            self.loops.append(paths)
            test = begin()
            self.block(node.body)
            self.loops.pop()
            back = [(self.variables, (node, "body")), *paths[1]]
            widened = header
            for state, _ in back:
                widened = widen(widened, state, number) if state is not None else widened
            unchanged = all(header.get(name) == value for name, value in widened.items() if name in header or name in self.missed)
            header = widened
            if unchanged:
                break
        kept = {name: value for name, value in header.items() if name in entry or name in self.missed}
        inner = {name: value for name, value in header.items() if name not in kept}  # every iteration assigns them before it reads them
        for state, edge in [(entry, (node, "before")), *back]:
            if state is not None:
                self.found.edges[edge] = casts_between(state, kept, must_cast) + casts_between(state, inner, changes_type)
        self.partial |= header.keys() - entry.keys()
        self.variables = None if test is True else dict(header)  # a loop without an end
        if self.variables is not None:
            self.block(node.orelse)
        self.variables = self.join([(self.variables, (node, "orelse")), *paths[0]])

    def do_Break(self, node):
        self.loops[-1][0].append((self.variables, (node, "before")))
        self.variables = None

    def do_Continue(self, node):
        self.loops[-1][1].append((self.variables, (node, "before")))
        self.variables = None

    def join(self, paths):
        """The variables after several paths meet; records the casts at the end of each path."""
        reached = [(state, edge) for state, edge in paths if state is not None]
        if not reached:
            return None
        merged = dict(reached[0][0])
        for state, _ in reached[1:]:
            for name, value in state.items():
                merged[name] = merge(merged[name], value) if name in merged else value
        for state, edge in reached:
            self.found.edges[edge] = casts_between(state, merged, changes_type)
            self.partial |= merged.keys() - state.keys()
        return merged


def widen(header, back, number):
    """The variables at a loop's beginning, merged with those at its end; an integer that is only incremented keeps its size."""
    widened = dict(header)
    for name, value in back.items():
        if name not in header:
            widened[name] = value._replace(constant=None) if is_scalar(value.type) else value
            continue
        old = header[name]
        merged = merge(old, value)
        if merged.wide:  # it is wrapped before every iteration
            merged = merged._replace(wide=False, bits=range_bits(merged.type))
        if number and is_integer(merged.type) and merged.bits > old.bits:
            counts = merged.bits <= old.bits + 1 and merged.bits <= COUNTER_BITS
            merged = merged._replace(bits=old.bits if counts else range_bits(merged.type))
        widened[name] = merged
    return widened


def casts_between(state, merged, must):
    """[(variable, type)]: the casts of variables of `state` to their types in `merged`, needed by the rule must(value, type)."""
    both = [(name, value, merged[name].type) for name, value in state.items() if name in merged and is_scalar(merged[name].type)]
    return [(name, step) for name, value, wanted in both if must(value, wanted) for step in steps(value, wanted)]


def frozen(value):
    """A global as Numba compiles it: a read-only copy of an array with its current contents; other values unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    copy = np.array(value, order="C")
    copy.flags.writeable = False
    return copy
