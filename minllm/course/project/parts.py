"""The five parts of the final project, exercises in the order of their use in a step, and a learner's folder as modules."""

import hashlib
import importlib
import sys
import types
from dataclasses import dataclass
from pathlib import Path

from minllm.course.checks.learner import completed, read, run_source
from minllm.course.child import PROJECT
from minllm.course.exercise import Exercise
from minllm.course.exercise_markers import solution
from minllm.course.exercises import find
from minllm.errors import ExerciseError


@dataclass(frozen=True)
class Part:
    """A part: the name of its exercise, and its task in a step."""

    exercise_name: str
    task: str

    @property
    def exercise(self) -> Exercise:
        """The exercise of this part."""
        return find(self.exercise_name)

    def file(self, folder: Path) -> Path:
        """The path of the learner's file in a folder."""
        return folder / self.exercise.file_name


PARTS = (
    Part("scheduling.prefill", "schedule: which prompts enter the step"),
    Part("kv.append", "append: keys and values of the new tokens go to their slots"),
    Part("attention.split_kv", "attend: the splits of each context, side by side"),
    Part("attention.split_merge", "merge: one output of the splits' states"),
    Part("sampling.argmax", "sample: the likeliest token"),
)
SCHEDULE, APPEND, SPLIT, MERGE, SAMPLE = PARTS


def files_of(folder: Path) -> dict[Part, Path]:
    """The file of each part. Raises ExerciseError if one is missing."""
    found = {part: part.file(folder) for part in PARTS}
    if missing := [path.name for path in found.values() if not path.is_file()]:
        raise ExerciseError(f"{folder} has no {', '.join(missing)}: minllm exercise {PROJECT} --out {folder} writes all five parts")
    return found


def source_hash(part: Part, path: Path) -> str:
    """SHA-256 of the learner's lines, as hexadecimal digits."""
    return hashlib.sha256(solution(read(path), part.exercise_name).encode()).hexdigest()


def modules_of(folder: Path) -> dict[Part, types.ModuleType]:
    """The folder's files as modules; the split module's launcher imports the folder's merge kernel."""
    files = files_of(folder)
    modules = {part: module_of(part, path) for part, path in files.items() if part is not SPLIT}
    merge = MERGE.exercise.module
    own = importlib.import_module(merge)
    sys.modules[merge] = stand_in = types.ModuleType(merge)
    stand_in.__dict__.update({**own.__dict__, **modules[MERGE].__dict__})
    try:
        modules[SPLIT] = module_of(SPLIT, files[SPLIT])
    finally:
        sys.modules[merge] = own
    return modules


def module_of(part: Part, path: Path) -> types.ModuleType:
    """The package's module of a part with the definitions of the learner's file in it."""
    return completed(part.exercise, vars(run_source(read(path), path, path.stem)))
