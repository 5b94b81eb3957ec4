"""The lane forms of comparisons, `and`, `or`, and `a if c else b`, of which some lanes do not need all operands."""

import ast

import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.lanes.writer import Writer
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.values import is_float, is_integer, is_scalar, may_be_negative

COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
UFUNCS = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
HARMLESS = (ast.Name, ast.Constant, ast.Compare, ast.Attribute, ast.BoolOp, ast.BinOp, ast.UnaryOp)
HARMLESS_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


class Conditions(Writer):
    """Writes conditions."""

    def on_Compare(self, node, value):
        operands = [node.left, *node.comparators]
        if len(node.ops) == 1:
            return self.compare(node, node.ops[0], *operands)
        if not all(self.harmless(one) for one in operands[1:]):
            return self.chain(node, operands)
        return "(" + " & ".join(self.compare(node, *three) for three in zip(node.ops, operands, operands[1:])) + ")"

    def chain(self, node, operands):
        """The source of a < b < c, of which b is evaluated once."""
        if len(operands) > 3:
            self.refuse(node, "a chain of more than two comparisons")
        name = self.new_name()
        first = self.compare(node, node.ops[0], *operands[:2], right_text=f"({name} := {self.expression(operands[1])})")
        second = self.compare(node, node.ops[1], *operands[1:], left_text=name)
        return f"L.and_({first}, lambda: {second})"

    def compare(self, node, op, left, right, left_text=None, right_text=None):
        """The source of one comparison. left_text, right_text: sources to take for the operands, if they are not their own."""
        kinds = self.kind(left), self.kind(right)
        if type(op) not in COMPARISONS or not all(is_scalar(kind.type) for kind in kinds):
            self.refuse(node, "a comparison of something that is not a number")
        symbol, texts = COMPARISONS[type(op)], (left_text or self.expression(left), right_text or self.expression(right))
        if types.uint64 in (kinds[0].type, kinds[1].type):
            if not all(is_integer(kind.type) for kind in kinds):
                self.refuse(node, "a comparison of uint64 with a number that is not an integer")
            signs = [kind.type == types.uint64 or not may_be_negative(kind) for kind in kinds]
            return f"ops.compare_unsigned({self.thing(UFUNCS[symbol])}, {texts[0]}, {texts[1]}, {signs[0]}, {signs[1]})"
        texts = [f"ops.low({text})" if kind.bits > 63 else text for text, kind in zip(texts, kinds)]
        return f"({texts[0]} {symbol} {texts[1]})"

    def harmless(self, node):
        """Whether an expression may be evaluated by lanes that do not need it."""
        for inner in nodes_in(node):
            if isinstance(inner, ast.BinOp) and not isinstance(inner.op, HARMLESS_OPERATIONS):
                return False
            if self.traced and isinstance(inner, ast.BinOp) and is_float(self.kind(inner).type):
                return False
            if isinstance(inner, ast.expr) and not isinstance(inner, HARMLESS):
                return False
        return True

    def on_BoolOp(self, node, value):
        if any(self.kind(one).type != types.boolean for one in node.values):
            self.refuse(node, "`and` or `or` of numbers")
        return self.logical(node)

    def test(self, node):
        """The source of a condition; its parts may be numbers."""
        return self.logical(node) if isinstance(node, ast.BoolOp) and self.constant(node) is None else self.expression(node)

    def logical(self, node):
        """The source of `and` or `or`; lanes that do not need an operand evaluate it only if that is harmless."""
        is_and = isinstance(node.op, ast.And)
        text = None
        for one in node.values:
            known = self.constant(one)
            if known is not None and bool(known) is is_and:
                continue
            part = self.test(one)
            if text is None:
                text = part
            elif self.harmless(one) and self.kind(one).type == types.boolean:
                text = f"(truth({text}) {'&' if is_and else '|'} {part})"
            else:
                text = f"L.{'and_' if is_and else 'or_'}({text}, lambda: {part})"
            if known is not None:
                break
        return text or repr(is_and)

    def on_IfExp(self, node, value):
        known = self.constant(node.test)
        if node in self.chosen:
            return self.expression(self.chosen[node])
        if known is not None:
            return self.expression(node.body if known else node.orelse)
        return f"L.select({self.test(node.test)}, lambda: {self.expression(node.body)}, lambda: {self.expression(node.orelse)})"
