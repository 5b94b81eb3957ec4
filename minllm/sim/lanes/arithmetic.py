"""The lane forms of operators on numbers: products that are fused with sums, integers of each width, divisions by zero."""

import ast
import operator

from minllm.machine.numba_cuda import types
from minllm.sim.fused import negated, vector_fma
from minllm.sim.lanes.writer import Writer
from minllm.sim.operators import power_factors
from minllm.sim.scalars import simulated_type
from minllm.sim.typing.arithmetic import BINARY, binary
from minllm.sim.typing.products import LEFT
from minllm.sim.typing.source import calls_in
from minllm.sim.typing.values import is_float, is_integer, is_scalar

SYMBOLS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
}  # fmt: skip
CHECKED = {
    operator.floordiv: ("floordiv", "unsigned_floordiv"), operator.mod: ("mod", "unsigned_mod"),
    operator.lshift: ("lshift", "lshift"), operator.rshift: ("rshift", "unsigned_rshift"),
}  # fmt: skip
# What a trace counts, by the names of float_operations.py.
COUNTED = {operator.add: "add", operator.sub: "add", operator.mul: "multiply", operator.truediv: "divide"}


class Multiplications:
    """A factor that counts the products it is in."""

    count = 0

    def __mul__(self, other):
        self.count += 1
        return self


def multiplications(exponent):
    """The number of products in power_factors."""
    base = Multiplications()
    power_factors(base, exponent)
    return base.count


class Arithmetic(Writer):
    """Writes arithmetic."""

    def rounded(self, pair, kind):
        """The source of a product, of the pair of its factors."""
        return self.operated(f"{self.thing(operator.mul)}(*{pair})", kind, "multiply")

    def augmented(self, node):
        """The Value of the result of an augmented assignment."""
        return binary(BINARY[type(node.op)], self.kind(node.target), self.kind(node.value))[0]

    def on_BinOp(self, node, value):
        kinds = self.kind(node.left), self.kind(node.right)
        left, right = self.expression(node.left), self.expression(node.right)
        return self.binary(node, BINARY.get(type(node.op)), left, right, kinds, value)

    def binary(self, node, operation, left, right, kinds, result):
        """The source of an operator's result."""
        if node in self.contraction.fused or node in self.contraction.pairs:
            left, right = (self.as_float(*one, result) for one in zip((left, right), kinds))
            return self.fused(node, left, right, result) if node in self.contraction.fused else self.pair(node, operation, left, right)
        replaced = getattr(self.found, "operators", {}).get(node)  # by inference, where Python computes something else
        if replaced is not None and not isinstance(replaced, tuple):
            if self.traced and operation is operator.pow and is_float(result.type):
                self.refuse(node, "a trace of a power of floats")
            return f"L.each({self.thing(replaced)}, {left}, {right})"
        if operation is None or not (is_scalar(result.type) and all(is_scalar(kind.type) for kind in kinds)):
            self.refuse(node, "an operator on something that is not a number")
        if is_integer(result.type) or result.type == types.boolean:
            return self.integer_binary(node, operation, left, right, kinds, result)
        left, right = (self.as_float(*one, result) for one in zip((left, right), kinds))
        if operation is operator.pow:
            return self.operated(f"ops.power(L, {left}, {right})", result.type, "function")
        if operation not in SYMBOLS:
            self.refuse(node, "an operator on floats")
        text = f"({left} {SYMBOLS[operation]} {right})"
        return self.operated(text, result.type, COUNTED[operation]) if operation in COUNTED else text

    def as_float(self, text, kind, result):
        """The source of the operand of an operator on floats."""
        return text if is_float(kind.type) else f"{self.cast(result.type, kind.type)}({text})"

    def pair(self, node, operation, left, right):
        """The source of the two factors of a product."""
        if operation is operator.pow:
            exponent = self.constant(node.value if isinstance(node, ast.AugAssign) else node.right)
            text, kind = f"{self.thing(power_factors)}({left}, {exponent})", self.found.values[node].type
            return self.operated(text, kind, "multiply", multiplications(exponent))
        text = f"({left}, {right})"
        self.factors[text] = left, right
        return text

    def negative(self, pair):
        """The source of the factors of the negative of a product."""
        if pair not in self.factors:
            return f"{self.thing(negated)}({pair})"
        first, second = self.factors[pair]
        return self.pair(None, operator.mul, f"(-{first})", second)

    def fused(self, node, left, right, result):
        """The source of a sum or a difference, one operand of which is the pair of a product's factors."""
        side, before = self.contraction.fused[node], ""
        product, addend = (left, right) if side == LEFT else (right, left)
        if side != LEFT and not addend.isidentifier() and calls_in(node):
            before, addend = f"({(name := self.new_name())} := {addend}), ", name  # it is evaluated before the calls in the product
        if isinstance(node.op, ast.Sub):
            product, addend = (product, f"(-{addend})") if side == LEFT else (self.negative(product), addend)
        factors = ", ".join(self.factors[product]) if product in self.factors else f"*{product}"
        text = f"{self.thing(vector_fma(simulated_type(result.type)))}({factors}, {addend})"
        text = self.operated(text, result.type, "multiply-add", 2)
        return f"({before}{text})[1]" if before else text

    def integer_binary(self, node, operation, left, right, kinds, result):
        """The source of a binary operator of two integers. left, right: sources. kinds: their Values."""
        left, right = (f"ops.low({text})" if kind.bits > 62 or kind.wide else text for text, kind in zip((left, right), kinds))
        if operation is operator.pow:
            return f"ops.power(L, {left}, {right})"
        if operation not in CHECKED:
            text = f"({left} {SYMBOLS[operation]} {right})"
            return f"ops.low({text})" if result.bits > 63 or result.wide else text
        shift = operation in (operator.lshift, operator.rshift)
        known = kinds[1].constant
        name, unsigned_name = CHECKED[operation]
        below = f", {result.type.bitwidth}" if shift else ""
        if types.uint64 in (kinds[0].type, *([] if shift else [kinds[1].type])):
            return f"ops.{unsigned_name}(L, {left}, {right}{below})"
        if known is not None and operation is operator.lshift and 0 <= known.value < result.type.bitwidth:
            return f"ops.low({left} << {known.value})" if result.bits > 63 or result.wide else f"({left} << {known.value})"
        if known is not None and operation is operator.rshift and 0 <= known.value < result.type.bitwidth:
            return f"({left} >> {known.value})"
        if known is not None and not shift and known.value != 0:
            return f"({left} {SYMBOLS[operation]} {right})"
        return f"ops.{name}(L, {left}, {right}{below})"

    def on_UnaryOp(self, node, value):
        operand = self.expression(node.operand)
        if isinstance(node.op, ast.Not) or isinstance(self.found.calls.get(node), ast.Not):
            return f"ops.not_({operand})"
        kind = self.kind(node.operand)
        if not is_scalar(kind.type):
            self.refuse(node, "an operator on something that is not a number")
        if kind.bits > 63 or kind.wide:
            operand = f"ops.low({operand})"
        if node in self.contraction.pairs:
            return self.negative(operand) if isinstance(node.op, ast.USub) else operand
        text = f"({'-' if isinstance(node.op, ast.USub) else '~' if isinstance(node.op, ast.Invert) else '+'}{operand})"
        if (wrap := self.found.wraps.get(node)) is not None:
            text = f"{self.cast(wrap, types.int64)}({text})"
        return text
