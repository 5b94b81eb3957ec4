"""Which branches Numba takes when it compiles: those whose condition is known before types are inferred, which drops the other arm.

A condition is known if it compares two constants, is an operator of two, or is one itself: a literal, a name outside of the function, a
variable that has one of these, `x.ndim` and `len(x)` of a parameter. Of `and` and `or` each operand is a condition of its own. Numba
does not compute with constants: `N + 1 == 3`, `config.N == 2` and `SIZES[0] == 2` are decided when the kernel runs, and both arms have a
say in the types of variables.
"""

import ast
import operator

from minllm.machine.numba_cuda import types
from minllm.sim.typing.arithmetic import BINARY, COMPARISONS
from minllm.sim.typing.values import NOTHING, UNKNOWN, Constant, Value, is_scalar

OPERATORS = {
    **COMPARISONS,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, container: item in container,
}


class Branches:
    """Finds the conditions that Numba knows; they are kept in `self.found.taken`."""

    def tested(self, node):
        """Visit a condition; whether Numba always (True) or never (False) takes it when it compiles, None if that depends on the launch."""
        if isinstance(node, ast.BoolOp):
            known, stop = [], isinstance(node.op, ast.Or)
            for operand in node.values:
                known.append(self.tested(operand))
                if known[-1] is stop:
                    break
            found = decision(known, stop)
            self.found.casts.pop(node, None)
            self.found.values[node] = Value(types.boolean, 1, constant=self.folded_logic(node, stop))
        else:
            self.settled(node)
            found = self.taken(node)
        self.found.taken.pop(node, None)
        if found is not None:
            self.found.taken[node] = found
        return found

    def taken(self, node):
        """Like `tested`, of a condition whose Value is known."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.taken(node.operand)
            return None if inner is None else not inner
        if isinstance(node, ast.BoolOp):
            return decision(list(map(self.taken, node.values)), isinstance(node.op, ast.Or))
        value = self.found.values.get(node)
        if isinstance(node, ast.BinOp):
            return decided(BINARY.get(type(node.op)), self.found.values.get(node.left, UNKNOWN), self.found.values.get(node.right, UNKNOWN))
        if value is None or value.constant is None or not value.constant.prunes:
            return None
        is_parameter = isinstance(node, ast.Name) and value == self.found.arguments.get(node.id)
        return None if is_parameter else bool(value.constant.value)

    def folded_logic(self, node, stop):
        """The Constant of a condition's `and` or `or`, if its operands are known up to the one that decides; else None."""
        for operand in node.values:
            value = self.found.values.get(operand)
            if value is None or value.constant is None:
                return None
            if bool(value.constant.value) is stop:
                return Constant(stop)
        return Constant(not stop)

    def known_comparison(self, node, values):
        """The Constant of a comparison or a chain of them, for the Values of its operands, if Numba knows it; else None."""
        values = [self.with_array(*parts) for parts in zip((node.left, *node.comparators), values)]
        pairs = [compared(*parts, self.device) for parts in zip(node.ops, values, values[1:])]
        found = decision(pairs, False)
        return None if found is None else Constant(found, prunes=True)

    def with_array(self, node, value):
        """The Value of an operand; that of an array from outside of the function gets it as its constant."""
        outside = isinstance(node, ast.Name) and node.id not in self.variables and value.constant is None
        return Value(constant=Constant(self.found.names.get(node.id), prunes=True)) if outside and node.id in self.found.names else value


def decision(known, stop):
    """The truth of `and` (stop=False: one False decides) or `or` (True) for that of its operands, of which None are not known."""
    return stop if stop in known else None if None in known else not stop


def compared(operation, left, right, device):
    """The result of one comparison of two Values, if Numba knows it; else None. device: whether it is in a device function."""
    if NOTHING in (left, right) and isinstance(operation, (ast.Is, ast.IsNot)):
        other = right if left == NOTHING else left
        if device and is_scalar(other.type):  # a literal in the call
            return isinstance(operation, ast.IsNot)
    return decided(OPERATORS.get(type(operation)), left, right)


def decided(operation, left, right):
    """The truth of an operator's result for two Values, if Numba knows both; else None."""
    known = [value.constant.value for value in (left, right) if value.constant is not None and value.constant.prunes]
    try:
        return bool(operation(*known)) if len(known) == 2 and operation is not None else None
    except (ArithmeticError, TypeError, ValueError):
        return None


def pruning(value):
    """A Value whose constant, if it has one, decides conditions."""
    if value.constant is None or value.constant.prunes:
        return value
    return value._replace(constant=Constant(value.constant.value, prunes=True))
