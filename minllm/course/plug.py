"""Uses the kernel of a reader's file in a stage of the engine: `minllm generate --variant attention=FILE.py`."""

from pathlib import Path

from minllm.course.checks import check_file
from minllm.course.checks.learner import completed, copy_with, name_in, read, run_source
from minllm.course.exercises import NAMES, find
from minllm.errors import ExerciseError
from minllm.ops.own_kernels import OwnKernel


def own_kernel(stage: str, path: Path, name: str | None = None) -> OwnKernel:
    """The kernel of an exercise's file that passes its check, for `kernel_variants={stage: own_kernel(stage, path)}`.

    name: the exercise, if the file's name and markers do not give it.
    Raises ExerciseError for a file that does not pass, or that belongs to another stage or to none.
    """
    text = read(path)
    exercise = find(name or name_in(path, text, NAMES))
    if exercise.stage != stage:
        belongs = f"the stage {exercise.stage}" if exercise.stage else "no stage of the engine"
        raise ExerciseError(f"{path} is the exercise {exercise.name}, which belongs to {belongs}, not to {stage}")
    report = check_file(path, exercise.name)
    if not report.passed:
        raise ExerciseError(f"{path} does not pass its check yet, at {report.failed.rung.name!r}: minllm check {path} says more")
    place, _, launcher = exercise.launcher.partition(":")
    module = copy_with(place, exercise.module, completed(exercise, vars(run_source(text, path, path.stem))))
    shapes = getattr(module, "workspace_shapes", None)
    return OwnKernel(stage, getattr(module, launcher), shapes, exercise.most_rows, exercise.simulated_options)
