"""The lane form of a function: Python source over vectors, generated from its syntax tree and the types that inference has found."""

import ast
import functools
import linecache

from minllm.sim.lanes.expressions import Expressions
from minllm.sim.lanes.faults import NotInLanes
from minllm.sim.lanes.regions import Regions
from minllm.sim.typing.arithmetic import BINARY
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.values import is_integer

INDENT = "    "


def lane_form(inference, detect=None, traced=False):
    """The lane form of an Inference, a function of (lanes, *arguments). Raises NotInLanes if there is none.

    detect: None, or with detectors (whether the result may become an index, the element types that carry indices); see carried.py.
    traced: whether it counts operations and names the sites of accesses.
    """
    forms = inference.__dict__.setdefault("lane_forms", {})
    made = forms.get((detect, traced))
    if made is None:
        try:
            made = Function(inference, detect, traced).compiled()
        except NotInLanes as reason:
            made = reason
        forms[detect, traced] = made
    if isinstance(made, NotInLanes):
        raise made
    return made


class Function(Expressions):
    """Writes the lane form of one function, statement by statement."""

    lane_form = staticmethod(lane_form)

    def __init__(self, inference, detect, traced):
        super().__init__(inference, detect, traced)
        tree = inference.tree
        self.regions = Regions(tree, self.known_test, self.iterates)
        self.region, self.depth, self.lines, self.loops = self.regions.root, 1, [], []
        self.parameters = [one.arg for one in (*tree.args.posonlyargs, *tree.args.args)]
        if tree.args.kwonlyargs or tree.args.kwarg:
            self.refuse(tree, "keyword-only parameters")
        self.assigned, self.has_choices = facts(tree)

    def compiled(self):
        """The generated function."""
        tree, code = self.found.tree, self.found.function.__code__
        for name in self.regions.root.exposed & self.local_names:
            raise NotInLanes(f"the variable {name} of {code.co_name} may be read before it is assigned")
        defaults = self.found.function.__defaults__ or ()
        first = len(self.parameters) - len(defaults)
        written = []
        for number, name in enumerate(self.parameters):
            default = f"={self.outside(defaults[number - first], tree)}" if number >= first else ""
            written.append(f"v_{name}{default}")
        if tree.args.vararg is not None:
            written.append(f"*v_{tree.args.vararg.arg}")
        others = self.local_names - set(self.parameters) - ({tree.args.vararg.arg} if tree.args.vararg else set())
        self.line(" = ".join([*(f"v_{name}" for name in sorted(others)), "result", "None"]))
        self.line(f"r{self.region.number} = L.mask")
        self.block(tree.body)
        self.line("return result")
        source = "\n".join([f"def lanes_of_{code.co_name}(L{''.join(', ' + one for one in written)}):", *self.lines, ""])
        exec(code_of(source, code.co_name), self.names)
        made = self.names[f"lanes_of_{code.co_name}"]
        made.by_threads = self.by_threads
        return made

    def line(self, text):
        """Add a line at the current depth."""
        self.lines.append(INDENT * self.depth + text)

    # Facts about statements

    def known_test(self, node):
        """Whether a branch is always (True) or never (False) taken; None if that depends on the launch."""
        known = self.constant(node.test)
        return None if known is None else bool(known)

    def ends(self, statement):
        """Whether no lane reaches what follows a statement in its block."""
        if isinstance(statement, ast.If):
            known = self.known_test(statement)
            arms = [statement.body, statement.orelse] if known is None else [statement.body if known else statement.orelse]
            return all(any(map(self.ends, arm)) for arm in arms)
        return isinstance(statement, (ast.Return, ast.Break, ast.Continue, ast.Raise))

    def iterates(self, node):
        """Whether a for loop certainly has an iteration."""
        call = node.iter
        value = self.found.values.get(call)
        if value is not None and value.items:
            return True
        if not isinstance(call, ast.Call) or len(call.args) > 2:
            return False
        known = [self.found.values[one].constant for one in call.args if one in self.found.values]
        if len(known) != len(call.args) or None in known:
            return False
        return len(range(*(one.value for one in known))) > 0

    # Statements

    def block(self, statements):
        """Write statements; those behind one that some lanes may leave are written inside a test for lanes that are left."""
        depth = self.depth
        for number, statement in enumerate(statements):
            visit = getattr(self, "do_" + type(statement).__name__, None)
            if visit is None:
                self.refuse(statement, f"a statement {type(statement).__name__.lower()}")
            self.by_arrays(statement, visit)
            if self.ends(statement):
                break
            if leaves(statement) and number + 1 < len(statements):
                self.line("if L.mask is not False:")
                self.depth += 1
                self.line(f"r{self.region.number} = L.mask")
        self.depth = depth

    def by_arrays(self, statement, visit):
        """Write a statement; one that takes an array or another by a condition, once for each of the two."""
        simple = self.has_choices and isinstance(statement, (ast.Expr, ast.Assign, ast.AugAssign, ast.Return))
        inner = nodes_in(statement) if simple else ()
        choice = next((node for node in inner if isinstance(node, ast.IfExp) and self.is_choice(node)), None)
        if choice is None:
            visit(statement)
            return
        before, yes, no = self.new_name(), self.new_name(), self.new_name()
        self.line(f"{before} = L.mask")
        self.line(f"{yes}, {no} = L.split({self.test(choice.test)})")
        for mask, arm in ((yes, choice.body), (no, choice.orelse)):
            self.line(f"if {mask} is not False:")
            self.depth += 1
            self.line(f"L.mask = {mask}")
            self.chosen[choice] = arm
            self.by_arrays(statement, visit)
            del self.chosen[choice]
            self.depth -= 1
        self.line(f"L.mask = {before}" if not isinstance(statement, ast.Return) else "L.mask = False")

    def is_choice(self, node):
        """Whether an expression with `if` is one of two arrays."""
        if node in self.chosen or self.constant(node.test) is not None:
            return False
        value = self.found.values.get(node)
        return value is not None and self.is_array(value)

    def do_Pass(self, node):
        self.line("pass")

    def do_Expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self.line(self.expression(node.value))

    def do_Assert(self, node):
        self.line(f"if L.split({self.expression(node.test)})[1] is not False: L.doubt('an assertion fails')")

    def do_Assign(self, node):
        value = self.expression(node.value)
        if len(node.targets) > 1 or not isinstance(node.targets[0], (ast.Name, ast.Subscript)):
            self.line(f"{(made := self.new_name())} = {value}")
            value = made
        for target in node.targets:
            self.assign(target, value, self.kind(node.value))

    def do_AnnAssign(self, node):
        if node.value is not None:
            self.assign(node.target, self.expression(node.value), self.kind(node.value))

    def do_AugAssign(self, node):
        target, operation = node.target, BINARY.get(type(node.op))
        right, kinds = self.expression(node.value), (self.kind(node.target), self.kind(node.value))
        if isinstance(target, ast.Name):
            left = self.cast_steps(target, f"v_{target.id}")
            if target in self.contraction.rounded:
                left = self.rounded(left, kinds[0].type)
            self.assign(target, self.binary(node, operation, left, right, kinds, self.augmented(node)), None)
            return
        if not isinstance(target, ast.Subscript):
            self.refuse(node, "an augmented assignment to an attribute")
        array, index = self.new_name(), self.new_name()
        self.line(f"{array} = {self.expression(target.value)}")
        self.line(f"{index} = {self.index(target)}")
        result = self.augmented(node)
        made = self.binary(node, operation, self.at(target, "L.load", array, f"*{index}"), right, kinds, result)
        self.line(self.at(target, "L.store", array, self.natural(made, result), f"*{index}"))

    def assign(self, target, value, kind):
        """Write the assignment of an expression to a target."""
        if isinstance(target, ast.Name):
            home = self.regions.home_of(target.id, self.region)
            name = f"v_{target.id}"
            if home is self.region and not self.chosen:  # no lane that misses this assignment needs the variable
                self.line(f"{name} = {value}")
                return
            if not is_plain(value):
                self.line(f"t = {value}")
                value = "t"
            self.line(f"{name} = {value} if L.mask is r{home.number} else L.put({name}, {value})")
        elif isinstance(target, (ast.Tuple, ast.List)):
            if kind is not None and self.is_array(kind):
                self.refuse(target, "elements of an array as a tuple")
            for number, element in enumerate(target.elts):
                self.assign(element, f"{value}[{number}]", kind.items[number] if kind is not None and kind.items else None)
        elif isinstance(target, ast.Subscript):
            self.store(target, self.natural(value, kind))
        else:
            self.refuse(target, "an assignment to an attribute")

    def store(self, target, value):
        """Write a store to an element of an array."""
        array = self.found.values.get(target.value)
        if array is None or not self.is_array(array):
            self.refuse(target, "a store to something that is not an array")
        if not self.selects_element(target):
            self.refuse(target, "a store to a slice")
        self.line(self.at(target, "L.store", self.expression(target.value), value, f"*{self.index(target)}"))

    def do_If(self, node):
        known = self.known_test(node)
        if known is not None:
            self.known_branch(node, "body" if known else "orelse")
            return
        for arm in ("body", "orelse"):
            if any(not is_integer(wanted) for _, wanted in self.found.edges.get((node, arm), ())):
                self.refuse(node, "a variable that has another type in one arm of a branch")
        yes, no, before = self.new_name(), self.new_name(), self.new_name()
        gone = leaves(node)
        self.line(f"{before} = L.mask")
        self.line(f"{yes}, {no} = L.split({self.test(node.test)})")
        for arm, mask in (("body", yes), ("orelse", no)):
            statements, edges = getattr(node, arm), self.found.edges.get((node, arm), ())
            if not statements and not edges:
                continue
            region, self.region = self.region, self.regions.of[node, arm]
            self.line(f"if {mask} is not False:")
            self.depth += 1
            self.line(f"L.mask = r{self.region.number} = {mask}")
            self.block(statements)
            if edges:
                self.line("if L.mask is not False:")
                self.depth += 1
                self.edge((node, arm))
                self.depth -= 1
            if gone:
                self.line(f"{mask} = L.mask")
            self.depth -= 1
            self.region = region
        self.line(f"L.mask = {before} if {yes} is {before} or {no} is {before} else joined({yes}, {no})" if gone else f"L.mask = {before}")

    def known_branch(self, node, arm):
        """Write the only arm of a branch that lanes take; the other one may have decided types of variables."""
        parts = node.test
        while isinstance(parts, ast.UnaryOp):
            parts = parts.operand
        if node.test in self.found.taken and isinstance(parts, ast.BoolOp):
            self.line(self.logical(parts))  # what it does besides: loads, calls
        self.block(getattr(node, arm))
        if self.found.edges.get((node, arm)):
            self.line("if L.mask is not False:")
            self.depth += 1
            self.edge((node, arm))
            self.depth -= 1

    def edge(self, edge):
        """Write the casts of variables at the end of a path."""
        for name, wanted in self.found.edges.get(edge, ()):
            if not is_integer(wanted):
                raise NotInLanes(f"the variable {name} has another type on one path of {self.found.function.__name__}")
            self.assign(ast.Name(name, ast.Store()), self.integer_cast(wanted, wanted, f"v_{name}", name in self.carried.names), None)

    def do_For(self, node):
        if node.orelse:
            self.refuse(node, "for with else")
        self.check_end(node)
        self.edge((node, "before"))
        call, value = node.iter, self.found.values.get(node.iter)
        if isinstance(call, ast.Call) and self.constant(call.func) is range:
            items = f".range({', '.join(self.expression(one) for one in call.args)})"
        elif value is not None and value.items is not None:
            items = f".over({self.expression(call)})"
        else:
            self.refuse(node, "for over something else than range or a tuple")
        loop, number = self.new_name(), self.new_name()
        self.line(f"{loop} = L.begin()")
        self.line(f"for {number} in {loop}{items}:")
        self.body(node, lambda: self.assign(node.target, number, None))
        self.line(f"L.finish({loop})")

    def do_While(self, node):
        if node.orelse:
            self.refuse(node, "while with else")
        if self.found.taken.get(node.test) is False:
            self.line("pass")
            return
        self.check_end(node)
        self.edge((node, "before"))
        loop = self.new_name()
        self.line(f"{loop} = L.begin()")
        self.line(f"while {loop}.enter():")

        def begin():
            if not self.constant(node.test):
                self.line(f"if {loop}.ends({self.test(node.test)}): break")
                self.line(f"r{self.region.number} = L.mask")

        self.body(node, begin)
        self.line(f"L.finish({loop})")

    def check_end(self, node):
        """Refuse a loop after which a variable has another type than at its last test."""
        if self.found.edges.get((node, "orelse")):
            self.refuse(node, "a variable that has another type after a break")

    def body(self, node, begin):
        """Write a loop's body."""
        region, self.region = self.region, self.regions.of[node, "body"]
        self.depth += 1
        self.line(f"r{self.region.number} = L.mask")
        begin()
        self.loops.append(node)
        self.block(node.body)
        if self.found.edges.get((node, "body")):
            self.line("if L.mask is not False:")
            self.depth += 1
            self.edge((node, "body"))
            self.depth -= 1
        self.loops.pop()
        self.depth -= 1
        self.region = region

    def do_Break(self, node):
        self.edge((node, "before"))
        self.line("L.loop.leave()")

    def do_Continue(self, node):
        self.edge((node, "before"))
        self.line("L.loop.skip()")

    def do_Return(self, node):
        if node.value is not None:
            self.line(f"t = {self.expression(node.value)}")
            self.line("result = L.put(result, t)")
        self.line("L.returns()")


@functools.lru_cache(4096)
def facts(tree):
    """({expression: variable to which its value is assigned}, whether the function has expressions with `if`)."""
    nodes = nodes_in(tree)
    variables = dict(map(assigned, (node for node in nodes if isinstance(node, (ast.Assign, ast.AnnAssign)))))
    return variables, any(isinstance(node, ast.IfExp) for node in nodes)


def assigned(statement):
    """(expression, variable to which its value is assigned) by an assignment, as place.assigned_name finds it: of a pair, the last one."""
    value, targets = statement.value, statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    target = targets[0] if len(targets) == 1 else None
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and 2 <= len(value.elts) == len(target.elts) <= 3:
        value, target = value.elts[-1], target.elts[-1]
    return value, target.id if isinstance(target, ast.Name) else ""


@functools.cache
def code_of(source, name):
    """The code of a lane form. Kernels that a factory makes for other constants often have the same source."""
    filename = f"<lanes of {name} {len(linecache.cache)}>"
    linecache.cache[filename] = len(source), None, source.splitlines(keepends=True), filename
    return compile(source, filename, "exec")


def is_plain(text):
    """Whether an expression may be written twice: a name or a number."""
    return text.isidentifier() or text.isdigit()


@functools.lru_cache(4096)
def leaves(statement):
    """Whether lanes may leave the block of a statement inside it."""
    for inner in ast.iter_child_nodes(statement):
        if isinstance(inner, ast.Return):
            return True
        if isinstance(inner, (ast.Break, ast.Continue)) and not isinstance(statement, (ast.For, ast.While)):
            return True
        if isinstance(inner, ast.stmt) and leaves(inner) and not (isinstance(statement, (ast.For, ast.While)) and only_loop(inner)):
            return True
    return False


def only_loop(statement):
    """Whether all lanes that leave a statement's block stay in the loop around it or behind it."""
    return not any(isinstance(inner, ast.Return) for inner in nodes_in(statement))
