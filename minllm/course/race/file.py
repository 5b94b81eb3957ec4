"""A reader's file: which function it defines, and that function, loaded as a module."""

import ast
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path

from minllm.course.checks.learner import read, run_source
from minllm.course.race.contest import Contest
from minllm.errors import ExerciseError


def contest_of(path: Path, contests: Mapping[str, Contest]) -> Contest:
    """The contest of the function that a file defines. Raises ExerciseError if it defines none, or several, or a kernel of that name."""
    try:
        tree = ast.parse(read(path), str(path))
    except SyntaxError as error:
        raise ExerciseError(f"{path}, line {error.lineno}: Python cannot read this: {error.msg}") from None
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in contests]
    if len(found) != 1:
        calls = ", ".join(contest.call for contest in contests.values())
        what = f"{len(found)} functions for a race: " + ", ".join(node.name for node in found) if found else "no function for a race"
        raise ExerciseError(f"{path} defines {what}; it must define one of {calls}. `minllm race --new softmax` writes an example.")
    (function,) = found
    if function.decorator_list:
        raise ExerciseError(
            f"{path}, line {function.lineno}: {function.name} is decorated, but the race calls it as a plain function, which launches your "
            f"kernels: give the kernel another name, such as {function.name}_kernel."
        )
    return contests[function.name]


def function_of(path: Path, contest: Contest) -> Callable[..., None]:
    """The reader's function, from a new module; exceptions of the file propagate.

    Raises ExerciseError if the function has other parameters.
    """
    function = run_source(read(path), path, path.stem).__dict__[contest.name]
    try:
        inspect.signature(function).bind(*contest.parameters)
    except TypeError:
        raise ExerciseError(f"the race calls {contest.call}; in {path} it is {contest.name}{inspect.signature(function)}") from None
    return function
