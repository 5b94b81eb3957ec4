"""A walk over a function that finds its products, what uses them, and its sums, in the order of the program."""

import ast
import functools

from minllm.machine.numba_cuda import types
from minllm.sim.typing.flow_expressions import BLOCK_RANK, FlowExpressions, is_cheap, is_pure
from minllm.sim.typing.nodes import names_in, nodes_in
from minllm.sim.typing.products import CLOSED, Block, Product, Term, parts
from minllm.sim.typing.values import is_float

UNROLLED = 64  # iterations of a loop with a constant count that the compiler writes one after the other
SCOPES = (ast.FunctionDef, ast.Lambda, ast.ListComp, ast.GeneratorExp)


@functools.lru_cache(4096)
def names_assigned(node):
    """The variables that a statement assigns."""
    return {one.id for one in names_in(node) if isinstance(one.ctx, ast.Store)}


@functools.lru_cache(4096)
def names_captured(tree):
    """The names that functions and comprehensions inside a function use, and how many statements return a value."""
    scopes = [one for one in nodes_in(tree) if isinstance(one, SCOPES) and one is not tree]
    returns = sum(isinstance(one, ast.Return) and one.value is not None for one in nodes_in(tree))
    return {one.id for scope in scopes for one in names_in(scope)}, returns


@functools.lru_cache(4096)
def stores_and_calls(loop):
    """(the arrays that a loop's stores name, the functions that it calls), as nodes."""
    inner = nodes_in(loop)
    stores = [one.value for one in inner if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store)]
    return stores, [one.func for one in inner if isinstance(one, ast.Call)]


@functools.lru_cache(4096)
def has_branches(tree):
    """Whether a function has branches or loops."""
    return any(isinstance(one, (ast.If, ast.IfExp, ast.For, ast.While)) for one in nodes_in(tree))


class Effects:
    """What stands for the Flow of a function without products and sums of floats. given, result, writes, branches: see Flow."""

    given, result, clock = {}, None, 0

    def __init__(self, found):
        stores, calls = stores_and_calls(found.tree)
        known = [value.constant for value in map(found.values.get, calls) if value is not None]
        inner = [flow_of(one) for one in found.called.values() if one is not None]
        others = [one for one in known if one is None or not (is_pure(one.value) or hasattr(one.value, "py_func"))]
        self.writes = bool(stores or others) or any(one is None or one.writes for one in inner)
        self.branches = has_branches(found.tree) or any(one is None or one.branches for one in inner)


def computes(found):
    """Whether a function, or one that it calls, has an operator that gives a float."""
    if "computes" not in found.__dict__:
        found.computes = found.has_floats
        found.computes |= any(computes(inner) for inner in found.called.values() if inner is not None)
    return found.computes


def flow_of(found):
    """The Flow of an Inference, or its Effects, made once; None in a recursion."""
    if "flow" not in found.__dict__:
        found.flow = None
        found.flow = Flow(found).walk() if computes(found) else Effects(found)
    return found.flow


class Flow(FlowExpressions):
    """One walk over a function.

    sums: Sums and Passed products in the order of the program. given: {path: Product} of parameters. result: the Term of its only return
    statement, or None. writes, branches: whether it changes memory, and whether its end is another block than its beginning.
    """

    def __init__(self, found):
        self.found, self.values = found, found.values
        self.variables, self.sums, self.given, self.sources = {}, [], {}, {}
        self.first = self.block = Block(None, (), frozenset(), 0)
        self.loops, self.entered, self.steady, self.exits = (), [], [True], []
        self.products, self.loaded, self.seen = {}, {}, None
        self.clock = self.epoch = self.local_epoch = 0
        self.result, self.returns, self.writes, self.branches = None, 0, False, False

    def walk(self):
        """Walk over the function; returns the Flow."""
        tree, is_kernel = self.found.tree, not self.found.device
        for position, (name, value) in enumerate(self.found.arguments.items()):
            self.variables[name] = self.parameter((position,), value, is_kernel)
        self.captured, self.returns = names_captured(tree)
        self.clock = BLOCK_RANK
        self.statements(tree.body)
        return self

    def parameter(self, path, value, is_kernel):
        """The Term of a parameter."""
        if value.items is not None:
            return Term(("parameter", path), items=tuple(self.parameter((*path, n), item, is_kernel) for n, item in enumerate(value.items)))
        if value.constant is not None:
            return Term(("constant", value.constant), is_free=True)
        product = None
        if is_float(value.type) and not is_kernel:
            product = self.given[path] = Product(value.type, self.first, frozenset())
        return Term(("parameter", path), 3 + path[0], product=product, is_free=is_kernel and not isinstance(value.type, types.Array))

    # Statements

    flow_of = staticmethod(flow_of)

    def returned_products(self):
        """(place in the result, Product) of the products that the function returns."""
        return [(path, part.product) for path, part in parts(self.result or CLOSED) if part.product is not None]

    def statements(self, body):
        """Walk over statements, up to the first after which none is reached."""
        for statement in body:
            if self.variables is None:
                return
            getattr(self, "do_" + type(statement).__name__, self.any_statement)(statement)

    def any_statement(self, node):
        """A statement of any other kind: all that it names is used, and is something else after it."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.used(child)
            elif not isinstance(child, (ast.operator, ast.expr_context)):
                self.names_used(child)
        for name in names_assigned(node):
            self.variables[name] = self.opaque()

    def do_FunctionDef(self, node):
        self.variables[node.name] = self.opaque()
        self.changed()

    def do_Return(self, node):
        if node.value is not None:
            term = self.expression(node.value)
            if self.returns == 1 and not self.branches and not any(part.product in self.given.values() for _, part in parts(term)):
                self.result = term
                for _, product in self.returned_products():
                    product.returned = True
                for _, part in parts(term):
                    if part.meets:  # a product on one path, and something else on another
                        self.use(part)
            else:
                self.use(term)
        self.variables = None

    def do_Raise(self, node):
        self.variables = None

    def do_Assign(self, node):
        term = self.expression(node.value)
        for target in node.targets:
            self.assign(target, term)

    def do_AnnAssign(self, node):
        if node.value is not None:
            self.assign(node.target, self.expression(node.value))

    def assign(self, target, term):
        """Give the Term of a value to a target: a name, a tuple of targets, an element."""
        if isinstance(target, ast.Name):
            self.variables[target.id] = self.use(term) if target.id in self.captured else term
        elif isinstance(target, (ast.Tuple, ast.List)):
            known = term.items is not None and len(term.items) == len(target.elts)
            if not known:
                self.use(term)
            for number, one in enumerate(target.elts):
                self.assign(one, term.items[number] if known else self.opaque())
        elif isinstance(target, ast.Subscript):
            self.use(term)
            self.store(target)
        else:
            self.use(term)
            for name in names_assigned(target):
                self.variables[name] = self.opaque()

    def store(self, target):
        """Count a store to an element: loads after it may find another value."""
        self.used(target.value), self.used(target.slice)
        if self.is_local(target.value):
            self.local_epoch += 1
        else:
            self.changed()

    def do_AugAssign(self, node):
        kind = self.found.augmented.get(node)
        if kind is None:
            self.used(node.value)
            self.assign(node.target, self.opaque())
            return
        term = self.operation(node, (node.target, node.value), kind)
        self.assign(node.target, term)

    def do_If(self, node):
        known = self.known(node.test)
        if known is not None:
            self.statements(node.body if known else node.orelse)
            return
        self.seen, outer = set(), self.seen
        self.used(node.test)
        tests, self.seen = frozenset(self.seen), outer
        start, before, ends = self.variables, self.block, []
        cheap = is_speculated(node.body) and is_speculated(node.orelse)
        for arm in (node.body, node.orelse):
            self.variables = dict(start)
            if cheap:
                self.statements(arm)
            else:
                self.inside(tests, before, lambda arm=arm: self.statements(arm))
            ends.append(self.variables)
        reached = [one for one in ends if one is not None]
        if not cheap:
            self.enter(tests if len(reached) == 1 else frozenset(), before)
        self.variables = self.joined(reached)

    def known(self, test):
        """Whether a condition is always (True) or never (False) taken; None if that depends on the launch."""
        if test in self.found.taken:
            return self.found.taken[test]
        value = self.values.get(test)
        return None if value is None or value.constant is None else bool(value.constant.value)

    def joined(self, paths):
        """The variables where paths meet."""
        if not paths:
            return None
        made = dict(paths[0])
        for name in {name for path in paths for name in path}:
            terms = [path[name] for path in paths if name in path]
            made[name] = self.meet(terms)
        return made

    def do_While(self, node):
        if self.found.taken.get(node.test) is False:
            self.statements(node.orelse)
            return
        self.loop(node, lambda: self.used(node.test))

    def do_For(self, node):
        count = constant_count(node, self.values)
        items = self.values.get(node.iter)
        self.used(node.iter)
        unrolled = (count is not None and count <= UNROLLED) or (items is not None and items.items is not None)
        self.loop(node, lambda: self.assign(node.target, Term(self.unique("counter"), self.clock, self.loops)), unrolled)

    def loop(self, node, begin, unrolled=False):
        """Walk over a loop. unrolled: whether the compiler writes its iterations one after the other."""
        before, outer, around = self.block, dict(self.variables), self.loops
        inner = around if unrolled else (*around, node)
        header = {name: self.looped(outer[name], inner) for name in names_assigned(node) if name in outer}
        self.variables = outer | header
        self.exits.append(([], []))
        if unrolled:
            begin(), self.statements(node.body)
        else:
            self.entered.append(before)
            self.steady.append(self.is_steady(node))
            self.loops = inner
            self.inside(frozenset(), before, lambda: (begin(), self.statements(node.body)))
            self.loops = around
            self.steady.pop(), self.entered.pop()
            self.enter(parent=before)
        breaks, continues = self.exits.pop()
        ends = [one for one in (self.variables, *continues) if one is not None]
        for end in ends:
            for name, term in header.items():
                self.fed(term, end[name])
        new = {name: term for end in ends for name, term in end.items() if name not in outer}
        left = self.joined([outer | header | new, *breaks])
        self.variables = {name: term if term is outer.get(name) else self.looped(term, around) for name, term in left.items()}
        self.statements(node.orelse)

    def looped(self, term, loops):
        """The Term of a variable that a loop changes."""
        if term.items is not None:
            return Term(self.unique("loop"), items=tuple(self.looped(item, loops) for item in term.items))
        return Term(self.unique("loop"), self.clock, loops, meets=[term])

    def fed(self, term, later):
        """A variable has another value at the end of an iteration."""
        if term is later:
            return
        if term.items is not None and later.items is not None and len(term.items) == len(later.items):
            for pair in zip(term.items, later.items):
                self.fed(*pair)
        elif term.meets is None or CLOSED in term.meets:
            self.use(later)
        else:
            term.meets.append(later)

    def is_steady(self, node):
        """Whether no iteration of a loop changes memory, so that loads may be moved before it."""
        stores, calls = stores_and_calls(node)
        known = [value.constant for value in map(self.values.get, calls) if value is not None]
        return all(map(self.is_local, stores)) and all(one is not None and is_pure(one.value) for one in known)

    def is_local(self, node):
        """Whether an expression is the name of an array of one thread, which lies in registers."""
        term = self.variables.get(node.id) if isinstance(node, ast.Name) else None
        return term is not None and term.key[0] == "local"

    def do_Break(self, node):
        self.exits[-1][0].append(self.variables)
        self.variables = None

    def do_Continue(self, node):
        self.exits[-1][1].append(self.variables)
        self.variables = None


def is_speculated(statements):
    """Whether the statements of an arm are assignments that are evaluated in any case."""
    return len(statements) <= 1 and all(
        isinstance(one, (ast.Assign, ast.AugAssign)) and is_cheap(one.value) and isinstance(getattr(one, "target", one.value), ast.expr)
        and all(isinstance(target, ast.Name) for target in getattr(one, "targets", None) or [one.target])
        or isinstance(one, ast.Pass)
        for one in statements
    )  # fmt: skip


def constant_count(node, values):
    """The number of iterations of a loop over a range, if it is known; else None."""
    call = node.iter
    if not (isinstance(call, ast.Call) and call.args):
        return None
    function = values.get(call.func)
    if function is None or function.constant is None or function.constant.value is not range:
        return None
    known = [values[one].constant for one in call.args if one in values]
    if None in known or len(known) != len(call.args) or (len(known) == 3 and known[2].value == 0):
        return None
    return len(range(*(one.value for one in known)))
