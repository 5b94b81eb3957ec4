"""The page about producer and consumers: its record is today's run, and its stages go through the rounds that a tracer counts."""

import json

import ml_dtypes
import numpy as np

from minllm.kernels.matmul.ladder.warp_specialized import matmul_warp_specialized
from minllm.sim import tracing
from tests.javascript.modules import JAVASCRIPTS, needs_javascript, run
from tools import write_pipeline_run

RUN = json.loads((JAVASCRIPTS / "pipeline-run.json").read_text(encoding="utf-8"))


def test_the_record_is_what_the_simulator_does_today():
    text = write_pipeline_run.run_text(write_pipeline_run.record())
    assert text == write_pipeline_run.RUN.read_text(encoding="utf-8"), "run tools/write_pipeline_run.py"


def traced_rounds() -> list:
    """The rounds of the stages, in order of their first copy, from the tracer and not from the record."""
    x, weight = (np.ones((rows, RUN["depth"] * RUN["steps"]), ml_dtypes.bfloat16) for rows in (RUN["rows"], RUN["columns"]))
    with tracing() as traces:
        matmul_warp_specialized(x, weight, np.empty((RUN["rows"], RUN["columns"]), ml_dtypes.bfloat16))
    return traces[0].stages


@needs_javascript
def test_stages_go_through_the_rounds_that_the_tracer_counts():
    (states,) = run("pipeline_cases.mjs", "pipeline-states.js", [RUN])
    assert len(states) == len(RUN["events"]) + 1
    begun = []
    for stage in range(RUN["stages"]):
        seen = [states[0]["stages"][stage]["state"]]
        for place, state in enumerate(states):
            if state["stages"][stage]["state"] != seen[-1]:
                seen.append(state["stages"][stage]["state"])
                begun += [(place, stage, state["stages"][stage]["round"])] if seen[-1] == "filling" else []
        rounds = len(range(stage, RUN["steps"], RUN["stages"]))
        assert seen == ["empty"] + rounds * ["filling", "full", "in use", "empty"]
    assert [(stage, number) for _, stage, number in sorted(begun)] == [(one.stage, one.round) for one in traced_rounds()]


@needs_javascript
def test_nobody_goes_on_before_the_phase_has_completed():
    (states,) = run("pipeline_cases.mjs", "pipeline-states.js", [RUN])
    waits = 0
    for (kind, warp, barrier, phase, _, after), before, now in zip(RUN["events"], states[:-1], states[1:], strict=True):
        if kind == "wait":
            waits += 1
            assert after[barrier][0] <= phase and now["warps"][warp] == [barrier, phase]
        if kind == "pass":
            assert after[barrier][0] > phase and now["warps"][warp] is None
        if kind == "copy":  # the stage is empty, or another copy fills it
            assert before["stages"][barrier]["state"] in ("empty", "filling")
    assert waits > 10 and states[-1]["warps"] == [None] * (RUN["producer"] + 1)
