"""All exercises, by lesson.

To add one:

1. In the package's file, put `# exercise: STAGE.NAME` above and `# end exercise` below the lines that a reader is to write, both
   indented as the first of them: at most 8 lines of one top-level function or method, the rest of which makes sense without them.
   The reader's file holds that function alone (exercise_slice.py).
2. In the module of minllm/course/checks that belongs to the stage (or a new one), add an `Exercise` to EXERCISES, and its name to LADDERS
   below: its lesson, the function that the checks call, the task in two or three sentences, hints, and its rungs from simple to hard. A
   rung is a function of the reader's entry; `mismatch.expect` compares arrays and takes suspects, the results of likely mistakes, by
   which it names the cause; `traffic.expect_bytes` holds a launch to a byte budget.
3. In tests/course/mutations.py, add two or three plausible wrong solutions and the rung that each must fail at.

The tests then prove that the solution passes every rung, that a reader's file with the solution put back holds the package's function,
and that the wrong ones fail where they should.
"""

import functools
import re
from importlib import import_module

from minllm.course.exercise import Exercise
from minllm.errors import ExerciseError

# Names by module: a check of one exercise imports the module of this one alone.
LADDERS = {
    "language_model": "sampling.log_softmax engine.perplexity",
    "first_kernels": "activation.relu activation.silu embedding.lookup",
    "attention_by_hand": "attention.softmax attention.scores attention.weighted_values attention.merge_states attention.flash_attention_1",
    "arithmetic": "costs.floor_ms costs.projection costs.kv_bytes_per_token",
    "matmul": "matmul.naive matmul.gemv matmul.tiled",
    "producer": "matmul.producer",
    "normalization": "normalization.equation normalization.rms_norm",
    "cache": "rope.rotate kv.append",
    "paging": "costs.batch_bytes cache.blocks_needed cache.find_prefix kv.copy_blocks",
    "quantization": "quantization.quantize_groups",
    "decode_attention": "attention.share_of_split attention.split_kv attention.split_merge",
    "sampling": "sampling.argmax sampling.penalties",
    "decode_step": "sampling.advance engine.next_size",
    "scheduling": "scheduling.split_fuse scheduling.prefill",
    "engine_loop": "engine.launch_ahead",
    "int4_matmul": "matmul.int4",
    "speculation": "speculation.accept",
    "several_gpus": "all_reduce.one_shot",
    "serving": "serving.admits",
    "experts": "experts.sort",
}
NAMES = tuple(name for names in LADDERS.values() for name in names.split())


def __getattr__(name: str) -> tuple[Exercise, ...]:
    if name != "EXERCISES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return every_exercise()


@functools.cache
def every_exercise() -> tuple[Exercise, ...]:
    """EXERCISES, all of them by lesson."""
    return tuple(sorted(map(find, NAMES), key=lambda exercise: exercise.lesson))


def find(name: str) -> Exercise:
    """The exercise of this name. Raises ExerciseError for an unknown one."""
    for module, names in LADDERS.items():
        if name in names.split():
            return next(one for one in import_module(f"minllm.course.checks.{module}").EXERCISES if one.name == name)
    near = [one for one in NAMES if name in one]
    instead = f"did you mean {' or '.join(near)}?" if near else "minllm exercise lists all of them"
    raise ExerciseError(f"there is no exercise {name!r}; {instead}")


def select(lesson_or_name: str) -> list[Exercise]:
    """The exercises of a lesson, given by its number, or the one of this name.

    5a and 5b, or 05a, are two pages of lesson 5: each gives all exercises of that lesson. Raises ExerciseError for an unknown one.
    """
    numbered = re.fullmatch(r"([0-9]+)[ab]?", lesson_or_name)
    if numbered is None:
        return [find(lesson_or_name)]
    found = [exercise for exercise in every_exercise() if exercise.lesson == int(numbered[1])]
    if not found:
        lessons = sorted({exercise.lesson for exercise in every_exercise()})
        raise ExerciseError(f"lesson {lesson_or_name} has no exercises; lessons {', '.join(map(str, lessons))} have")
    return found
