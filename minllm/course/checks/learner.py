"""Substitutes a reader's file, or a kernel from a notebook, for the package's own.

A reader's file defines one function of a package's file, and may define more of it: `completed` puts its definitions into a new copy of
that file. If the launcher is in another file, a new copy of that one is made that imports the reader's module instead of the package's.
"""

import functools
import importlib
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from minllm.course.exercise import Exercise, file_name_of
from minllm.course.exercise_markers import holder, regions
from minllm.errors import ExerciseError

loaded_count = iter(range(sys.maxsize))


def run_source(text: str, path: str | Path, name: str) -> types.ModuleType:
    """A new module from a source text; exceptions of the text propagate to the caller."""
    module = types.ModuleType(f"minllm_reader_{next(loaded_count)}_{name}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses look up their own module
    exec(compile(text, str(path), "exec"), module.__dict__)
    return module


def read(path: Path) -> str:
    """The text of a reader's file."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ExerciseError(f"{path} is a FIFO, a socket or a device; give the Python file of an exercise")
        return path.read_text(encoding="utf-8")
    except IsADirectoryError:
        raise ExerciseError(f"{path} is a directory: name a file in it, or run pytest there") from None
    except ValueError as error:
        if not isinstance(error, UnicodeDecodeError):
            raise ExerciseError(f"{str(path)!r} is not the name of a file: {error}") from None
        raise ExerciseError(f"{path} is not UTF-8 text; give the Python file of an exercise") from None
    except OSError as error:
        raise ExerciseError(f"{path} cannot be read: {error.strerror}") from None


def name_in(path: Path, text: str, names: Iterable[str]) -> str:
    """The name of the exercise that a file solves, one of `names`, by its markers; if these name several, by the file's name."""
    try:
        marked = set(regions(text))
    except ExerciseError as error:
        raise ExerciseError(f"{path}: {error}") from None
    named = [name for name in names if name in marked]
    chosen = named if len(named) == 1 else [name for name in named if file_name_of(name) == path.name]
    if len(chosen) != 1:
        raise ExerciseError(
            f"{path} does not say which exercise it solves: keep the lines `# exercise: NAME` and `# end exercise`, and the file's name"
        )
    return chosen[0]


def completed(exercise: Exercise, own: Mapping[str, Any]) -> types.ModuleType:
    """A new copy of the exercise's module with a reader's definitions in it; of a class, the methods that it has.

    Raises ExerciseError if the function that contains the exercise is not among them.
    """
    module, name = run_source(exercise.source, exercise.path, exercise.name.replace(".", "_")), holder(exercise.source, exercise.name)
    if name not in own:
        raise ExerciseError(f"{own.get('__file__', 'the cell')} has no `{name}` any more: the check calls it, so keep its name")
    definitions, theirs = {key: value for key, value in own.items() if not is_dunder(key)}, vars(module)[name]
    if isinstance(theirs, type) and isinstance(own[name], type) and not vars(theirs).keys() <= vars(own[name]).keys():
        for method, value in vars(definitions.pop(name)).items():
            if not is_dunder(method):
                setattr(theirs, method, value)
    vars(module).update(definitions, __file__=own.get("__file__", module.__file__))
    return module


def is_dunder(name: str) -> bool:
    """Whether Python itself sets this name."""
    return name.startswith("__") and name.endswith("__")


def entry_of(exercise: Exercise, module: types.ModuleType) -> Callable:
    """The function that the rungs call, using the reader's module."""
    return entry_module(exercise, module).__dict__[exercise.entry_place[1]]


def entry_module(exercise: Exercise, module: types.ModuleType) -> types.ModuleType:
    """The module with the entry: the reader's, or a new copy of another module that imports the reader's."""
    place, name = exercise.entry_place
    module = copy_with(place, exercise.module, module)
    if name not in module.__dict__:
        raise ExerciseError(f"{module.__file__} has no `{name}` any more: the check calls it, so keep its name")
    return module


def copy_with(place: str, name: str, replacement: types.ModuleType) -> types.ModuleType:
    """A new copy of module `place` in which `import name` returns `replacement`; the replacement itself if `place` is `name`."""
    if place == name:
        return replacement
    own = importlib.import_module(name)
    path = Path(importlib.import_module(place).__file__)
    # the reader's definitions, and everything else from the package's module
    stand_in = types.ModuleType(name)
    stand_in.__dict__.update({**own.__dict__, **replacement.__dict__})
    sys.modules[name] = stand_in
    try:
        return run_source(path.read_text(encoding="utf-8"), path, place.rpartition(".")[2])
    finally:
        sys.modules[name] = own


def name_of(thing: object) -> str:
    """The name of a function, kernel or dispatcher."""
    plain = thing.func if isinstance(thing, functools.partial) else thing
    return getattr(plain, "__name__", "")
