"""The lane forms of expressions, as Python source."""

import ast
import operator

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.fused import negated, vector_fma
from minllm.sim.lanes import operations
from minllm.sim.lanes.arrays import constant
from minllm.sim.lanes.calls import call_form
from minllm.sim.lanes.carried import Nothing, carried
from minllm.sim.lanes.faults import NotInLanes
from minllm.sim.lanes.masks import joined, truth
from minllm.sim.lanes.trace import Site
from minllm.sim.operators import power_factors
from minllm.sim.place import file_and_function, file_of, is_own
from minllm.sim.scalars import simulated_type
from minllm.sim.typing.arithmetic import BINARY, binary
from minllm.sim.typing.contraction import NO_CONTRACTION
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.products import LEFT
from minllm.sim.typing.source import calls_in
from minllm.sim.typing.values import UNKNOWN, is_float, is_integer, is_scalar, may_be_negative, must_cast, range_bits

SYMBOLS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.truediv: "/", operator.floordiv: "//", operator.mod: "%",
}  # fmt: skip
CHECKED = {
    operator.floordiv: ("floordiv", "unsigned_floordiv"), operator.mod: ("mod", "unsigned_mod"),
    operator.lshift: ("lshift", "lshift"), operator.rshift: ("rshift", "unsigned_rshift"),
}  # fmt: skip
COUNTED = {operator.add: "add", operator.sub: "add", operator.mul: "multiply", operator.truediv: "divide"}  # as float_operations.py
COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}
UFUNCS = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}
INDICES = {id(getattr(numba.cuda, name)): name for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}
HARMLESS = (ast.Name, ast.Constant, ast.Compare, ast.Attribute, ast.BoolOp, ast.BinOp, ast.UnaryOp)
HARMLESS_OPERATIONS = (ast.Add, ast.Sub, ast.Mult, ast.BitAnd, ast.BitOr, ast.BitXor)


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


class Writer:
    """Writes the expressions of one function. names: the globals of the generated code; its state of lanes is named L.

    A subclass implements `lane_form(inference, detect, traced)`, which makes the form of a device function.
    """

    def __init__(self, inference, detect, traced):
        self.found, self.detect, self.traced = inference, detect, traced
        self.carried = carried(inference, *detect) if detect else Nothing
        self.names = {"joined": joined, "truth": truth, "ops": operations}
        self.contraction = inference.contraction or NO_CONTRACTION
        self.factors = {}  # {source of a product that is kept as a pair: those of its factors}
        self.sites = {}
        self.made, self.by_threads = 0, False  # by_threads: whether the simulator's threads execute some instruction
        self.chosen = {}  # {a if c else b, of arrays: the arm for which a statement is being written}
        code = inference.function.__code__
        self.local_names = set(filter(str.isidentifier, (*code.co_varnames, *code.co_cellvars)))  # without those of pytest's assertions

    def refuse(self, node, what):
        """Raise NotInLanes, with the place of a node."""
        code = self.found.function.__code__
        raise NotInLanes(f"{what} ({file_of(code)}:{node.lineno} in {code.co_name})")

    def new_name(self):
        """A name that no other part of the source has."""
        self.made += 1
        return f"t{self.made}"

    def thing(self, value):
        """A name of the generated code for an object."""
        name = next((name for name, known in self.names.items() if known is value), f"k{len(self.names)}")
        self.names[name] = value
        return name

    # For a trace

    def at(self, node, function, *operands):
        """The source of a call that a node of the kernel makes; traced, with its site."""
        if (site := self.site(node)) is None:
            return f"{function}({', '.join(operands)})"
        return f"L.at({', '.join([site, function, *operands])})"

    def site(self, node):
        """The name of a node's Site; None if no trace needs it, or if it is inside an instruction of minllm.ptx."""
        code = self.found.function.__code__
        if not self.traced or is_own(code.co_filename):
            return None
        if node not in self.sites:
            self.sites[node] = self.thing(Site(file_and_function(code), node.lineno))
        return self.sites[node]

    def operated(self, text, kind, what, count=1):
        """The source of the result of `count` operations; traced, those of float32 are counted."""
        if not self.traced or kind != types.float32 or not count:
            return text
        return f"L.operated('float32 {what}', {int(count)}, {text})"

    # Types

    def kind(self, node):
        """The Value of an expression after its casts."""
        value = self.found.values.get(node, UNKNOWN)
        casts = self.found.casts.get(node)
        if not casts:
            return value
        return value._replace(type=casts[-1], bits=range_bits(casts[-1]) if not is_float(casts[-1]) else 0, wide=False)

    def constant(self, node):
        """The object that an expression stands for, if it is known."""
        value = self.found.values.get(node)
        if value is not None and value.constant is not None:
            return value.constant.value
        return self.found.taken.get(node)

    def natural(self, text, kind):
        """The source of a number that leaves the lanes: one of type uint64 is not negative."""
        return f"ops.natural({text})" if kind is not None and kind.type == types.uint64 else text

    def is_array(self, value):
        """Whether a Value is an array."""
        return isinstance(value.type, types.Array)

    # Expressions

    def expression(self, node):
        """The source of an expression with its casts."""
        value = self.found.values.get(node)
        if value is None:
            self.refuse(node, "an expression of unknown type")
        known = value.constant
        acts = isinstance(node, ast.Call) and known is not None and known.value is None
        if known is not None and not acts and (text := self.literal(known.value)) is not None:
            return self.cast_steps(node, text)
        if isinstance(node, ast.Name) and node.id not in self.local_names:
            if node.id not in self.found.names and known is None:
                self.refuse(node, f"the unknown name {node.id}")
            return self.outside(self.found.names.get(node.id, known and known.value), node)
        if known is not None and isinstance(node, (ast.Attribute, ast.Subscript)):
            return self.outside(known.value, node)
        visit = getattr(self, "on_" + type(node).__name__, None)
        if visit is None:
            self.refuse(node, f"an expression {type(node).__name__}")
        text = visit(node, value)
        if node in self.contraction.rounded:
            text = self.rounded(text, value.type)
        return self.cast_steps(node, text)

    def rounded(self, pair, kind):
        """The source of a product, of the pair of its factors."""
        return self.operated(f"{self.thing(operator.mul)}(*{pair})", kind, "multiply")

    def literal(self, value):
        """The source of a constant number, or None."""
        if value is None or type(value) in (bool, int):
            return f"({value!r})" if value is not None else "None"
        if isinstance(value, np.bool_):
            return repr(bool(value))
        if isinstance(value, np.integer):
            return f"({int(value)})"
        if isinstance(value, (float, np.floating)):
            return self.thing(value if isinstance(value, np.floating) else np.float64(value))
        return None

    def outside(self, value, node):
        """The source of an object from outside of the function."""
        if (text := self.literal(value)) is not None:
            return text
        if isinstance(value, np.ndarray):
            return self.thing(constant(value, getattr(node, "id", "")))
        if isinstance(value, tuple):
            items = [self.outside(item, node) for item in value]
            inner = "".join(item + ", " for item in items)
            return f"{self.thing(type(value))}({inner})" if hasattr(value, "_fields") else f"({inner})"
        if callable(value) or isinstance(value, types.Type):
            return self.thing(value)
        self.refuse(node, f"the object {type(value).__name__} from outside of the function")

    def cast(self, wanted, given):
        """The name of the function that casts between two types."""
        return self.thing(operations.cast(wanted, given))

    def cast_steps(self, node, text):
        """The source of an expression, `text`, with the casts that its types need."""
        given = self.found.values[node].type
        for wanted in self.found.casts.get(node, ()):
            if not is_scalar(wanted) or not is_scalar(given):
                self.refuse(node, "a conversion of something that is not a number")
            text, given = self.integer_cast(wanted, given, text, node in self.carried.nodes), wanted
        return text

    def integer_cast(self, wanted, given, text, may_be_index):
        """The source of a cast; under detectors one of 32 bits and more that may change an index is checked."""
        checked = may_be_index and is_integer(wanted) and is_integer(given) and wanted.bitwidth >= 32
        return f"L.checked({self.cast(wanted, given)}, {text})" if checked else f"{self.cast(wanted, given)}({text})"

    def on_Name(self, node, value):
        return f"v_{node.id}"

    def on_Tuple(self, node, value):
        return "(" + "".join(("*" if isinstance(one, ast.Starred) else "") + self.item(one) + ", " for one in node.elts) + ")"

    def item(self, node):
        """The source of an element of a tuple, or of what is unpacked there."""
        return self.expression(node.value if isinstance(node, ast.Starred) else node)

    def on_Attribute(self, node, value):
        owner = self.found.values[node.value]
        if owner.constant is not None and id(owner.constant.value) in INDICES:
            return f"L.{INDICES[id(owner.constant.value)]}.{node.attr}"
        if owner.constant is not None and owner.constant.value is numba.cuda:
            return {"laneid": "L.laneid", "warpsize": "32"}.get(node.attr) or self.refuse(node, f"cuda.{node.attr}")
        if self.is_array(owner) and node.attr in ("shape", "size", "ndim", "T", "itemsize", "nbytes"):
            return f"{self.expression(node.value)}.{node.attr}"
        if owner.fields is not None and node.attr in owner.fields:
            return f"{self.expression(node.value)}.{node.attr}"
        self.refuse(node, f"the attribute {node.attr}")

    # Subscripts

    def selects_element(self, node):
        """Whether a subscript of an array selects one element, not a part."""
        owner, index = self.found.values[node.value], node.slice
        if isinstance(index, ast.Tuple):
            return len(index.elts) == owner.type.ndim and not any(isinstance(one, (ast.Slice, ast.Starred)) for one in index.elts)
        if isinstance(index, ast.Slice):
            return False
        items = self.found.values[index].items
        return (1 if items is None else len(items)) == owner.type.ndim

    def index(self, node):
        """The source of the tuple of a subscript's positions."""
        index = node.slice
        if isinstance(index, ast.Tuple):
            return "(" + "".join(self.position(one) + ", " for one in index.elts) + ")"
        if self.found.values[index].items is not None:
            return self.expression(index)
        return f"({self.position(index)}, )"

    def position(self, node):
        """The source of one integer of a subscript."""
        kind = self.kind(node)
        if not is_integer(kind.type):
            self.refuse(node, "an index that is not an integer")
        return f"ops.low({self.expression(node)})" if kind.bits > 63 else self.expression(node)

    def on_Subscript(self, node, value):
        owner = self.found.values[node.value]
        if owner.items is not None:
            if isinstance(node.slice, ast.Slice):
                return f"{self.expression(node.value)}[{ast.unparse(node.slice)}]"
            if self.constant(node.slice) is None:
                return f"L.pick({self.expression(node.value)}, {self.expression(node.slice)})"
            return f"{self.expression(node.value)}[{self.constant(node.slice)}]"
        if not self.is_array(owner):
            self.refuse(node, "a subscript of something that is not an array or a tuple")
        if self.selects_element(node):
            if not is_scalar(owner.type.dtype):
                self.refuse(node, f"an element of {owner.type.dtype}")
            return self.at(node, "L.load", self.expression(node.value), f"*{self.index(node)}")
        positions = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return f"L.part({self.expression(node.value)}, {''.join(self.part_position(one) + ', ' for one in positions)})"

    def part_position(self, node):
        """The source of one integer or slice of a subscript that selects a part of an array."""
        if not isinstance(node, ast.Slice):
            return self.position(node)
        if node.step is not None:
            self.refuse(node, "a slice with a step")
        bounds = ["None" if one is None else self.expression(one) for one in (node.lower, node.upper)]
        return f"slice({', '.join(bounds)})"

    # Operators

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

    # Calls

    def on_Call(self, node, value):
        called = self.constant(node.func)
        if called is None:
            self.refuse(node, f"the call {ast.unparse(node.func)}")
        inner = self.found.called.get(node)
        arguments = [("*" if isinstance(one, ast.Starred) else "") + self.item(one) for one in node.args]
        is_device = getattr(called, "emulation", None) is None and (hasattr(called, "py_func") or inner is not None)
        prefix = "v_" if is_device else ""  # of variables in generated functions
        named = "".join(f"{prefix}{one.arg}={self.expression(one.value)}, " for one in node.keywords)
        if is_device:
            return self.device_call(node, called, inner, arguments, named)
        if node in self.contraction.pairs:
            return arguments[0]
        if isinstance(called, types.Type) or (isinstance(called, type) and issubclass(called, (np.number, np.bool_, bool, float))):
            return self.conversion(node, value, arguments)
        if isinstance(called, type) and issubclass(called, tuple):
            return f"{self.thing(called)}({''.join(one + ', ' for one in arguments)}{named})"
        return call_form(self, node, called, value, arguments, named)

    def device_call(self, node, called, inner, arguments, named):
        """The source of a call of a device function. inner: its Inference. arguments, named: sources."""
        if inner is None or node in self.found.methods:
            self.refuse(node, f"the device function {getattr(called, '__name__', called)}")
        form = self.lane_form(inner, self.detect and (node in self.carried.nodes, self.detect[1]), self.traced)
        self.by_threads |= form.by_threads
        operands = f"{self.thing(form)}, ({''.join(one + ', ' for one in arguments)}), dict({named})"
        site = self.site(node)
        return f"L.call({operands})" if site is None else f"L.call_at({site}, {operands})"

    def conversion(self, node, value, arguments):
        """The source of a conversion, such as float32(x). arguments: sources."""
        kind = self.kind(node.args[0]) if len(node.args) == 1 else UNKNOWN
        if not (is_scalar(kind.type) and is_scalar(value.type)):
            self.refuse(node, "a conversion of something that is not a number")
        if is_integer(value.type) and is_integer(kind.type) and not must_cast(kind, value.type):
            return arguments[0]
        return self.integer_cast(value.type, kind.type, arguments[0], node in self.carried.nodes)
