"""A Jinja environment that limits the time and the memory of an untrusted template.

Jinja's sandbox denies a template access to files and to Python's internals, but does not limit its time and memory: it runs `'a' * 10**9`,
two nested ranges of 100,000, or a variable that doubles in every iteration of a loop. Here every step that can be expensive is first
charged to a Budget: an iteration of a loop, a call, a filter, an operator, a comparison, a new list, and every value that is written. A
call into Python cannot be interrupted, so the size of its result is bounded before the call; the CPU time of the thread bounds everything
else. This needs no signal and no second process, and works on every platform and in any thread.
"""

import functools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import GeneratorType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.runtime import LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

LARGEST_VALUE = 8 << 20  # characters and items of one value, and characters of the whole output
LARGEST_WORK = 512 << 20  # characters and items of all values in total
LARGEST_INTEGER = 1024  # bits
SECONDS = 5.0  # CPU time of one rendering
REFUSED_FILTERS = ("pprint", "urlize", "wordwrap", "xmlattr")  # slow on long texts, and useless in a prompt
NOT_GROWING = frozenset(  # methods of str with results no longer than the text, in total
    "count endswith find index isalnum isalpha isascii isdecimal isdigit islower isnumeric isspace istitle isupper lstrip partition "
    "removeprefix removesuffix rfind rindex rpartition rsplit rstrip split splitlines startswith strip".split()
)
SMALL_OPTIONS = {"round": 64, "tojson": 64}  # filters, and the largest number that they accept as an option


class BudgetError(Exception):
    """A template exceeded its budget of time or size."""


class Budget:
    """The remaining budget of one rendering.

    text_chars: length of the template's text, which a macro or recursive loop may repeat.
    """

    def __init__(self, text_chars: int = 0):
        self.text_chars = text_chars
        self.work, self.end = LARGEST_WORK, time.thread_time() + SECONDS

    def spend(self, amount: int) -> None:
        """Charge `amount` characters or items. Raises BudgetError if they, or the time, are used up."""
        self.work -= amount + 1
        if self.work < 0:
            raise BudgetError(f"it makes values of more than {LARGEST_WORK:,} characters and items in all")
        if time.thread_time() > self.end:
            raise BudgetError(f"it was still running after {SECONDS:g} seconds")

    def weigh(self, *values: object) -> None:
        """Charge the characters and items of values, nested ones included.

        Raises BudgetError if there are too many.
        """
        total, stack = 0, [*values]
        while stack:
            value = stack.pop()
            total += 1 + (len(value) if isinstance(value, str | bytes) else 0)
            if isinstance(value, Mapping):
                stack.extend(value.keys())
                stack.extend(value.values())
            elif isinstance(value, list | tuple):
                stack.extend(value)
            elif isinstance(value, Namespace):
                raise BudgetError("it passes or writes a namespace as a value: use the namespace's attributes")
            check_size(total + len(stack))
        self.spend(total)

    def steps(self, values: Iterable[Any], text_chars: int = 0) -> Iterator[Any]:
        """Iterates over `values` and charges each iteration to the budget."""
        for value in values:
            self.spend(text_chars)
            yield value


CURRENT: ContextVar[Budget | None] = ContextVar("CURRENT", default=None)


def current() -> Budget:
    """The budget of this thread's rendering; a fresh one while a template is compiled."""
    return CURRENT.get() or Budget()


@contextmanager
def budget_of(text_chars: int) -> Iterator[Budget]:
    """A budget for the rendering inside the `with`."""
    budget = Budget(text_chars)
    token = CURRENT.set(budget)
    try:
        yield budget
    finally:
        CURRENT.reset(token)


def check_size(size: int, largest: int = LARGEST_VALUE) -> None:
    """Raises BudgetError if a value would have more than `largest` characters and items."""
    if size > largest:
        raise BudgetError(f"it makes a value of more than {largest:,} characters and items")


def size_of(value: object) -> int:
    """The factor by which a value can lengthen a result: the length of a text, the magnitude of an integer."""
    if isinstance(value, bool) or not isinstance(value, int | str | bytes | list | tuple):
        return 1
    return abs(value) if isinstance(value, int) else len(value)


def check_product(values: Iterable[Any], largest: int = LARGEST_VALUE) -> None:
    """Bound the size of a result that may grow as the product of the values' sizes."""
    product = 1
    for value in values:
        product *= 1 + size_of(value)
    check_size(product, largest)


def check_format(text: str, mark: str, values: Iterable[Any]) -> None:
    """Bound the size of text % values (mark "%") and of text.format(values) (mark "{")."""
    values = [*values]
    lengths = sum(len(str(value)) for value in values)
    computed = re.search(r"%[^a-zA-Z]*\*" if mark == "%" else r"\{[^{}]*\{", text)  # a width that is one of the values
    widest = max([int(digits[:9]) for digits in re.findall(r"\d+", text)] + [size_of(value) for value in values if computed], default=0)
    check_size(len(text) + (1 + text.count(mark)) * (lengths + widest))


def check_method(name: str, text: Any, values: list[Any]) -> None:
    """Bound the size of the result of a method of str before the call."""
    if name in NOT_GROWING:
        check_product([text, *values], LARGEST_WORK)
    elif name in ("format", "format_map"):
        check_format(text, "{", values)
    elif name == "replace" and len(values) >= 2 and all(isinstance(value, str) for value in values[:2]):
        check_size(len(text) + text.count(values[0]) * len(values[1]))
    elif name == "join":
        check_size(len(text) * len(values[0]) if values and hasattr(values[0], "__len__") else 0)
    elif values:
        check_product([text, *values])


def check_operator(operator: str, left: object, right: object) -> None:
    """Bound the size of the result of `left operator right` before it is computed."""
    long = str | bytes | list | tuple
    if operator == "%" and isinstance(left, str):
        check_format(left, "%", right if isinstance(right, tuple) else [right])
    elif operator == "+" and isinstance(left, long) and isinstance(right, long):
        check_size(len(left) + len(right))
    elif operator == "*" and (isinstance(left, long) or isinstance(right, long)):
        check_size(size_of(left) * size_of(right))
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * max(1, right) if operator == "**" else left.bit_length() + right.bit_length()
        if max(bits, left.bit_length(), right.bit_length()) > LARGEST_INTEGER:
            raise BudgetError(f"it computes with numbers of more than {LARGEST_INTEGER} bits")


def bounded_filter(name: str, function: Callable) -> Any:
    """A filter that checks its arguments before it runs, and charges them and its result to the budget."""
    first = 1 if hasattr(function, "jinja_pass_arg") else 0  # Jinja passes its context before the value

    @functools.wraps(function)
    def bounded(*given: Any, **options: Any) -> Any:
        budget, arguments = current(), list(given)
        value, values = arguments[first], [*arguments[first + 1 :], *options.values()]
        if isinstance(value, Namespace):
            budget.weigh(value)
        budget.weigh(*values)
        if name == "join":
            value = arguments[first] = list(value)
            budget.weigh(value)
            check_size(len(value) * max(map(size_of, values), default=0))
        elif name in ("replace", "format"):
            check_method(name, value, values) if name == "replace" and isinstance(value, str) else check_format(str(value), "%", values)
        elif name in SMALL_OPTIONS:
            check_size(max(map(size_of, values), default=0), SMALL_OPTIONS[name])
        elif name in ("indent", "center", "batch", "slice", "truncate"):
            check_product([value, *values])
        elif name == "sum" and any(not isinstance(one, int | float | str) for one in values):
            raise BudgetError("it sums lists: a sum starts from a number")
        return bounded_result(budget, function(*arguments, **options))

    return bounded


def bounded_result(budget: Budget, result: Any) -> Any:
    """The result of a call, charged to the budget; the values of a generator are charged as they are produced."""
    if isinstance(result, GeneratorType):
        return budget.steps(result)
    if isinstance(result, str | bytes | list | tuple | Mapping):
        budget.weigh(result)
    return result


class _AskTheBudget(NodeTransformer):
    """Wraps every node that Jinja computes without calling its environment in a filter that charges the budget."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        text_chars = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "budget_steps", nodes.Const(text_chars))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes, lineno=node.lineno), "budget_concat")

    def visit_List(self, node: nodes.Expr) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, "budget_value")

    visit_Dict = visit_Compare = visit_List

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:
        return self.visit_List(node) if node.ctx == "load" else node


def _filtered(node: nodes.Node, name: str, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, list(arguments), [], None, None, lineno=node.lineno)


@pass_context
def _steps(context: Any, values: Iterable[Any], text_chars: int) -> Iterator[Any]:
    return current().steps(iter(values), text_chars)


@pass_context
def _value(context: Any, value: object) -> Any:
    current().weigh(value)
    return value


@pass_context
def _concat(context: Any, values: list[Any]) -> str:
    current().weigh(values)
    return "".join(map(str, values))


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with a budget for time and size."""

    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, **options: Any):
        super().__init__(finalize=_value, optimized=False, **options)  # optimised templates fold constants at compile time
        for name in REFUSED_FILTERS:
            del self.filters[name]
        self.filters = {name: bounded_filter(name, function) for name, function in self.filters.items()}
        self.filters |= dict(budget_steps=_steps, budget_value=_value, budget_concat=_concat)
        del self.globals["lipsum"]

    def add_filter(self, name: str, function: Callable) -> None:
        """Add a filter, or replace one."""
        self.filters[name] = bounded_filter(name, function)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _AskTheBudget().visit(super()._parse(source, name, filename))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Apply a binary operator, with its result bounded and charged."""
        current().spend(0)
        check_operator(operator, left, right)
        return bounded_result(current(), super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *given: Any, **options: Any) -> Any:
        """Call a function, method or macro, with its result bounded and charged."""
        budget, arguments = current(), list(given)
        if isinstance(function, LoopContext):
            arguments = [budget.steps(iter(one), budget.text_chars) for one in arguments]
        budget.weigh(*arguments, *options.values())
        budget.spend(budget.text_chars if isinstance(function, Macro) else 0)
        owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)
        if isinstance(owner, str | bytes | int | float):
            if function.__name__ == "join" and arguments:
                arguments[0] = list(arguments[0])
                budget.weigh(arguments[0])
            check_method(function.__name__, owner, [*arguments, *options.values()])
        return bounded_result(budget, super().call(context, function, *arguments, **options))
