"""The command `minllm exercise`."""

import shutil
from pathlib import Path

from minllm.course.child import PROJECT
from minllm.course.exercise_files import write
from minllm.course.exercises import EXERCISES, select
from minllm.course.project.parts import PARTS
from minllm.errors import ExerciseError


def exercise(lesson_or_name: str | None, out: Path | None, force: bool) -> None:
    """List the exercises, or write those of a lesson, or a single one, into a folder."""
    if lesson_or_name is None:
        print(listing())
        return
    chosen = [part.exercise for part in PARTS] if lesson_or_name == PROJECT else select(lesson_or_name)
    if out is None:
        raise ExerciseError(f"say where to: minllm exercise {lesson_or_name} --out FOLDER")
    for path in write(chosen, out, force):
        print(path)
    print(f"\nFill in a file, then: minllm check {out / chosen[0].file_name}")
    if lesson_or_name == PROJECT:
        print(f"With all five: minllm check {PROJECT} {out}")
    if shutil.which("minllm") is None:
        print("This terminal does not find the command minllm yet: source .venv/bin/activate")


def listing() -> str:
    """All exercises by lesson."""
    width = max(len(exercise.name) for exercise in EXERCISES)
    lines, lesson = [], None
    for one in EXERCISES:
        if one.lesson != lesson:
            lesson = one.lesson
            lines.append(f"Lesson {lesson}")
        lines.append(f"  {one.name:<{width}}  {one.title}")
    ends = "minllm exercise LESSON --out FOLDER writes those of a lesson; a name instead of a number writes one."
    return "\n".join([*lines, "", ends, f"minllm exercise {PROJECT} --out FOLDER writes the five parts of the final project."])
