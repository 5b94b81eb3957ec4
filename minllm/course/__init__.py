"""The code of the course: exercises and their checks, detective cases, and building blocks of lessons.

Lessons import from here: displays of the package's source, recorded measurements, predictions, and figures (minllm/figures); see
docs/contributing/writing-lessons.md. The engine does not import the course, and each part of the course is imported on first use.
"""

from importlib import import_module

_HOMES = {
    "Bar": "figures.bars",
    "Dot": "figures.roofline",
    "Figure": "figures.figure",
    "Measurement": "course.records",
    "Prediction": "course.prediction",
    "Span": "figures.timeline",
    "accesses": "figures.accesses",
    "bars": "figures.bars",
    "comparable": "course.records",
    "curves": "figures.curves",
    "has_gpu": "course.machine",
    "heat_map": "figures.heat_map",
    "investigate": "course.cases.page",
    "kernel_seconds": "course.machine",
    "linear_inputs": "course.listening",
    "listing": "course.records",
    "load_record": "course.records",
    "machine_line": "course.machine",
    "parts_of": "course.records",
    "product_rates": "course.machine",
    "recorded": "course.records",
    "roofline": "figures.roofline",
    "sets_of_arrays": "course.machine",
    "show_case": "course.cases.page",
    "show_exercises": "course.exercise_page",
    "show_source": "course.source",
    "timed": "course.machine",
    "timeline": "figures.timeline",
    "typed_debugger": "course.debugging",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minllm.course' has no attribute {name!r}")
    return getattr(import_module(f"minllm.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
