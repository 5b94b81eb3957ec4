"""The lane forms of expressions, as Python source."""

import ast

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.lanes.arithmetic import Arithmetic
from minllm.sim.lanes.calls import call_form
from minllm.sim.lanes.conditions import Conditions
from minllm.sim.typing.values import UNKNOWN, is_integer, is_scalar, must_cast

INDICES = {id(getattr(numba.cuda, name)): name for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")}


class Expressions(Arithmetic, Conditions):
    """Writes the expressions of one function.

    A subclass implements `lane_form(inference, detect, traced)`, which makes the form of a device function.
    """

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
