"""Which variables a divergent region may overwrite in all lanes.

A region is a function, an arm of a branch or a loop. A variable is at home in the innermost region around an assignment outside of which,
and at whose beginning, nobody needs its value. While the mask is that of its home, an assignment replaces the whole vector; otherwise the
other lanes keep their values.
"""

import ast

from minllm.sim.typing.nodes import names_in


class Region:
    """A function, an arm of a branch, or a loop with its condition. exposed: names that it may read before it assigns them."""

    def __init__(self, number, around=None):
        self.number, self.around = number, around
        self.exposed = set()

    def chain(self):
        """This region and those around it, from the inside out."""
        region = self
        while region is not None:
            yield region
            region = region.around


class Regions:
    """The regions of a function. of: {(statement, arm): Region}; inside: {Region: {name: number of expressions in it that read it}}."""

    def __init__(self, tree, known_test, iterates):
        self.known_test, self.iterates = known_test, iterates
        self.of, self.inside = {}, {}
        self.root = self.new(None)
        parameters = {one.arg for one in (*tree.args.posonlyargs, *tree.args.args)} | (
            {tree.args.vararg.arg} if tree.args.vararg else set()
        )
        self.block(tree.body, parameters, self.root)

    def new(self, around):
        """A new region inside `around`."""
        region = Region(len(self.inside), around)
        self.inside[region] = {}
        return region

    def home_of(self, name, region):
        """The home of a variable that is assigned in a region."""
        for one in region.chain():
            total = self.inside[self.root].get(name, 0)
            if one is self.root or (name not in one.exposed and self.inside[one].get(name, 0) == total):
                return one

    def use(self, name, assigned, region):
        """Note that an expression in a region reads a name. assigned: names that this path has certainly assigned, by region."""
        for one in region.chain():
            self.inside[one][name] = self.inside[one].get(name, 0) + 1
        for one, names in zip(region.chain(), reversed(assigned)):
            if name in names:
                break
            one.exposed.add(name)

    def expression(self, node, assigned, region):
        """Note the names that an expression reads."""
        for inner in names_in(node):
            if isinstance(inner.ctx, ast.Load):
                self.use(inner.id, assigned, region)

    def target(self, node, assigned, region):
        """Note the names that a target of an assignment assigns and reads."""
        for inner in names_in(node):
            if isinstance(inner.ctx, ast.Store):
                assigned[-1].add(inner.id)
            else:
                self.use(inner.id, assigned, region)

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
                    self.use(statement.target.id, assigned, region)
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
