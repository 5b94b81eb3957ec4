"""A traced run as a table, as rows of the record, and as pictures."""

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from minllm.bench.record import Row
from minllm.bench.serving.profile.stages import ORDER, stage_of
from minllm.bench.serving.profile.steps import Event, StepSummary, TracedStep, steps_by_kind
from minllm.figures.bars import Bar, bars
from minllm.figures.figure import Figure
from minllm.figures.timeline import Span, timeline

COPIES, NUM_STEPS = "copies", 3  # name of the lane of copies; number of steps in a picture
BEFORE_US, AFTER_US = 100.0, 400.0  # time shown before and after the end of a step, in the picture of the gap
RESOLUTION = 1 / 400  # share of a picture's time; shorter kernels are merged with their neighbour, so that files stay small


def table(steps: Sequence[TracedStep], title: str) -> Table:
    """A table with a line per stage and a column per kind of step: microseconds and share of kernel time; then the idle time."""
    summaries = {kind: StepSummary.of(found) for kind, found in steps_by_kind(steps).items()}
    shown = Table(title=title, title_justify="left")
    shown.add_column("µs per step")
    for kind, summary in summaries.items():
        shown.add_column(f"{kind}: {summary.num_steps} steps of {summary.tokens:.0f} tokens", justify="right")
    for stage in ORDER:
        times = [summary.stages.get(stage, 0.0) for summary in summaries.values()]
        if any(times):
            cells = (f"{time:,.1f}  {100 * time / one.kernels:5.1f} %" for time, one in zip(times, summaries.values(), strict=True))
            shown.add_row(stage, *cells)
    for name in ("idle_between", "idle_within"):
        times = [getattr(summary, name) for summary in summaries.values()]
        cells = (f"{time:,.1f}  {100 * time / one.time:5.2f} %" for time, one in zip(times, summaries.values(), strict=True))
        shown.add_row("no kernel, " + ("between steps" if name == "idle_between" else "within"), *cells)
    shown.add_row("step", *(f"{summary.time:,.1f}         " for summary in summaries.values()))
    return shown


def rows(steps: Sequence[TracedStep], case: str, variant: str) -> list[Row]:
    """A row for each kind of step: the milliseconds of its kernels, with the share of every stage in them, and of the step without any."""
    found = []
    for kind, steps_of_kind in steps_by_kind(steps).items():
        summary = StepSummary.of(steps_of_kind)
        shares = {stage: round(100 * summary.stages[stage] / summary.kernels, 1) for stage in ORDER if stage in summary.stages}
        shares["no kernel"] = rounded(100 * (summary.idle_between + summary.idle_within) / summary.time)
        percent = {f"{name}, %": share for name, share in shares.items()}
        found.append(Row(f"serving, {kind} step by stage", case, variant, rounded(summary.kernels / 1e3), "ms", metrics=percent))
    return found


def rounded(value: float) -> float:
    """The value with three significant figures."""
    return float(f"{value:.3g}")


def write_pictures(steps: Sequence[TracedStep], title: str, prefix: Path) -> list[Path]:
    """Draw the stages of each kind of step, a few consecutive decode steps, and the gap between two; returns the files."""
    kinds = steps_by_kind(steps)
    figures = {f"{kind}-stages": shares(StepSummary.of(found), f"{title}: {kind} step") for kind, found in kinds.items()}
    if len(decodes := kinds.get("decode", [])) > NUM_STEPS:
        first = len(decodes) // 2 - 1
        some = decodes[first : first + NUM_STEPS]
        figures["decode-steps"] = lanes(some, some[0].begin, some[-1].end, title)
        figures["decode-gap"] = lanes(some, some[0].end - BEFORE_US, some[0].end + AFTER_US, title, some[0].end)
    paths = []
    for name, figure in figures.items():
        paths.append(prefix.with_name(f"{prefix.name}-{name}.svg"))
        paths[-1].write_text(figure.svg, encoding="utf-8")
    return paths


def shares(summary: StepSummary, title: str) -> Figure:
    """Bars of the stages, microseconds per step."""
    idle = {"no kernel": summary.idle_between + summary.idle_within}
    times = {stage: summary.stages[stage] for stage in ORDER if stage in summary.stages} | idle
    return bars([Bar(name, time, f"{100 * time / summary.time:.1f} %", colour_of(name)) for name, time in times.items()], "µs", title)


def lanes(steps: Sequence[TracedStep], begin: float, end: float, title: str, zero: float | None = None) -> Figure:
    """Kernels and copies from `begin` to `end` in microseconds, a lane per stage; time counts from `zero`, by default `begin`."""
    zero = begin if zero is None else zero
    shown = [event for step in steps for event in step.events if event.end > begin and event.begin < end]
    spans = []
    for lane in (*ORDER, COPIES):
        of_lane = [event for event in shown if (COPIES if event.is_copy else stage_of(event.name)) == lane]
        for event in joined(of_lane, RESOLUTION * (end - begin)):
            spans.append(Span(lane, max(event.begin, begin) - zero, min(event.end, end) - zero, "", colour_of(lane)))
    return timeline(spans, "µs", title)


def joined(events: Sequence[Event], shortest: float) -> list[Event]:
    """The events sorted by begin; one shorter than `shortest` is merged with the previous if the gap is also shorter."""
    found: list[Event] = []
    for event in sorted(events, key=lambda event: event.begin):
        if found and event.end - event.begin < shortest and event.begin - found[-1].end < shortest:
            found[-1] = found[-1]._replace(end=max(found[-1].end, event.end))
        else:
            found.append(event)
    return found


def colour_of(lane: str) -> int:
    """The index of a lane's colour; neighbours differ."""
    return (*ORDER, COPIES).index(lane) if lane in (*ORDER, COPIES) else 4
