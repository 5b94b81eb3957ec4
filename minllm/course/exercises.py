"""All exercises, by lesson.

To add one:

1. In the package's file, put `# exercise: STAGE.NAME` above and `# end exercise` below the lines that a reader is to write, both
   indented as the first of them. The lines must belong to one top-level function, and the rest of the file must make sense without them.
2. In the module of minllm/course/checks that belongs to the stage (or a new one, named in LADDERS below), add an `Exercise` to EXERCISES:
   its lesson, the function that the checks call, the task in two or three sentences, hints, and its rungs from simple to hard. A rung is
   a function of the reader's entry; `mismatch.expect` compares arrays and takes suspects, the results of likely mistakes, by which
   it names the cause; `traffic.expect_bytes` holds a launch to a byte budget.
3. In tests/course/mutations.py, add two or three plausible wrong solutions and the rung that each must fail at.

The tests then prove that the solution passes every rung, that a skeleton with the solution put back is the package's file, and that the
wrong ones fail where they should.
"""

from minllm.course.checks import (
    arithmetic,
    attention_by_hand,
    cache,
    decode_attention,
    decode_step,
    engine_loop,
    first_kernels,
    int4_matmul,
    language_model,
    matmul,
    normalization,
    paging,
    quantization,
    sampling,
    scheduling,
    several_gpus,
    speculation,
)
from minllm.course.exercise import Exercise
from minllm.errors import ExerciseError

LADDERS = (
    language_model, first_kernels, attention_by_hand, arithmetic, matmul, normalization, cache, paging, quantization, decode_attention,
    sampling,
    decode_step, scheduling, engine_loop, int4_matmul, speculation, several_gpus,
)  # fmt: skip
EXERCISES: tuple[Exercise, ...] = tuple(
    sorted((exercise for module in LADDERS for exercise in module.EXERCISES), key=lambda exercise: exercise.lesson)
)


def find(name: str) -> Exercise:
    """The exercise of this name. Raises ExerciseError for an unknown one."""
    for exercise in EXERCISES:
        if exercise.name == name:
            return exercise
    near = [exercise.name for exercise in EXERCISES if name in exercise.name] or [exercise.name for exercise in EXERCISES]
    raise ExerciseError(f"there is no exercise {name!r}; there are {', '.join(near)}")


def select(lesson_or_name: str) -> list[Exercise]:
    """The exercises of a lesson, given by its number, or the one of this name.

    Raises ExerciseError for an unknown one.
    """
    if not lesson_or_name.isdigit():
        return [find(lesson_or_name)]
    found = [exercise for exercise in EXERCISES if exercise.lesson == int(lesson_or_name)]
    if not found:
        lessons = sorted({exercise.lesson for exercise in EXERCISES})
        raise ExerciseError(f"lesson {lesson_or_name} has no exercises; lessons {', '.join(map(str, lessons))} have")
    return found
