"""The syntax tree of a function, and its code with the casts of an Inference."""

import ast
import functools
import linecache
import operator
import types as python_types

import numpy as np

from minllm.sim.fused import fma_of, negated
from minllm.sim.operators import power_factors
from minllm.sim.scalars import simulated_type
from minllm.sim.typing.contraction import NO_CONTRACTION
from minllm.sim.typing.nodes import nodes_in
from minllm.sim.typing.products import LEFT
from minllm.sim.unassigned import unassigned

PYTEST = "@pytest_ar"  # a name in functions whose assertions pytest has rewritten
LAMBDA = "<lambda>"  # Python's name of all lambdas


@functools.lru_cache(256)
def functions_of(source, filename):
    """{place: (syntax tree, code object)} of all functions in a file's source text; a lambda's tree is that of a function that returns."""
    try:
        tree = ast.parse(source)
        codes = codes_in(compile(tree, filename, "exec", dont_inherit=True))
    except SyntaxError:
        return {}
    found = {}
    for node in nodes_in(tree):
        if isinstance(node, ast.FunctionDef):
            place = min([node.lineno, *(one.lineno for one in node.decorator_list)]), node.name
            found[place] = node, codes.get(place)
        if isinstance(node, ast.Lambda):
            place = node.lineno, LAMBDA, node.body.col_offset
            body = [ast.copy_location(ast.Return(node.body), node.body)]
            found[place] = ast.copy_location(ast.FunctionDef(LAMBDA, node.args, body, [], None), node), codes.get(place)
    return found


def codes_in(code):
    """{place: code object} of the functions inside a code object."""
    found = {}
    for inner in code.co_consts:
        if isinstance(inner, python_types.CodeType):
            found |= {place_of(inner): inner} | codes_in(inner)
    return found


def place_of(code):
    """(first line, name) of a code object, and for a lambda the column of its expression."""
    if code.co_name != LAMBDA:
        return code.co_firstlineno, code.co_name
    columns = [column for line, _, column, end in code.co_positions() if line == code.co_firstlineno and end]
    return code.co_firstlineno, LAMBDA, min(columns, default=None)


def function_tree(function):
    """The syntax tree of a function; None if its source is unavailable or was edited after the import."""
    code, filename = function.__code__, function.__code__.co_filename
    linecache.checkcache(filename)
    tree, compiled = functions_of("".join(linecache.getlines(filename)), filename).get(place_of(code), (None, None))
    rewritten = PYTEST in code.co_names  # assertions of tests
    return tree if compiled == code or (rewritten and compiled is not None) else None


@functools.lru_cache(4096)
def with_numba_constants(code, filename):
    """The code object with np.float64 for float literals, as in Numba; Python floats would adapt to a float32 operand."""
    constants = tuple(numba_constant(constant) for constant in code.co_consts)
    return code if all(new is old for new, old in zip(constants, code.co_consts)) else code.replace(co_consts=constants)


def numba_constant(constant):
    """A literal with Numba's type: np.float64 for a float, also inside tuples and nested functions."""
    if isinstance(constant, python_types.CodeType):
        return with_numba_constants(constant, constant.co_filename)
    if type(constant) is float:
        return np.float64(constant)
    if type(constant) is tuple:
        changed = tuple(map(numba_constant, constant))
        return constant if all(new is old for new, old in zip(changed, constant)) else changed
    return constant


def edited_code(found):
    """(code object of an Inference with its casts, {name: object} that casts and calls refer to); cached in the Inference."""
    if not hasattr(found, "made"):
        editor = Editor(found)
        found.made = editor.code(), editor.injected
    return found.made


def compile_definition(definition, original):
    """The code object of a function definition, with the file, line numbers and closure of the original code."""
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    outer = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in original.co_freevars]
    holder = ast.FunctionDef(name="holder", args=empty, body=[*outer, definition], decorator_list=[], returns=None)
    module = ast.fix_missing_locations(ast.copy_location(ast.Module([holder], []), definition))
    compiled = compile(module, original.co_filename, "exec", dont_inherit=True)
    for name in ("holder", original.co_name):
        compiled = next(one for one in compiled.co_consts if isinstance(one, python_types.CodeType) and one.co_name == name)
    return compiled.replace(co_qualname=original.co_qualname)


class Editor:
    """Copies a function's syntax tree, with the casts of an Inference."""

    def __init__(self, found):
        self.found, self.injected, self.kept_values = found, {}, 0
        self.contraction = found.contraction or NO_CONTRACTION

    def code(self):
        """The new code object, with the original line numbers."""
        return compile_definition(self.copy(self.found.tree), self.found.function.__code__)

    def name(self, thing, location):
        """An expression that refers to an object, by a name that no source can contain."""
        name = next((name for name, known in self.injected.items() if known is thing), f"${len(self.injected)}")
        self.injected[name] = thing
        return ast.copy_location(ast.Name(name, ast.Load()), location)

    def call(self, thing, argument):
        """An expression for the call thing(argument)."""
        return ast.copy_location(ast.Call(self.name(thing, argument), [argument], []), argument)

    def copy(self, node):
        """A copy of a node with the casts inside it and around it."""
        if isinstance(node, ast.AugAssign):
            new = self.copy_augmented(node)
        else:
            new = self.copy_fields(node)
        if isinstance(node, ast.Call):
            new = self.copy_call(node, new)
        if node in self.found.fields:  # an attribute of the simulator's array may have this name
            new = ast.copy_location(ast.Subscript(new.value, ast.Constant(node.attr), new.ctx), node)
        if isinstance(node, ast.BinOp):
            new = self.copy_operator(node, new.left, new.right)
        elif node in self.contraction.pairs and isinstance(node, ast.expr):
            new = self.copy_factors(node, new)
        if node in self.contraction.rounded:
            new = self.call(operator.mul, ast.Starred(new, ast.Load()))
        if isinstance(node, ast.UnaryOp) and isinstance(new, ast.UnaryOp):
            new.op = self.found.calls.get(node, new.op)
            if (wrap := self.found.wraps.get(node)) is not None:
                new = self.call(wrap, new)
        if isinstance(node, ast.expr) and node in self.found.casts:
            for wanted in self.found.casts[node]:
                new = self.call(wanted, new)
        return new

    def copy_fields(self, node):
        """A copy of a node with copies of its fields."""
        fields = {}
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                fields[field] = self.copy_list(node, field, value)
            else:
                fields[field] = self.copy(value) if isinstance(value, ast.AST) else value
        return ast.copy_location(type(node)(**fields), node)

    def copy_list(self, node, field, values):
        """A copy of a list of nodes, with added assignments before a loop and at the end of a branch."""
        copied = []
        for value in values:
            copied += self.assignments((value, "before"), value) + self.placeholders(value)
            copied.append(self.copy(value) if isinstance(value, ast.AST) else value)
        return copied + self.assignments((node, field), node)

    def assignments(self, edge, location):
        """Statements name = type(name) for all variables that are cast at an edge, if they are assigned on the path that was taken."""
        made = []
        for name, wanted in self.found.edges.get(edge, ()):
            cast = self.call(wanted, ast.copy_location(ast.Name(name, ast.Load()), location))
            unassigned = ast.ExceptHandler(self.name(NameError, location), None, [ast.Pass()])
            made.append(ast.copy_location(ast.Try([ast.Assign([ast.Name(name, ast.Store())], cast)], [unassigned], [], []), location))
        return made

    def placeholders(self, statement):
        """Statements that give a value to variables which may have none and which a statement passes to a shuffle."""
        made = []
        for name, kind in self.found.placeholders.get(statement, {}).items():
            value = ast.Call(self.name(unassigned, statement), [self.name(kind, statement), ast.Constant(name)], [])
            handler = ast.ExceptHandler(self.name(NameError, statement), None, [ast.Assign([ast.Name(name, ast.Store())], value)])
            made.append(ast.copy_location(ast.Try([ast.Expr(ast.Name(name, ast.Load()))], [handler], [], []), statement))
        return made

    def copy_augmented(self, node):
        """A copy of x += y, as x = x + y if x is cast or the operator is replaced."""
        casts, fusing = self.found.casts, self.contraction
        if node.target not in casts and not any(node in one for one in (self.found.operators, fusing.fused, fusing.pairs)):
            return self.copy_fields(node)
        left, target = self.copy_fields(node.target), self.copy_fields(node.target)
        left.ctx = ast.Load()
        if isinstance(target, ast.Subscript) and not isinstance(target.slice, (ast.Name, ast.Constant)):
            left.slice, target.slice = self.kept(left.slice)
        for wanted in casts.get(node.target, ()):
            left = self.call(wanted, left)
        if node.target in fusing.rounded:
            left = self.call(operator.mul, ast.Starred(left, ast.Load()))
        value = self.copy_operator(node, left, self.copy(node.value))
        return ast.copy_location(ast.Assign([target], value), node)

    def kept(self, expression):
        """(the expression with its value kept in a variable, that variable)."""
        self.kept_values += 1
        name = f"$kept{self.kept_values}"  # one for each, because they may be nested
        keep = ast.copy_location(ast.NamedExpr(ast.Name(name, ast.Store()), expression), expression)
        return keep, ast.copy_location(ast.Name(name, ast.Load()), expression)

    def copy_fused(self, node, left, right):
        """A call of fma for a sum or a difference, one operand of which is the pair of a product's factors."""
        side = self.contraction.fused[node]
        product, addend = (left, right) if side == LEFT else (right, left)
        first = None
        if side != LEFT and not isinstance(addend, (ast.Name, ast.Constant)) and calls_in(node):
            first, addend = self.kept(addend)  # it is evaluated before the calls in the product
        if isinstance(node.op, ast.Sub) and side == LEFT:
            addend = ast.copy_location(ast.UnaryOp(ast.USub(), addend), node)
        elif isinstance(node.op, ast.Sub):
            product = self.negative(product)
        factors = product.elts if isinstance(product, ast.Tuple) else [ast.Starred(product, ast.Load())]
        kind = self.found.augmented[node] if isinstance(node, ast.AugAssign) else self.found.values[node].type
        call = ast.copy_location(ast.Call(self.name(fma_of(simulated_type(kind)), node), [*factors, addend], []), node)
        if first is None:
            return call
        return ast.copy_location(ast.Subscript(ast.Tuple([first, call], ast.Load()), ast.Constant(1), ast.Load()), node)

    def negative(self, pair):
        """An expression for the factors of the negative of a product."""
        if not isinstance(pair, ast.Tuple):
            return self.call(negated, pair)
        first, second = pair.elts
        return ast.copy_location(ast.Tuple([ast.copy_location(ast.UnaryOp(ast.USub(), first), first), second], ast.Load()), pair)

    def copy_factors(self, node, new):
        """An expression for the factors of a product, of `new`, the copy of a node that is not an operator of two operands."""
        if isinstance(node, ast.UnaryOp):
            return self.negative(new.operand) if isinstance(node.op, ast.USub) else new.operand
        return new.args[0] if isinstance(node, ast.Call) and node not in self.found.called else new

    def copy_operator(self, node, left, right):
        """An expression for the operator of a BinOp or an AugAssign between copies of its operands."""
        if node in self.contraction.fused:
            return self.copy_fused(node, left, right)
        if node in self.contraction.pairs:
            if isinstance(node.op, ast.Mult):
                return ast.copy_location(ast.Tuple([left, right], ast.Load()), node)
            return ast.copy_location(ast.Call(self.name(power_factors, node), [left, right], []), node)
        replaced = self.found.operators.get(node)
        plain = ast.copy_location(ast.BinOp(left, node.op, right), node)
        if replaced is None:
            return plain
        if not isinstance(replaced, tuple):
            return ast.copy_location(ast.Call(self.name(replaced, node), [left, right], []), node)
        keep, plain.right = self.kept(right)
        operands = [] if replaced.below is None else [left, plain.right]
        other = ast.copy_location(ast.Call(self.name(replaced.otherwise, node), operands, []), node)
        if replaced.below is not None:
            keep = ast.Compare(ast.Constant(0), [ast.LtE(), ast.Lt()], [keep, ast.Constant(replaced.below)])
        return ast.copy_location(ast.IfExp(keep, plain, other), node)

    def copy_call(self, node, new):
        """`new`, the copy of a call, with another function, a cast of its result, or the width of its operand."""
        if node in self.found.devices:
            if node in self.found.methods:
                new.args.insert(0, new.func.value)
            new.func = self.name(self.found.devices[node], node)
        if node in self.found.calls:
            replacement = self.found.calls[node]
            if isinstance(replacement, int):
                new.keywords.append(ast.keyword("bits", ast.copy_location(ast.Constant(int(replacement)), node)))
            elif isinstance(replacement, python_types.FunctionType):
                new.func = self.name(replacement, node)
            else:
                new = self.call(replacement, new)
        return new


def calls_in(node):
    """Whether an expression or a statement calls something."""
    return any(isinstance(one, ast.Call) for one in nodes_in(node))
