"""Where the time of a decode step goes: a trace of replayed steps, kernel by kernel, beside the bytes that each kernel must read.

torch's profiler records when every kernel of a replay begins and ends. Kernels overlap (programmatic dependent launch), so a kernel's time
is what it adds: from the end of the kernel before it to its own end. These times add up to the step. What a kernel adds beyond the time to
read its bytes at the rate of a copy is its excess: latency, work that is bound by something else, or a machine that is partly idle.
"""

import itertools
import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from minllm.bench.serving.profile.stages import ADVANCE
from minllm.bench.serving.profile.steps import Event
from minllm.bench.step_parts import StepParts

REPLAYS = 12
SKIPPED = 4  # the first replays, which the profiler slows
HEAD = "| kernel | adds µs | begins before | MB | at the ceiling µs | excess µs |\n| --- | ---: | ---: | ---: | ---: | ---: |"


class KernelTime(NamedTuple):
    """The time of one kernel of a step, in microseconds, and the bytes that it must read."""

    name: str
    added: float  # from the end of the kernel before it to its own end
    early: float  # from its own beginning to the end of the kernel before it; negative after a gap
    moved: int


def traced_events(replay: Callable[[], object], finish: Callable[[], object]) -> list[Event]:
    """The kernels of REPLAYS replays in the order in which they end; finish() waits for them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    with tempfile.TemporaryDirectory() as folder:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(REPLAYS):
                replay()
            finish()
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_bytes())
    found = [Event(one["name"], one["ts"], one["ts"] + one["dur"]) for one in trace["traceEvents"] if one.get("cat") == "kernel"]
    return sorted(found, key=lambda event: event.end)


def steps_of_events(events: Sequence[Event], kernels: int) -> list[list[tuple[float, float]]]:
    """For each step of `kernels` kernels after the first, (added, early) of each; a step that lost kernels is left out."""
    ends = [i for i, event in enumerate(events) if event.name.startswith(ADVANCE)]
    steps = []
    for before, last in itertools.pairwise(ends):
        if last - before == kernels:
            pairs = itertools.pairwise(events[before : last + 1])
            steps.append([(event.end - previous.end, previous.end - event.begin) for previous, event in pairs])
    return steps


def kernel_times(events: Sequence[Event], parts: StepParts, moved: tuple[list[int], list[int]]) -> tuple[list[KernelTime], ...]:
    """The KernelTimes of (before the layers, a layer, after the layers): means over the layers of medians over the steps."""
    launches = [*parts.head, *itertools.chain(*parts.layers), *parts.tail]
    steps = steps_of_events(events, len(launches))[SKIPPED:]
    medians = [tuple(map(statistics.median, zip(*of_kernel, strict=True))) for of_kernel in zip(*steps, strict=True)]
    length, first = len(parts.layers[0]), len(parts.head)
    behind = first + length * len(parts.layers)
    head = [KernelTime(one.name, *medians[i], 0) for i, one in enumerate(parts.head)]
    tail = [KernelTime(one.name, *medians[behind + i], moved[1][i]) for i, one in enumerate(parts.tail)]
    layer = []
    for i, one in enumerate(parts.layers[-1]):
        added, early = (statistics.mean(values) for values in zip(*medians[first + i : behind : length], strict=True))
        layer.append(KernelTime(one.name, added, early, moved[0][i]))
    return head, layer, tail


def account(title: str, times: tuple[list[KernelTime], ...], layers: int, copy_tb_s: float) -> str:
    """A Markdown table: every kernel of a layer, their sum, and what comes before and after the layers."""
    head, layer, tail = times
    line = "| {} | {:.1f} | {} | {:.1f} | {:.1f} | {:.1f} |".format

    def of(name: str, added: float, moved: float, early: str = "") -> str:
        ideal = moved / copy_tb_s / 1e6
        return line(name, added, early, moved / 1e6, ideal, added - ideal)

    def total(name: str, kernels: Sequence[KernelTime], times: int = 1) -> str:
        return of(name, times * sum(one.added for one in kernels), times * sum(one.moved for one in kernels))

    lines = [of(one.name.removesuffix("_kernel"), one.added, one.moved, f"{one.early:.1f}") for one in layer]
    everything = [*head, *tail, *layer * layers]
    ends = [total("**a layer**", layer), total(f"{layers} layers", layer, layers), total("before the layers", head)]
    ends += [total("after the layers", tail), total("**the step**", everything)]
    return "\n".join([f"**{title}**\n", HEAD, *lines, *ends])
