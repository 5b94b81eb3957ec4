"""Functions that a kernel or a device function defines inside itself: `square = lambda x: x * x`. Numba inlines them at each call."""

import ast
import functools

from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.values import NOTHING, UNKNOWN, Constant, Value, merge, of_constant


class Nested:
    """One definition, by its node. edits: {call: the casts that its arguments need inside}."""

    def __init__(self, node, function):
        self.node, self.function, self.edits, self.is_walked = node, function, {}, False


class NestedFunctions:
    """Finds the casts inside of nested functions, which Python runs with one code for all calls."""

    def nested_function(self, node):
        """The Value of a definition; one that changes variables outside of it is not followed."""
        if any(isinstance(one, ast.Nonlocal) for one in nodes_in(node)):
            return UNKNOWN
        found = self.nested.setdefault(node, Nested(node, self.function))
        return Value(constant=Constant(found))

    def Lambda(self, node):
        return self.nested_function(node)

    def do_FunctionDef(self, node):
        self.variables[node.name] = self.nested_function(node)

    def call_nested(self, node, called, arguments, named):
        """The Value of a call of a nested function: its body, walked with the variables of the call."""
        bound = bind_nested(called.node.args, arguments, named)
        if bound is None or called.is_walked or called.function is not self.function:
            return self.unknown_call(node, arguments)
        self.settle(node, arguments)
        inner = set(nodes_in(called.node)) - {called.node}
        own = {one.id for one in inner if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        outer, returns, device, loops = self.variables, self.returns, self.device, self.loops
        self.variables = {name: value for name, value in outer.items() if name not in own} | bound
        self.returns, self.device, self.loops, called.is_walked = [], True, [], True
        result = self.result_of(called.node)
        self.variables, self.returns, self.device, self.loops, called.is_walked = outer, returns, device, loops, False
        called.edits[node] = self.edits_of(inner)
        return result

    def result_of(self, node):
        """The Value that a nested function returns."""
        if isinstance(node, ast.Lambda):
            return self.settled(node.body)
        self.block(node.body)
        if self.variables is not None:
            self.returns.append((None, NOTHING))
        merged = functools.reduce(merge, (value for _, value in self.returns))
        for returned, value in self.returns:
            if returned is not None:
                self.cast_returned(returned, value, merged._replace(wide=False))
        return merged._replace(wide=False)

    def edits_of(self, inner):
        """The changes of the code of these nodes."""
        found = self.found
        kinds = found.casts, found.wraps, found.calls, found.operators, found.devices
        edges = {edge: casts for edge, casts in found.edges.items() if edge[0] in inner and casts}
        return [{node: made for node, made in kind.items() if node in inner and made is not None} for kind in kinds] + [edges]

    def check_nested(self):
        """Raise SimulationError for a nested function whose calls need different casts inside."""
        for nested in self.nested.values():
            first, *others = [*nested.edits.values()] or [None]
            if any(other != first for other in others):
                self.refuse(
                    nested.node,
                    "a function inside of a kernel is called with arguments of different types, which the simulator cannot tell apart: "
                    "define it outside, with @cuda.jit(device=True)",
                )


def bind_nested(parameters, arguments, named):
    """{parameter: Value} for a call; None if they do not fit, or for parameters of a kind that is not known here."""
    names = [one.arg for one in (*parameters.posonlyargs, *parameters.args)]
    if parameters.vararg or parameters.kwarg or parameters.kwonlyargs or len(arguments) > len(names):
        return None
    defaults = {}
    for name, default in zip(names[len(names) - len(parameters.defaults) :], parameters.defaults):
        defaults[name] = of_constant(default.value) if isinstance(default, ast.Constant) else UNKNOWN
    bound = defaults | dict(zip(names, arguments)) | named
    return bound if set(bound) == set(names) else None
