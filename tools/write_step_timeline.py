"""Write docs/assets/javascripts/step-timeline.json: the kernels of one decode step, from a trace of `minllm bench serve --profile DIR`.

    python tools/write_step_timeline.py                     from the trace that the tests keep: two layers of each step
    python tools/write_step_timeline.py DIR/1.pt.trace.json.gz --what "..." --run "NVIDIA H200, 2026-11-22, commit 0546c2e"

The step is the one of median time among those that decode a full batch.
"""

import argparse
import gzip
import json
from pathlib import Path

from minllm.bench.serving.profile.run import steps_of
from minllm.bench.serving.profile.stages import ORDER, PREFIX, stage_of
from minllm.bench.serving.profile.steps import TracedStep, steps_by_kind

ROOT = Path(__file__).parents[1]
TIMELINE = ROOT / "docs" / "assets" / "javascripts" / "step-timeline.json"
KEPT = ROOT / "tests" / "bench" / "serving" / "traced_steps.json"
WHAT = "a decode step of 256 sequences, 8B shape, bfloat16; of its 32 layers the trace keeps the first two"
RUN = "NVIDIA H200, 2026-11-22, commit 0546c2e, minllm bench serve --request-list mixed-prompts --profile"


def chosen_step(path: Path) -> TracedStep:
    """The full decode step of median time in a trace."""
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    steps = sorted(steps_by_kind(steps_of(json.loads(text)))["decode"], key=lambda step: step.time)
    return steps[len(steps) // 2]


def short_name(kernel: str) -> str:
    """A kernel's name without the package and its types: matmul.wgmma.wgmma."""
    parts = kernel.removeprefix(PREFIX).partition("[")[0].partition("(")[0].split("::")
    return ".".join(part for part in parts if part != "kernel")


def timeline_text(step: TracedStep, what: str, run: str) -> str:
    """The content of the file: events by their end, [name, stage, begin, end], in microseconds from the end of the step before."""
    events = [
        [event.name if event.is_copy else short_name(event.name), "copies" if event.is_copy else stage_of(event.name)]
        + [round(event.begin - step.begin, 2), round(event.end - step.begin, 2)]
        for event in step.events
    ]
    shown = {name for _, name, _, _ in events}
    head = dict(what=what, run=run, stages=[name for name in (*ORDER, "copies") if name in shown], time=round(step.time, 2))
    head["forward"] = round(step.forward - step.begin, 2)
    lines = ",\n  ".join(json.dumps(event) for event in events)
    return json.dumps(head).removesuffix("}") + f',\n "events": [\n  {lines}\n ]}}\n'


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", nargs="?", type=Path, default=KEPT)
    parser.add_argument("--what", default=WHAT, help="what the step computes")
    parser.add_argument("--run", default=RUN, help="machine, date, commit and command")
    options = parser.parse_args()
    TIMELINE.write_text(timeline_text(chosen_step(options.trace), options.what, options.run), encoding="utf-8")


if __name__ == "__main__":
    main()
