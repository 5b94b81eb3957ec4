"""Which integers may become an index, by sums, differences, products and quotients: under detectors their casts are checked for overflow.

The overflow detector follows a wrapped integer through these operators, through arrays and calls; bit operations, counts of bits and
remainders end its way. Here the way is followed backwards in the source, from every index, without regard to the order of statements. Of
arrays only the element type counts: a value that is stored in an array is followed if a number loaded from an array of this type may become
an index.
"""

import ast
import functools

import numba.cuda

from minllm.machine.numba_cuda import types
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.values import UNKNOWN, is_integer

CARRYING = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.LShift)
LOOKED_AT = (ast.Subscript, ast.Slice, ast.Return, ast.Call, ast.Assign, ast.AnnAssign, ast.AugAssign)
LOADS, STORES = ("ldcg", "ldca", "ldcs", "ldcv", "ldlu"), ("stcg", "stcs", "stwb", "stwt")  # Numba's own target lacks these
ATOMICS = ("add", "sub", "max", "min", "exch", "cas", "inc", "dec", "and_", "or_", "xor")
FIRST_ARRAY = {id(getattr(numba.cuda, name)) for name in (*LOADS, *STORES) if hasattr(numba.cuda, name)}  # ids of functions
FIRST_ARRAY |= {id(getattr(numba.cuda.atomic, name)) for name in ATOMICS}
COUNTS_OF_BITS = {id(one) for one in (numba.cuda.popc, numba.cuda.clz, numba.cuda.ffs)}


class Nothing:
    """The empty set of carried integers."""

    nodes, names, channels = frozenset(), frozenset(), frozenset()


def carried(inference, returns, channels):
    """The Carried of a function. returns: whether its result may become an index; channels: element types that carry indices."""
    made = inference.__dict__.setdefault("carried", {})
    key = returns, channels
    if key not in made:
        made[key] = Nothing  # in a recursion
        made[key] = Carried(inference, returns, channels)
    return made[key]


def channels_of(inference):
    """The element types of arrays from which a kernel may load an index."""
    channels, before = frozenset(), None
    while channels != before:
        before, channels = channels, channels | carried(inference, False, channels).channels
    return channels


@functools.lru_cache(4096)
def looked_at(tree):
    """The nodes of a function's tree that Carried.look looks at: the last first, because a number becomes an index after it is made."""
    return [node for node in reversed(nodes_in(tree)) if isinstance(node, LOOKED_AT)]


@functools.lru_cache(4096)
def passed(call, tree):
    """Pairs (parameter, argument) of a call of the function with this tree; the parameters are None unless all arguments are plain."""
    names = [one.arg for one in (*tree.args.posonlyargs, *tree.args.args)]
    plain = not call.keywords and len(call.args) <= len(names) and not any(isinstance(one, ast.Starred) for one in call.args)
    arguments = [*call.args, *(one.value for one in call.keywords)]
    return list(zip(names if plain else [None] * len(arguments), arguments))


class Carried:
    """nodes: expressions, names: variables, channels: element types of arrays, whose values may become an index."""

    def __init__(self, inference, returns, channels):
        self.found, self.returns, self.known = inference, returns, channels
        self.nodes, self.names, self.channels = set(), set(), set()
        nodes, before = looked_at(inference.tree), None
        while before != (len(self.nodes), len(self.names)):
            before = len(self.nodes), len(self.names)
            for node in nodes:
                self.look(node)

    def look(self, node):
        """Mark what a node uses as an index, or hands on to something marked."""
        if isinstance(node, ast.Subscript):
            self.mark(node.slice)
        elif isinstance(node, ast.Slice):
            self.mark(node.lower)
            self.mark(node.upper)
        elif isinstance(node, ast.Return) and self.returns:
            self.mark(node.value)
        elif isinstance(node, ast.Call):
            self.look_at_call(node)
        elif isinstance(node, ast.Assign):
            if any(self.takes(target) for target in node.targets):
                self.mark(node.value)
        elif isinstance(node, ast.AnnAssign) and self.takes(node.target):
            self.mark(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, CARRYING) and self.takes(node.target):
            self.mark(node.value)
            self.nodes.add(node.target)

    def takes(self, target):
        """Whether an assignment to a target hands its value on."""
        if isinstance(target, (ast.Tuple, ast.List)):
            return any(map(self.takes, target.elts))
        if isinstance(target, ast.Subscript):
            return self.element(target.value) in self.known
        return isinstance(target, ast.Name) and target.id in self.names

    def element(self, array):
        """The element type of an array of integers of at least 32 bits, else None."""
        kind = self.found.values.get(array, UNKNOWN).type
        kind = kind.dtype if isinstance(kind, types.Array) else None
        return kind if is_integer(kind) and kind.bitwidth >= 32 else None

    def look_at_call(self, call):
        """Mark the arguments of a call that become an index in it."""
        inner = self.found.called.get(call)
        if inner is not None:
            callee = carried(inner, call in self.nodes, self.known)
            self.channels |= callee.channels
            for parameter, argument in passed(call, inner.tree):
                if parameter is None or parameter in callee.names:
                    self.mark(argument)
            return
        called = self.constant(call.func)
        if id(called) in FIRST_ARRAY or getattr(called, "emulation", None) is not None:
            for array, index in zip(call.args, call.args[1:]):
                if isinstance(self.found.values.get(array, UNKNOWN).type, types.Array):
                    self.mark(index)

    def mark(self, node):
        """Mark an expression, and the operands that it carries on."""
        if node is None or node in self.nodes:
            return
        self.nodes.add(node)
        if isinstance(node, ast.Name):
            self.names.add(node.id)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, CARRYING):
            self.mark(node.left)
            self.mark(node.right)
        elif isinstance(node, ast.IfExp):
            self.mark(node.body)
            self.mark(node.orelse)
        elif isinstance(node, (ast.Tuple, ast.List)):
            for element in node.elts:
                self.mark(element)
        elif isinstance(node, ast.Subscript) and (element := self.element(node.value)) is not None:
            self.channels.add(element)
        elif isinstance(node, (ast.Starred, ast.Attribute, ast.Subscript)):
            self.mark(node.value)
        elif isinstance(node, ast.Call) and node not in self.found.called and not self.ends_the_way(node):
            for argument in node.args:
                self.mark(argument)

    def ends_the_way(self, call):
        """Whether a call gives a float, which is no index, or a count of bits, which is no larger than 64."""
        kind = self.found.values.get(call, UNKNOWN).type
        gives_float = kind is not None and not is_integer(kind) and not isinstance(kind, types.BaseTuple)
        return gives_float or id(self.constant(call.func)) in COUNTS_OF_BITS

    def constant(self, node):
        """The object that an expression names, if it is known; else None."""
        value = self.found.values.get(node, UNKNOWN).constant
        return None if value is None else value.value
