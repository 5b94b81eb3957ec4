"""Shows the exercises of a lesson on its page: task, collapsed hints, cases of the checks, and commands.

Everything is generated from the exercises themselves, so that the page cannot differ from the checker.
"""

import re

from minllm.course.exercise import Exercise
from minllm.course.exercises import select
from minllm.course.layout import closed

# Matches elements, calls, names with an underscore, and dotted names: x[row, k], warp_sum(v), block_size, query.shape.
CODE = re.compile(r"([A-Za-z_][\w.]*(?:\[[^\]]*\]|\((?:[^()]|\([^()]*\))*\))|[A-Za-z]\w*_\w+(?:\.\w+)*|[A-Za-z]\w*(?:\.[A-Za-z_]\w*)+)")


class Exercises:
    """Exercises on a page; displays itself as Markdown."""

    def __init__(self, exercises: list[Exercise]):
        self.exercises = exercises

    def _repr_markdown_(self) -> str:
        return "\n\n".join(exercise_markdown(exercise) for exercise in self.exercises)

    def __repr__(self) -> str:
        return "\n".join(f"{exercise.name}: {exercise.title}" for exercise in self.exercises)


def show_exercises(*lessons_or_names: int | str) -> Exercises:
    """The exercises of lessons, or those of these names. Raises ExerciseError for an unknown one."""
    return Exercises([exercise for wanted in lessons_or_names for exercise in select(str(wanted))])


def exercise_markdown(exercise: Exercise) -> str:
    """One exercise as Markdown: the task, the commands that check it, hints, cases."""
    parts = [
        f"### Exercise: {as_heading(exercise.title)} (`{exercise.name}`)",
        literal(exercise.task),
        "```\nsource .venv/bin/activate  # in the clone, once per terminal\n"
        f"minllm exercise {exercise.name} --out my_kernels\nminllm check my_kernels/{exercise.file_name}\n```",
        f'In a notebook: `from minllm.course.checks import check`, then `check("{exercise.name}", my_kernel)`.',
        *(closed(f"Hint {number}", literal(hint)) for number, hint in enumerate(exercise.hints, 1)),
        closed("What the checks try", "\n".join(f"- **{rung.name}**: {literal(rung.catches)}" for rung in exercise.rungs), "abstract"),
    ]
    return "\n\n".join(part for part in parts if part)


def as_heading(title: str) -> str:
    """A title with a capital, unless it begins with a formula: "Copy on write", "silu(gate) * up", "out = P V"."""
    begins_with_formula = re.match(r"\w+(\(| =)", title)
    return title if begins_with_formula else title[0].upper() + title[1:]


def literal(text: str) -> str:
    """A plain text as Markdown: text between backticks, or text that looks like code, becomes code; asterisks are escaped.

    Indented lines are a picture, and stay.
    """
    if "\n" in text:
        return "\n".join(line if line.startswith("    ") else literal(line) for line in text.splitlines())
    parts = text.split("`")
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = f"`{part}`"
        else:
            between = CODE.split(part)  # text, code, text, ...
            between[::2] = [re.sub(r"([*\\])", r"\\\1", words) for words in between[::2]]
            between[1::2] = [f"`{code}`" for code in between[1::2]]
            parts[i] = "".join(between)
    return "".join(parts)
