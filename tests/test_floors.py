"""A module of minllm imports only from its own floor and from floors below it, there is no import cycle, and engines import no ladder/.

Imports inside functions count as those at the top of a module do, and so do modules that importlib.import_module or a table of variants
finds by name (VARIANTS["tree"], VARIANTS.fallback("wgmma")); f"{__package__}.{name}" counts as every module of the package.
Imports under `if TYPE_CHECKING:` do not count, because they never run. The `__init__` of a package, which Python runs before any module in
it, does not count either.
"""

import ast
import fnmatch
import importlib
import re
from pathlib import Path

import pytest

import minllm

PACKAGE = Path(minllm.__file__).parent
FLOORS = (  # bottom to top; some have no modules yet
    *("errors", "machine", "sim", "figures", "runtime", "ptx", "tiles", "kernels", "weights", "catalogue", "ops", "cache", "models"),
    *("nano", "costs", "parallel", "engine", "post_training", "planning", "bench", "server", "course", "cli", "__main__"),
)
MAY_IMPORT_LADDERS = {"catalogue", "nano", "bench", "course"}  # floors of which engines import nothing
# Exceptions. {(importing module, imported module): reason}
UPWARD: dict[tuple[str, str], str] = {}
# {modules that import each other: reason}
CYCLES: dict[frozenset[str], str] = {}


def modules():
    """{name of a module: its file}."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node):
    """All import statements below a node of the syntax tree, except those that only type checkers read."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from statements(child)


def imported_names(statement, package):
    """The full names, of modules or of their members, that a statement of a module in `package` imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    above = package.split(".")[: len(package.split(".")) - statement.level + 1] if statement.level else []
    origin = ".".join([*above, *([statement.module] if statement.module else [])])
    return [origin + "." + alias.name for alias in statement.names]


def looked_up(tree, package):
    """The names of the modules that calls of import_module and tables of variants look up; "*" stands for what run time alone knows."""
    tables = {
        alias.asname or alias.name: importlib.import_module(statement.module).VARIANTS
        for statement in statements(tree) if isinstance(statement, ast.ImportFrom) for alias in statement.names if alias.name == "VARIANTS"
    }  # fmt: skip
    for node in ast.walk(tree):
        call = isinstance(node, ast.Call) and node.args
        if not call and not isinstance(node, ast.Subscript):
            continue
        looks, argument = (node.func, node.args[0]) if call else (node.value, node.slice)
        name, method = (looks.value, looks.attr) if isinstance(looks, ast.Attribute) else (looks, "")
        name = name.id if isinstance(name, ast.Name) else ""
        if "import_module" in (name, method):
            text = ast.unparse(argument).removeprefix("f").strip("'\"")  # from f"{__package__}.{name}" or "minllm.errors"
            if "{" not in text.removeprefix("{__package__}") or text.startswith("{__package__}"):  # else a registry of others' modules
                yield re.sub("{.*}", "*", text.replace("{__package__}", package))
        elif name in tables and method in ("", "fallback", "module") and isinstance(argument, ast.Constant):
            found = tables[name].entry(argument.value)
            found = tables[name].entry(found.fallback) if method == "fallback" else found
            yield importlib.util.resolve_name(found.module, tables[name].package)


def imports(name, path, known):
    """The modules of minllm that a module imports; a public name of `minllm` counts as the module that defines it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    text = path.read_text(encoding="utf-8")
    tree, looks_up = ast.parse(text), "import_module" in text or "VARIANTS" in text
    found = {one for pattern in looked_up(tree, package) for one in fnmatch.filter(known, pattern)} if looks_up else set()
    for statement in statements(tree):
        for full in imported_names(statement, package):
            origin, _, last = full.rpartition(".")
            if origin == "minllm" and last in minllm._HOMES:
                full = minllm._HOMES[last]
            found |= {full} & known or {full.rpartition(".")[0]} & known
    return found - {name}


MODULES = modules()


@pytest.fixture(scope="module")
def graph():
    """{name of a module: the modules that it imports}."""
    return {name: imports(name, path, set(MODULES)) for name, path in MODULES.items()}


def floor_of(name):
    """The number of a module's floor; minllm/__init__.py lies below all floors, because it imports lazily."""
    return -1 if name == "minllm" else FLOORS.index(name.split(".")[1])


def cycles(graph):
    """The sets of modules that reach each other: strongly connected components, by Tarjan's algorithm."""
    order, lowest, stack, found = {}, {}, [], []

    def visit(node):
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in graph[node]:
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            at = stack.index(node)
            members = frozenset(stack[at:])
            del stack[at:]
            if len(members) > 1:
                found.append(members)

    for node in graph:
        if node not in order:
            visit(node)
    return found


def test_every_module_stands_on_a_floor():
    homeless = [name for name in MODULES if name != "minllm" and name.split(".")[1] not in FLOORS]
    assert not homeless, f"no floor in FLOORS for {homeless}"


@pytest.mark.parametrize("floor", FLOORS)
def test_no_module_imports_from_a_floor_above(floor, graph):
    here = [name for name in MODULES if name != "minllm" and name.split(".")[1] == floor]
    upward = {(name, other) for name in here for other in graph[name] if floor_of(other) > floor_of(name)}
    allowed = {pair for pair in UPWARD if pair[0] in here}
    assert upward == allowed, f"upward imports {sorted(upward - allowed)}; exceptions that are gone {sorted(allowed - upward)}"


def test_there_is_no_import_cycle(graph):
    found = set(cycles(graph))
    assert found == set(CYCLES), f"cycles {[sorted(cycle) for cycle in found - set(CYCLES)]}; gone {set(CYCLES) - found}"


def in_ladder(name):
    """Whether a module is a rung of the lessons: one of minllm/kernels/<stage>/ladder/, which no engine launches."""
    return ".ladder." in name


def test_what_engines_launch_imports_no_rung(graph):
    """tests/kernels/test_variants.py says the same of the variants that engines choose by name."""
    above = {(name, other) for name in graph if not in_ladder(name) for other in graph[name] if in_ladder(other)}
    assert {name.split(".")[1] for name, _ in above} == MAY_IMPORT_LADDERS, sorted(above)


def test_cycles_and_imports_are_found(graph):
    """The functions above, on made-up modules."""
    made_up = {"a": ["b"], "b": ["c", "d"], "c": ["a"], "d": ["e"], "e": [], "f": ["a"]}
    assert cycles(made_up) == [frozenset("abc")]
    source = "import x.y\ndef f():\n    from .p import q\nif TYPE_CHECKING:\n    import z\nfrom . import r\n"
    names = [name for statement in statements(ast.parse(source)) for name in imported_names(statement, "x")]
    assert names == ["x.y", "x.p.q", "x.r"]
    assert "minllm.engine.llm" in graph["minllm.cli.generation_options"]
    source = """import_module("minllm.errors"), import_module(f"{__package__}.{name}"), import_module(f"x.{name}")
from minllm.kernels.attention import VARIANTS as OURS
OURS["tree"], OURS.fallback("split_tensor_core"), OURS[name], VARIANTS["tree"]"""
    found = (f"minllm.kernels.attention.{name}" for name in ("tree.tree", "split_kv.split_kv"))
    assert set(looked_up(ast.parse(source), "a")) == {"minllm.errors", "a.*", *found}
