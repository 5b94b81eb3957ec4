"""The page of the recorded step: its file is the trace as the tool reads it, its sums are those of bench/serving/profile."""

import json
import random

import pytest

from minllm.bench.serving.profile.stages import PREFIX, WRITE_SLOTS
from minllm.bench.serving.profile.steps import Event, StepSize, traced_step
from tests.javascript.modules import needs_javascript, run
from tools import write_step_timeline as tool

ROOMS = ["matmul::wgmma::", "attention::split_tensor_core::", "normalization::rms_norm::", "sampling::argmax::", "copy"]


def test_the_file_is_the_step_of_the_kept_trace():
    step = tool.chosen_step(tool.KEPT)
    assert tool.TIMELINE.read_text(encoding="utf-8") == tool.timeline_text(step, tool.WHAT, tool.RUN), "run tools/write_step_timeline.py"
    shown = json.loads(tool.TIMELINE.read_text(encoding="utf-8"))
    assert len(shown["events"]) == len(step.events) and {stage for _, stage, _, _ in shown["events"]} == set(shown["stages"])


def random_step(rng: random.Random):
    """Kernels that overlap, wait for each other or leave gaps, and copies between them."""
    begin, events = rng.uniform(0, 100), []
    now = begin
    for number in range(rng.randint(1, 30)):
        room = rng.choice(ROOMS) if number else WRITE_SLOTS.removeprefix(PREFIX)
        starts = max(begin, now + rng.uniform(-20, 10))
        ends = starts + rng.uniform(1, 40)
        events.append(Event("Memcpy" if room == "copy" else f"{PREFIX}{room}kernel", starts, ends, room == "copy"))
        now = max(now, ends)
    events.append(Event(f"{PREFIX}embedding::lookup::kernel", now - 1, now + 5))
    return traced_step(sorted(events, key=lambda event: event.end), StepSize(1, 0, 1), begin)


@needs_javascript
def test_what_kernels_add_is_what_the_package_counts():
    rng = random.Random(9)
    steps = [random_step(rng) for _ in range(100)]
    cases = [json.loads(tool.timeline_text(step, "", "")) for step in steps]
    for step, answer in zip(steps, run("step_times_cases.mjs", "step-times.js", cases), strict=True):
        assert answer["stages"] == pytest.approx(step.stages, abs=0.5)  # the file has hundredths of microseconds
        assert answer["idle"] == pytest.approx(step.idle_between + step.idle_within, abs=0.5)
