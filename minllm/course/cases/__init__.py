"""Detective cases: real bugs as small kernels or classes, with symptom, fixed version and diagnosis.

There is one file per case, named after the symptom, so that the name does not reveal the bug. A lesson shows a case with `show_case(name)`;
`investigate(name)` runs its code in the simulator and reports what is wrong; `investigate(name, mine)` tries a reader's fix.

To add a case, write a module here with the broken code, the fixed code and `CASE`, and add its name to NAMES. The tests prove that the bug
is found in the line that the case names, and that nothing is found in the fixed version.
"""

from importlib import import_module

from minllm.course.cases.case import Case
from minllm.errors import ExerciseError

NAMES = (
    "restless_sum",
    "clairvoyant",
    "idle_bytes",
    "one_customer",
    "last_tile",
    "hanging_norm",
    "rising_scores",
    "lagging_rows",
    "every_fourth_token",
    "short_neighbour",
    "rare_nan",
    "someone_elses_answer",
    "two_stories",
    "louder_and_louder",
    "long_batch",
    "too_early",
    "long_silence",
    "fewer_every_day",
    "echo",
    "slow_company",
    "same_histogram",
    "slightly_bright",
    "whole_rows_only",
    "punished_for_success",
    "forgotten_question",
    "too_agreeable",
    "yesterdays_news",
    "split_decision",
    "four_strangers",
    "half_a_sentence",
    "rooms_without_guests",
    "calm_dashboard",
    "wrong_when_quiet",
    "lukewarm",
    "fickle_text",
)  # fmt: skip


def find(name: str) -> Case:
    """The case of this name. Raises ExerciseError for an unknown one."""
    if name not in NAMES:
        raise ExerciseError(f"there is no case {name!r}; there are {', '.join(NAMES)}")
    return import_module(f"minllm.course.cases.{name}").CASE


def all_cases() -> list[Case]:
    """All cases, by lesson."""
    return sorted(map(find, NAMES), key=lambda case: case.lesson)
