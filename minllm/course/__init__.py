"""The course's machinery: exercises and their checks, detective cases, and building blocks of lessons.

Lessons import from here: the package's own source on the page, recorded measurements, predictions, and figures for both colour schemes;
see lessons/README.md. The engine does not import the course, and each part of it is imported only on first use.
"""

from importlib import import_module

_HOMES = {
    "Bar": "figures.bars",
    "Dot": "figures.roofline",
    "Figure": "figures.figure",
    "Measurement": "records",
    "Prediction": "prediction",
    "Span": "figures.timeline",
    "accesses": "figures.accesses",
    "bars": "figures.bars",
    "curves": "figures.curves",
    "has_gpu": "machine",
    "heat_map": "figures.heat_map",
    "investigate": "cases.page",
    "kernel_seconds": "machine",
    "load_record": "records",
    "machine_line": "machine",
    "recorded": "records",
    "roofline": "figures.roofline",
    "sets_of_arrays": "machine",
    "show_case": "cases.page",
    "show_docstring": "source",
    "show_exercises": "exercise_page",
    "show_source": "source",
    "timed": "machine",
    "timeline": "figures.timeline",
    "typed_debugger": "debugging",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import a name on first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'minllm.course' has no attribute {name!r}")
    return getattr(import_module(f"minllm.course.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
