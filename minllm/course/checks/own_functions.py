"""Refuses a reader's file that calls the package's own solution instead of computing the result itself.

While the file runs, the package's function of the exercise, its launcher, the NumPy references of the same module or stage, and the other
variants of the stage are replaced by guards. A guard forwards every use, except one with the reader's file on the call stack, no matter how
the file obtained the function. Importing the exercise's module again is refused in the same way, and so is a file in which the name of the
exercise's function refers to one from another file.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minllm.course.exercise import Exercise
from minllm.course.exercise_markers import holder
from minllm.errors import ExerciseError
from minllm.kernels import attention, matmul

TABLES = {table.stage: table for table in (matmul.VARIANTS, attention.VARIANTS)}  # stages with several variants


def refusal(exercise: Exercise, name: str) -> ExerciseError:
    """The ExerciseError for a use of the package's function `name`."""
    return ExerciseError(f"The file calls the package's own {name}: the lines of {exercise.name} are to be yours. Write them without it.")


def called_by(file: str) -> bool:
    """Whether a frame of `file` is on the call stack."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return True
        frame = frame.f_back
    return False


class Guard:
    """Replaces a function or kernel of the package; raises ExerciseError if the reader's file uses it."""

    def __init__(self, guarded: Any, exercise: Exercise, name: str, file: str):
        vars(self).update(guarded=guarded, exercise=exercise, name=name, file=file)

    def use(self) -> Any:
        """The guarded function; raises ExerciseError if the reader's file is on the call stack."""
        if called_by(self.file):
            raise refusal(self.exercise, self.name)
        return self.guarded

    def __call__(self, *arguments, **options):
        return self.use()(*arguments, **options)

    def __getitem__(self, index):
        return self.use()[index]

    def __getattr__(self, name):
        return getattr(self.use(), name)


class NoSecondImport:
    """An import finder that stops the reader's file from importing the exercise's module again."""

    def __init__(self, exercise: Exercise, file: str):
        self.exercise, self.file = exercise, file

    def find_spec(self, name, path=None, target=None):
        """None, so that the next finder is tried; raises ExerciseError for the reader's file."""
        if name == self.exercise.module and called_by(self.file):
            raise refusal(self.exercise, name)


def own_places(exercise: Exercise) -> list[tuple[str, str]]:
    """(module, name) of the package's functions that a reader's file must not call."""
    asked = [(exercise.module, holder(exercise.source, exercise.name)), exercise.entry_place, tuple(exercise.launcher.split(":"))]
    modules = [exercise.module, ".".join([*exercise.module.split(".")[:3], "reference"])]  # minllm.kernels.matmul.reference
    references = [(name, one) for name in modules for one in names_in(name) if one.endswith("_reference")]
    return list(dict.fromkeys([*asked, *references, *variants_beside(exercise)]))


def names_in(module: str) -> list[str]:
    """The names in a module of the package; none if there is no such module."""
    with contextlib.suppress(ModuleNotFoundError):
        return list(vars(importlib.import_module(module)))
    return []


def variants_beside(exercise: Exercise) -> Iterator[tuple[str, str]]:
    """The launchers of the stage's other variants."""
    table = TABLES.get(exercise.stage, {})
    for name in table:
        module = table.module(name).__name__
        if module != exercise.module:
            yield module, table.entry(name).launcher or "attention"


@contextlib.contextmanager
def guarded(exercise: Exercise, file: str) -> Iterator[None]:
    """A context in which the file cannot use the package's own functions; the package's own file is not guarded."""
    if not file or Path(file).resolve() == exercise.path.resolve():
        yield
        return
    found, finder = {}, NoSecondImport(exercise, file)
    for module, name in own_places(exercise):
        value = vars(importlib.import_module(module)).get(name)
        if callable(value) or hasattr(value, "simulate"):
            found[id(value)] = Guard(value, exercise, name, file)
    holding = [module for module in package_modules() if not found.keys().isdisjoint(map(id, vars(module).values()))]
    before = [(module, name, value) for module in holding for name, value in vars(module).items() if id(value) in found]
    for module, name, value in before:
        setattr(module, name, found[id(value)])
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for module, name, value in before:
            setattr(module, name, value)


def package_modules() -> list[Any]:
    """The loaded modules of the package in which a reader could find a kernel."""
    floors = ("minllm.kernels.", "minllm.ops.", "minllm.models.", "minllm.engine.", "minllm.cache.")
    return [module for name, module in list(sys.modules.items()) if name.startswith(floors)]
