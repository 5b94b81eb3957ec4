"""What the expressions of a function make and use: products, and the sums that may take them."""

import ast
import math
import operator

import numba.cuda
import numpy as np

from minllm.machine.numba_cuda import types
from minllm.sim.typing.arithmetic import BINARY
from minllm.sim.typing.nodes import names_in, nodes_in
from minllm.sim.typing.products import CLOSED, Block, Passed, Product, Sum, Term, newest, parts, tuple_of
from minllm.sim.typing.values import is_float

PURE = (abs, bool, float, int, len, max, min, range, round, numba.cuda.grid, numba.cuda.gridsize, numba.cuda.fma, numba.cuda.selp)
CHEAP = 3  # operators in the arm of a branch that the compiler evaluates in any case, instead of branching
BLOCK_RANK = 1 << 16


class FlowExpressions:
    """The expressions of a function. A subclass keeps the state of a walk, and implements `flow_of(inference)`."""

    # Uses

    def use(self, term):
        """Use a value for something else than a sum; returns its Term."""
        if term.product is not None:
            term.product.closed = True
        for item in term.items or ():
            self.use(item)
        if term.meets:
            found, term.meets[:] = list(term.meets), [CLOSED]
            for one in found:
                self.use(one)
        return term

    def used(self, node):
        """The Term of an expression that is used for something else than a sum."""
        return self.use(self.expression(node))

    def meet(self, terms):
        """The Term of a value that is one of several."""
        first = terms[0]
        if all(one == first for one in terms):
            return first
        if first.items is not None and all(one.items is not None and len(one.items) == len(first.items) for one in terms):
            return Term(self.unique("meet"), items=tuple(self.meet(items) for items in zip(*(one.items for one in terms))))
        return Term(self.unique("meet"), self.tick(), self.loops, meets=list(terms))

    def tick(self):
        """The next number of the clock, which orders Terms."""
        self.clock += 1
        return self.clock

    def unique(self, what):
        """A key that no other Term has."""
        return what, self.tick()

    def opaque(self):
        """The Term of a value of which nothing is known."""
        return Term(self.unique("value"), self.clock, self.loops)

    def changed(self):
        """Memory may have changed."""
        self.epoch, self.local_epoch, self.writes = self.epoch + 1, self.local_epoch + 1, True

    def enter(self, tests=frozenset(), parent=None):
        """Begin another basic block."""
        self.block = Block(parent or self.block, self.loops, tests, self.epoch)
        self.clock = (self.clock // BLOCK_RANK + 1) * BLOCK_RANK
        self.branches = True

    # Expressions

    def expression(self, node):
        """The Term of an expression after its casts."""
        value = self.values.get(node)
        if value is None:
            self.names_used(node)
            return self.opaque()
        known = value.constant
        if known is not None and isinstance(known.value, (bool, int, float, np.number)):
            term = Term(("constant", value.type, known), is_free=True)
        else:
            visit = getattr(self, "on_" + type(node).__name__, self.other)
            term = visit(node)
        casts = self.found.casts.get(node)
        if casts:
            self.use(term)
            term = Term(("cast", casts, term.key), term.rank + 1, term.loops, is_free=term.is_free, loaded=term.loaded)
        if self.seen is not None:
            self.seen.add(term.key)
        return term

    def names_used(self, node):
        """Use all variables that occur in a part of the code of which nothing is known."""
        for one in names_in(node):
            if one.id in self.variables:
                self.use(self.variables[one.id])

    def kind(self, node):
        """The type of an expression after its casts."""
        casts = self.found.casts.get(node)
        return casts[-1] if casts else self.values[node].type

    def other(self, node):
        """An expression of any other kind: all its parts are used."""
        terms = [self.used(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if isinstance(node, ast.NamedExpr):
            self.variables[node.target.id] = self.opaque()
        loops = max((term.loops for term in terms), key=len, default=())
        details = tuple(type(one).__name__ for one in getattr(node, "ops", None) or [getattr(node, "op", node)])
        rank = max((term.rank for term in terms), default=0) + 1
        return Term((details, *(term.key for term in terms)), rank, loops, loaded=newest(*terms))

    def on_Name(self, node):
        return self.variables.get(node.id) or Term(("outside", node.id), is_free=True)

    def on_Tuple(self, node):
        items = []
        for one in node.elts:
            if isinstance(one, ast.Starred):
                term = self.expression(one.value)
                if term.items is None:
                    self.use(term)
                    return self.opaque()
                items.extend(term.items)
            else:
                items.append(self.expression(one))
        return tuple_of(items)

    def on_Attribute(self, node):
        owner, fields = self.expression(node.value), self.values.get(node.value)
        if owner.items is not None and fields is not None and fields.fields and node.attr in fields.fields:
            return owner.items[fields.fields.index(node.attr)]
        return Term(("attribute", node.attr, owner.key), owner.rank, owner.loops)

    def on_Subscript(self, node):
        owner = self.expression(node.value)
        if owner.items is not None:
            index = self.values.get(node.slice)
            known = index.constant.value if index is not None and index.constant is not None else None
            if type(known) is int and -len(owner.items) <= known < len(owner.items):
                return owner.items[known]
            self.use(owner)
            self.used(node.slice)
            return self.opaque()
        index = self.used(node.slice)
        if isinstance(self.values[node].type, types.Array):
            return Term(("part", owner.key, index.key), owner.rank, max(owner.loops, index.loops, key=len))
        key = "load", owner.key, index.key, self.local_epoch if owner.key[0] == "local" else self.epoch
        if key not in self.loaded:
            loops = max(owner.loops, index.loops, key=len) if self.steady[-1] else self.loops
            self.loaded[key] = Term(key, self.tick(), loops, loaded=None if owner.key[0] == "local" else self.epoch)
        return self.loaded[key]

    def on_UnaryOp(self, node):
        if not (isinstance(node.op, (ast.USub, ast.UAdd)) and is_float(self.values[node].type)):
            return self.other(node)
        term = self.expression(node.operand)
        if isinstance(node.op, ast.UAdd) and term.product is None:
            return term
        if term.product is None:
            self.use(term)
            return Term(("-", term.key), term.rank, term.loops, is_free=term.is_free, loaded=term.loaded)
        self.source(term.product, node)
        return term if isinstance(node.op, ast.UAdd) else term._replace(negated=not term.negated, key=("-", term.key))

    def on_BinOp(self, node):
        return self.operation(node, (node.left, node.right), self.values[node].type)

    def operation(self, node, expressions, kind):
        """The Term of the operator of a BinOp or an AugAssign."""
        operation = BINARY.get(type(node.op))
        left, right = (self.expression(one) for one in expressions)
        if is_float(kind):
            if operation in (operator.add, operator.sub):
                return self.sum(node, (left, right), expressions, kind)
            if operation is operator.mul and self.kind(expressions[0]) != types.boolean:
                return self.multiplied(node, left, right, kind)
            exponent = self.values[expressions[1]].constant
            if operation is operator.pow and exponent is not None and type(exponent.value) is int and exponent.value > 1:
                return self.multiplied(node, left, right._replace(rank=left.rank, is_free=False), kind)
        self.use(left), self.use(right)
        return self.combined(operation, left, right)

    def combined(self, operation, left, right):
        """The Term of an operator that makes no product."""
        loops = max(left.loops, right.loops, key=len)
        return Term((operation, left.key, right.key), max(left.rank, right.rank) + 1, loops, loaded=newest(left, right))

    def multiplied(self, node, left, right, kind):
        """The Term of a product."""
        self.use(left), self.use(right)
        key = "*", kind, frozenset((left.key, right.key))
        loops = max(left.loops, right.loops, key=len)
        product = self.products.get(key)
        if product is None:
            block = self.block if len(loops) >= len(self.loops) else self.entered[len(loops)]
            product = Product(kind, block, frozenset((left.key, right.key)), left.is_free or right.is_free, newest(left, right))
            self.products[key] = product
        self.source(product, node)
        return Term(key, max(left.rank, right.rank) + 1, loops, product, loaded=product.loaded)

    def source(self, product, node, path=()):
        """Note that an expression makes a product."""
        product.sources.append((node, path))
        self.sources[node] = product

    def sum(self, node, operands, expressions, kind):
        """The Term of a sum or a difference."""
        minus = isinstance(node.op, ast.Sub)
        for term in operands:
            if term.product is not None and term.product.kind == kind:
                term.product.sums.append(self.block)
            else:
                self.use(term)
        self.sums.append(Sum(node, minus, operands, expressions))
        return self.combined("-" if minus else "+", *operands)

    def on_IfExp(self, node):
        known = self.known(node.test)
        if known is not None:
            return self.expression(node.body if known else node.orelse)
        self.used(node.test)
        if is_cheap(node.body) and is_cheap(node.orelse):
            return self.meet([self.expression(node.body), self.expression(node.orelse)])
        before, terms = self.block, []
        for arm in (node.body, node.orelse):
            terms.append(self.inside(frozenset(), before, lambda arm=arm: self.expression(arm)))
        self.enter(parent=before)
        return self.meet(terms)

    def inside(self, tests, before, walk):
        """walk() in the arm of a branch; what is known there is forgotten after it."""
        products, loaded = self.products, self.loaded
        self.products, self.loaded = dict(products), dict(loaded)
        self.enter(tests, before)
        found = walk()
        self.products, self.loaded = products, loaded
        return found

    # Calls

    def on_Call(self, node):
        value, function = self.values[node], self.values.get(node.func)
        called = function.constant.value if function is not None and function.constant is not None else None
        if node in self.found.called:
            return self.device(node, called)
        if is_float(value.type) and len(node.args) == 1 and is_conversion(called) and self.kind_of(node.args[0]) == value.type:
            return self.converted(node)
        if isinstance(called, type) and issubclass(called, tuple) and hasattr(called, "_fields"):
            return self.named_tuple(node, called)
        self.expression(node.func)
        given = [one.value if isinstance(one, ast.Starred) else one for one in (*node.args, *(word.value for word in node.keywords))]
        terms = [self.used(one) for one in given]
        if called is numba.cuda.local.array or called is numba.cuda.shared.array:
            return Term(self.unique("local" if called is numba.cuda.local.array else "shared"))
        if not is_pure(called):
            self.changed()
            return self.opaque()
        loops = max((term.loops for term in terms), key=len, default=())
        rank = max((term.rank for term in terms), default=0) + 8
        return Term(("call", id(called), *(term.key for term in terms)), rank, loops, loaded=newest(*terms))

    def kind_of(self, node):
        """The `kind` of an expression; None if the types were not inferred."""
        value = self.values.get(node)
        return None if value is None else self.kind(node)

    def converted(self, node):
        """A conversion to the type that a value has already."""
        term = self.expression(node.args[0])
        if term.product is not None:
            self.source(term.product, node)
        return term

    def named_tuple(self, node, called):
        """The Term of a call of a NamedTuple class."""
        given = {name: self.expression(one) for name, one in zip(called._fields, node.args) if not isinstance(one, ast.Starred)}
        given |= {word.arg: self.expression(word.value) for word in node.keywords}
        if set(given) != set(called._fields):
            for term in given.values():
                self.use(term)
            return self.opaque()
        return tuple_of([given[name] for name in called._fields])

    def device(self, node, called):
        """The Term of the call of a device function."""
        expressions = list(node.args)
        if node in self.found.methods:
            expressions.insert(0, node.func.value)
        else:
            self.expression(node.func)
        inner = self.found.called[node]
        flow = self.flow_of(inner) if inner is not None and node in self.found.inlined else None
        if flow is None or node.keywords or any(isinstance(one, ast.Starred) for one in expressions):
            for one in (*expressions, *(word.value for word in node.keywords)):
                self.used(one.value if isinstance(one, ast.Starred) else one)
            self.changed()
            return self.opaque()
        terms = [self.expression(one) for one in expressions]
        for position, (term, expression) in enumerate(zip(terms, expressions)):
            for path, part in parts(term, (position,)):
                self.passed(node, flow, path, part, expression)
        if flow.writes:
            self.changed()
        if flow.branches:
            self.enter()
        self.clock += flow.clock % BLOCK_RANK
        return self.opaque() if flow.result is None else self.result_of(node, flow, flow.result)

    def passed(self, node, flow, path, term, expression):
        """Use a value as an argument of a device function."""
        product = flow.given.get(path)
        if product is not None and not (product.sums or product.closed or product.returned):
            return
        sums_alone = product is not None and not product.closed and all(block is flow.first for block in product.sums)
        if sums_alone and term.product is not None and term.product.kind == product.kind and len(path) == 1:
            term.product.sums.extend([self.block] * len(product.sums))
            self.sums.append(Passed(node, path, (term,), (expression,)))
        else:
            self.use(term)

    def result_of(self, node, flow, term, path=()):
        """The Term of a device function's result for the caller."""
        if term.items is not None:
            return Term(self.unique("result"), items=tuple(self.result_of(node, flow, one, (*path, n)) for n, one in enumerate(term.items)))
        product = term.product
        if product is None or product in flow.given.values() or not product.is_open():
            return self.opaque()
        made = Product(product.kind, self.block, frozenset(), product.anywhere)
        self.source(made, node, path)
        return Term(self.unique("product"), self.clock, self.loops, made, term.negated)


def is_pure(called):
    """Whether a function neither reads nor writes memory."""
    if any(called is one for one in PURE) or getattr(called, "pure", False) or is_conversion(called):
        return True
    name = getattr(called, "__name__", "")
    return getattr(math, name, None) is called or getattr(numba.cuda.libdevice, name, None) is called


def is_conversion(called):
    """Whether a call converts a number to a type."""
    return isinstance(called, types.Type) or called is float or (isinstance(called, type) and issubclass(called, np.generic))


def is_cheap(node):
    """Whether an expression is evaluated in any case, rather than behind a branch."""
    inner = nodes_in(node)
    return sum(isinstance(one, (ast.BinOp, ast.UnaryOp)) for one in inner) <= CHEAP and not any(
        isinstance(one, (ast.Call, ast.Subscript, ast.Div, ast.IfExp)) for one in inner
    )
