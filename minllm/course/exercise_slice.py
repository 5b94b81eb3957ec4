"""The reader's file: the part of a package's file that an exercise needs, and nothing else.

It holds the function with the exercise (of a class, the method alone), the first paragraph of its docstring, the constants that it uses,
and imports; the package's helper functions are imported from the package's file. What lets a kernel start before its predecessor has ended
is left out: a kernel without it is right, and only starts a little later. `learner.completed` puts the reader's definitions back among the
package's.
"""

import ast
import re
import symtable
import sys
import textwrap

from minllm.course.exercise_markers import first_line, region, statement_around

OVERLAP = re.compile(r"^ *wait_for_predecessors\(\).*\n|^ *griddepcontrol_launch_dependents\(\).*\n", re.MULTILINE)
OVERLAP_OPTION = re.compile(r"\(dependent_launch=True\)|, dependent_launch=True")
LINE = 110  # characters per line of the head


def sliced(text: str, name: str, module: str, title: str) -> str:
    """The reader's file, with the solution in it. text: the source of `module`; title: what its docstring says."""
    function = without_overlap(shortened(function_of(text, name)))
    imports, constants = names_from(text, used_names(function), module)
    head = textwrap.fill(f'"""{title}', LINE, break_on_hyphens=False) + '"""'
    blocks = [head, *(["\n".join(group) for group in imports if group]), *(["\n".join(constants)] if constants else [])]
    return "\n\n".join(blocks) + f"\n\n\n{function}"


def function_of(text: str, name: str) -> str:
    """The lines of the top-level function with the exercise, or the head of its class and the method with the exercise."""
    statement, lines = statement_around(text, name), text.splitlines(keepends=True)
    inner, found = statement, region(text, name)
    if isinstance(statement, ast.ClassDef):
        inner = next(one for one in statement.body if first_line(one) <= found.first <= one.end_lineno and hasattr(one, "name"))
    body = "".join(lines[first_line(inner) - 1 : max(inner.end_lineno, found.stop + 1)])
    return body if inner is statement else f'class {statement.name}:\n    """Its other methods are the package\'s."""\n\n{body}'


def shortened(function: str) -> str:
    """The function with the first paragraph of each docstring."""
    lines = function.splitlines(keepends=True)
    nodes = [node for node in ast.walk(ast.parse(function)) if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    for node in sorted(filter(ast.get_docstring, nodes), key=lambda node: -node.lineno):
        doc = node.body[0]
        paragraph = "".join(lines[doc.lineno - 1 : doc.end_lineno]).split("\n\n")[0].rstrip()
        lines[doc.lineno - 1 : doc.end_lineno] = [paragraph + ("" if paragraph.endswith('"""') else '"""') + "\n"]
    return "".join(lines)


def without_overlap(function: str) -> str:
    """The function without the calls and the option of a launch that overlaps its predecessor."""
    return OVERLAP_OPTION.sub("", OVERLAP.sub("", function))


def used_names(function: str) -> set[str]:
    """The global names that a function's text reads, those of its solution among them."""
    scopes, found = [symtable.symtable(function, "", "exec")], set()
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        found |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global() or scope.get_type() == "module"}
    return found - {statement.name for statement in ast.parse(function).body}


def names_from(text: str, used: set[str], module: str) -> tuple[tuple[list[str], ...], list[str]]:
    """((import lines of Python's library, of other packages, of this one), lines of constants) for the used names of a module."""
    lines, library, others, own, constants = text.splitlines(), [], [], {}, []
    for statement in ast.parse(text).body:
        if isinstance(statement, (ast.Import, ast.ImportFrom)):
            aliases = [alias for alias in statement.names if (alias.asname or alias.name).split(".")[0] in used]
            listed = ", ".join(f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in aliases)
            source = getattr(statement, "module", "") or aliases and aliases[0].name
            if aliases and source.startswith("minllm."):
                own[source] = listed
            elif aliases:
                group = library if source.split(".")[0] in sys.stdlib_module_names else others
                group.append(f"import {listed}" if isinstance(statement, ast.Import) else f"from {source} import {listed}")
        elif isinstance(statement, ast.Assign) and (names := assigned(statement) & used):
            if is_literal(statement.value):
                constants += lines[statement.lineno - 1 : statement.end_lineno]
            else:
                own[module] = ", ".join([*own.get(module, "").split(", "), *sorted(names)]).removeprefix(", ")
        elif getattr(statement, "name", None) in used:
            own[module] = f"{own[module]}, {statement.name}" if module in own else statement.name
    return (library, others, [f"from {place} import {listed}" for place, listed in sorted(own.items())]), constants


def assigned(statement: ast.Assign) -> set[str]:
    """The names that an assignment binds."""
    return {node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def is_literal(value: ast.expr) -> bool:
    """Whether an expression is a literal: a number, a text, or a tuple of them."""
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True
