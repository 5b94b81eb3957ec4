"""Which variables a divergent region may overwrite in all lanes.

A region is a function, an arm of a branch or a loop. A variable is at home in the innermost region around an assignment outside of which,
and at whose beginning, nobody needs its value. While the mask is that of its home, an assignment replaces the whole vector; otherwise the
other lanes keep their values.
"""

import ast
import functools
from collections import Counter

from minllm.sim.typing.flow import names_assigned
from minllm.sim.typing.nodes import names_in


class Region:
    """A function, an arm of a branch, or a loop with its condition.

    chain: it and the regions around it, from the inside out. reads: {name: number of times that it is read inside}. exposed: names that
    the region may read before it assigns them.
    """

    def __init__(self, number, around=None):
        self.number, self.chain = number, (self, *(around.chain if around else ()))
        self.reads, self.exposed = Counter(), set()


@functools.lru_cache(4096)
def names_read(node):
    """The names that an expression reads, one for each time."""
    return [one.id for one in names_in(node) if isinstance(one.ctx, ast.Load)]


class Regions:
    """The regions of a function. of: {(statement, arm): Region}."""

    def __init__(self, tree, known_test, iterates):
        self.known_test, self.iterates = known_test, iterates
        self.of, self.count = {}, 0
        self.root = self.new(None)
        parameters = {one.arg for one in (*tree.args.posonlyargs, *tree.args.args)} | (
            {tree.args.vararg.arg} if tree.args.vararg else set()
        )
        self.block(tree.body, parameters, self.root)

    def new(self, around):
        """A new region inside `around`."""
        self.count += 1
        return Region(self.count - 1, around)

    def home_of(self, name, region):
        """The home of a variable that is assigned in a region."""
        total = self.root.reads[name]
        return next(one for one in region.chain if one is self.root or (name not in one.exposed and one.reads[name] == total))

    def use(self, names, assigned, region):
        """Note that an expression in a region reads names. assigned: names that this path has certainly assigned, by region."""
        for one in region.chain:
            one.reads.update(names)
        for name in names:
            for one, known in zip(region.chain, reversed(assigned)):
                if name in known:
                    break
                one.exposed.add(name)

    def expression(self, node, assigned, region):
        """Note the names that an expression reads."""
        self.use(names_read(node), assigned, region)

    def target(self, node, assigned, region):
        """Note the names that a target of an assignment assigns and reads."""
        self.use(names_read(node), assigned, region)
        assigned[-1] |= names_assigned(node)

    def block(self, statements, names, region, outer=()):
        """Walk over statements; returns the names that are certainly assigned behind them, None if nothing follows."""
        assigned = [*outer, names]
        for statement in statements:
            if isinstance(statement, ast.If):
                if not self.branch(statement, assigned, region):
                    return None
            elif isinstance(statement, (ast.For, ast.While)):
                self.loop(statement, assigned, region)
            elif isinstance(statement, ast.AugAssign):
                if isinstance(statement.target, ast.Name):
                    self.use([statement.target.id], assigned, region)
                self.expression(statement.value, assigned, region)
                self.target(statement.target, assigned, region)
            elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
                if statement.value is not None:
                    self.expression(statement.value, assigned, region)
                for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                    self.target(target, assigned, region)
            else:
                self.expression(statement, assigned, region)
            if isinstance(statement, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
                return None
        return assigned[-1]

    def branch(self, statement, assigned, region):
        """Walk over a branch; returns whether anything follows it."""
        known = self.known_test(statement)
        if known is not None:
            found = self.block(statement.body if known else statement.orelse, assigned[-1], region, tuple(assigned[:-1]))
            return found is not None
        self.expression(statement.test, assigned, region)
        ends = []
        for arm in ("body", "orelse"):
            inner = self.of[statement, arm] = self.new(region)
            end = self.block(getattr(statement, arm), set(), inner, tuple(assigned))
            if end is not None:
                ends.append(end)
        if ends:
            assigned[-1] |= set.intersection(*ends)
        return bool(ends)

    def loop(self, statement, assigned, region):
        """Walk over a loop."""
        inner, names = self.new(region), set()
        self.of[statement, "body"] = inner
        within = [*assigned, names]
        if isinstance(statement, ast.For):
            self.expression(statement.iter, assigned, region)
            self.target(statement.target, within, inner)
        else:
            self.expression(statement.test, within, inner)
        end = self.block(statement.body, names, inner, tuple(assigned))
        if end is not None and isinstance(statement, ast.For) and self.iterates(statement):
            assigned[-1] |= end
