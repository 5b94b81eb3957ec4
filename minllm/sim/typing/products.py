"""Values as the compiler sees them: products, the sums that may take them, and the blocks of code that both lie in."""

import ast
from typing import Any, NamedTuple

LEFT, RIGHT = 0, 1  # sides of a sum


class Block:
    """A basic block. parent: the nearest one that every path to it passes; loops: those around it; tests: the keys of values in the test of
    the branch to it; memory: how often memory has changed before it."""

    def __init__(self, parent, loops, tests, memory):
        self.parent, self.loops, self.tests, self.memory = parent, loops, tests, memory

    def takes(self, product):
        """Whether the compiler moves a product that is used here alone to here, with the loads of its factors."""
        here = self
        while here is not product.block:
            if here is None or product.factors and product.factors <= here.tests:
                return False
            here = here.parent
        return self.loops == product.block.loops and product.loaded in (None, self.memory)


class Product:
    """The value of a multiplication; equal ones are one Product.

    anywhere: whether a factor is a scalar argument of the kernel or a literal, which lifts the rule of one block. loaded: see Term.
    sources: the expressions that make it, each with its place in what that gives. sums: the blocks of the sums that use it. closed: whether
    something else uses it. returned: whether the function returns it.
    """

    def __init__(self, kind, block, factors, anywhere=False, loaded=None):
        self.kind, self.block, self.factors, self.anywhere, self.loaded = kind, block, factors, anywhere, loaded
        self.sources, self.sums, self.closed, self.returned = [], [], False, False

    def is_open(self):
        """Whether a sum may take it."""
        if self.closed:
            return False
        if self.anywhere or all(block is self.block for block in self.sums):
            return True
        return len(self.sums) == 1 and self.sums[0].takes(self)


class Term(NamedTuple):
    """The value of an expression: equal keys are equal values.

    rank: LLVM's order of operands (Reassociate.cpp). loops: those in which it varies. is_free: whether it is a scalar argument of the
    kernel or a literal. loaded: how often memory had changed when its newest part was loaded; None if nothing of it was. items: the Terms
    of a tuple. meets: the Terms of which it is one, after a branch or in a loop, in a list that may grow.
    """

    key: Any
    rank: int = 0
    loops: tuple = ()
    product: Product | None = None
    negated: bool = False
    is_free: bool = False
    loaded: int | None = None
    items: tuple | None = None
    meets: list | None = None


def newest(*terms):
    """When the newest part of several values was loaded; None if none was."""
    return max((term.loaded for term in terms if term.loaded is not None), default=None)


def tuple_of(items):
    """The Term of a tuple."""
    loops = max((item.loops for item in items), key=len, default=())
    return Term(("tuple", *(item.key for item in items)), max((item.rank for item in items), default=0), loops, items=tuple(items))


class Sum(NamedTuple):
    """A sum or a difference (minus), with the Terms and the expressions of its operands."""

    node: ast.AST
    minus: bool
    operands: tuple
    expressions: tuple

    def in_order(self):
        """The sides in the order in which the compiler looks for a product."""
        left, right = self.operands
        if self.minus:
            swapped = left.negated and right.negated  # -a - -b is b - a
        else:
            swapped = left.negated if left.negated != right.negated else right.rank < left.rank
        return (RIGHT, LEFT) if swapped else (LEFT, RIGHT)


class Passed(NamedTuple):
    """A product that is an argument of a device function, which uses it in sums alone. path: the place of the parameter."""

    node: ast.Call
    path: tuple
    operands: tuple
    expressions: tuple

    def in_order(self):
        """The side of its only operand."""
        return (LEFT,)


def parts(term, path=()):
    """(path, Term) of a Term that is not a tuple, or of all parts of one."""
    if term.items is None:
        yield path, term
    for position, item in enumerate(term.items or ()):
        yield from parts(item, (*path, position))


CLOSED = Term("closed")  # stands for values that a variable had, after their use
