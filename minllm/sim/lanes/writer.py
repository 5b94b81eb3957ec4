"""Source of the lane forms of a function: names, types, constants, casts, and the places that a trace shows."""

import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.lanes import operations
from minllm.sim.lanes.arrays import constant
from minllm.sim.lanes.carried import Nothing, carried
from minllm.sim.lanes.faults import NotInLanes
from minllm.sim.lanes.masks import joined, truth
from minllm.sim.lanes.trace import Site
from minllm.sim.place import file_and_function, file_of, is_own
from minllm.sim.typing.contraction import NO_CONTRACTION
from minllm.sim.typing.values import UNKNOWN, is_float, is_integer, is_scalar, range_bits


class Writer:
    """Writes the source of one function. names: the globals of the generated code; its state of lanes is named L.

    A subclass implements `expression(node)`, the source of an expression with its casts (expressions.py).
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

    # Constants and casts

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
