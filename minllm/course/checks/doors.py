"""Entry points of the checker: a file (`minllm check`, and the test next to skeletons), and a kernel in a notebook's cell."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from minllm.course.checks.ladder import SECONDS, Report, climb
from minllm.course.checks.learner import completed, entry_of, name_in, name_of, read, run_source
from minllm.course.checks.own_functions import guarded, refusal
from minllm.course.exercise import Exercise
from minllm.course.exercise_markers import holder
from minllm.engine.progress import Progress
from minllm.errors import ExerciseError


def check_file(path: str | Path, name: str | None = None, seconds: float = SECONDS, progress: Progress | None = None) -> Report:
    """Check a reader's file. name: the exercise, which overrides the file's markers. progress: as in `climb`.

    Raises ExerciseError for a file without an exercise.
    """
    path = Path(path)
    exercise, text = exercise_of_file(path, name), read(path)
    with guarded(exercise, str(path)):
        return climb(exercise, lambda: entry_of(exercise, own_module(exercise, text, path)), str(path), seconds, progress)


def own_module(exercise: Exercise, text: str, path: Path) -> ModuleType:
    """The package's module with the definitions of a reader's file in it.

    Raises ExerciseError if the exercise's function in the file is missing, or is the package's.
    """
    module, name = run_source(text, path, path.stem), holder(exercise.source, exercise.name)
    if source_file(module.__dict__.get(name)) == str(exercise.path) != str(path):
        raise refusal(exercise, name)
    return completed(exercise, vars(module))


def exercise_of_file(path: Path, name: str | None = None) -> Exercise:
    """The exercise called `name`, or the one that a file's markers name.

    Raises ExerciseError for a file without one.
    """
    from minllm.course.exercises import NAMES, find

    text = read(path)
    return find(name or name_in(path, text, NAMES))


def check(exercise_or_kernel: str | Callable, kernel: Callable | None = None, seconds: float = SECONDS) -> Report:
    """Check a kernel, a device function, a factory or a plain function; prints and returns the report.

    check(my_kernel) finds the exercise by the function's name, that in the package; check("matmul.naive", my_kernel) takes any name.
    The given function replaces, in the package's module, the function that contains the exercise, or its launcher.
    Raises ExerciseError if no exercise, or more than one, has a function of that name.
    """
    from minllm.course.exercises import find

    if isinstance(exercise_or_kernel, str):
        exercise, thing = find(exercise_or_kernel), kernel
        if thing is None:
            raise ExerciseError(f'give the kernel too: check("{exercise.name}", {holder(exercise.source, exercise.name)})')
    else:
        exercise, thing = exercise_with(name_of(exercise_or_kernel)), exercise_or_kernel
    if not callable(thing) and not hasattr(thing, "simulate"):
        raise ExerciseError(f"check() was given {thing!r}; give it a kernel or a function")
    file = source_file(thing)
    report = climb(exercise, lambda: entry_with(exercise, thing), file, seconds)
    print(report)
    return report


def entry_with(exercise: Exercise, thing: Callable) -> Callable:
    """The entry of an exercise with a reader's function in it; the function itself if it is the launcher."""
    name = holder(exercise.source, exercise.name)
    if name_of(thing) == exercise.entry_place[1] != name:
        return thing
    return entry_of(exercise, completed(exercise, {name: thing}))


def exercise_with(name: str) -> Exercise:
    """The exercise in a function of this name. Raises ExerciseError if there is none or more than one."""
    from minllm.course.exercises import EXERCISES

    found = [exercise for exercise in EXERCISES if name in (holder(exercise.source, exercise.name), exercise.entry_place[1])]
    if len(found) != 1:
        names = ", ".join(exercise.name for exercise in found or EXERCISES)
        raise ExerciseError(f"{'no' if not found else 'more than one'} exercise has a function {name!r}: say which, one of {names}")
    return found[0]


def source_file(thing: Callable) -> str:
    """The path of the file that defines a function; "" if unknown."""
    plain = getattr(thing, "function", thing)
    plain = getattr(plain, "py_func", plain)
    plain = getattr(plain, "__wrapped__", plain)
    code = getattr(plain, "__code__", None)
    return "" if code is None else code.co_filename
