"""Which products and sums the compiler makes one fma, which rounds once: a * b + c, a * b - c, c - a * b.

NVVM and ptxas fuse a product into a sum if every use of the product is a sum or a difference of its type in its own basic block, after
device functions have been inlined and equal values have become one. flow.py finds the products and sums of a function; here they are
matched. A product in a variable, in a tuple, in an argument or in a result is kept as the pair of its factors. docs/simulator.md states
the rule, and where it is not certain.

    contracted      a copy of an Inference that says which sums are fused (Contraction)
"""

import ast
import copy
from typing import NamedTuple

from minllm.sim.typing.flow import computes, flow_of
from minllm.sim.typing.products import Passed


class Contraction(NamedTuple):
    """What is fused in a function.

    fused: {sum: side of the product}. pairs: the expressions that give the two factors of a product. rounded: those whose factors are
    multiplied where they are used. called: {call: (places of parameters that are pairs, places in the result that are pairs)}.
    """

    fused: dict
    pairs: set
    rounded: set
    called: dict

    def note(self, node, path, which):
        """Note the place of a pair in the parameters (0) or in the result (1) of a call."""
        places = list(self.called.get(node, (frozenset(), frozenset())))
        places[which] |= {path}
        self.called[node] = tuple(places)


NO_CONTRACTION = Contraction({}, set(), set(), {})


def contracted(found, given=frozenset(), wanted=frozenset()):
    """The Inference of a function with its Contraction. given: places of parameters that are pairs; wanted: places in its result that are
    to be pairs."""
    made = found.__dict__.setdefault("contracted", {})
    if (given, wanted) not in made:
        flow = flow_of(found) if computes(found) else None
        made[given, wanted] = found if flow is None else with_contraction(found, decided(flow, given, wanted))
    return made[given, wanted]


def with_contraction(found, chosen):
    """A copy of an Inference with a Contraction, and those of the device functions that it calls."""
    called = {node: inner and contracted(inner, *chosen.called.get(node, ())) for node, inner in found.called.items()}
    if not any(chosen) and all(called[node] is inner for node, inner in found.called.items()):
        return found
    new = copy.copy(found)
    for cached in ("made", "lane_forms", "contracted", "flow"):
        new.__dict__.pop(cached, None)
    new.contraction, new.called = chosen, called
    changed = {node for node in found.inlined if called[node] is not found.called[node]}
    new.devices = {node: called[node] for node in called if node in found.devices or node in changed}
    return new


def decided(flow, given, wanted):
    """The Contraction of a function. given: places of parameters that are pairs; wanted: places in the result that are to be pairs."""
    chosen, passed, returned = Contraction({}, set(), set(), {}), set(), flow.returned_products()
    kept = {flow.given[path] for path in given} | {product for path, product in returned if path in wanted}
    shut = {product for path, product in (*flow.given.items(), *returned) if product not in kept}  # which nothing may take
    for one in reversed(flow.sums):
        products = [one.operands[side].product for side in one.in_order()]
        product = next((product for product in products if product and product not in shut and product.is_open()), None)
        if product is None:
            continue
        kept.add(product)
        if isinstance(one, Passed):
            passed.add(id(one))
            chosen.note(one.node, one.path, 0)
        else:
            chosen.fused[one.node] = side = one.in_order()[products.index(product)]
            shut.add(one.operands[1 - side].product)  # it is rounded for this sum: a use that is no sum
    mark(flow, chosen, kept, passed)
    return chosen


def mark(flow, chosen, kept, passed):
    """Note which expressions are pairs, and where their factors are multiplied. kept: products that are pairs; passed: ids of Passed."""
    multiplied = set()  # expressions that make a product where it is used, and rounded
    for one in flow.sums:
        for side, (term, expression) in enumerate(zip(one.operands, one.expressions)):
            if term.product not in kept or id(one) in passed or chosen.fused.get(one.node) == side:
                continue
            inner = chain(flow, expression)
            if inner[-1] in flow.sources and isinstance(inner[-1], (ast.BinOp, ast.Call)):
                multiplied.update(inner)
            else:
                chosen.rounded.add(expression)
    for product in kept:
        for source, path in product.sources:
            if source not in multiplied:
                chosen.pairs.add(source)
                if source in flow.found.called:
                    chosen.note(source, path, 1)


def chain(flow, expression):
    """An expression, and what it is the negative or the conversion of."""
    found = [expression]
    while found[-1] in flow.sources and found[-1] not in flow.found.called and isinstance(found[-1], (ast.UnaryOp, ast.Call)):
        found.append(found[-1].operand if isinstance(found[-1], ast.UnaryOp) else found[-1].args[0])
    return found
