"""A run of the workload under torch's profiler, which also records kernels that torch does not launch.

The profiler records through CUPTI, which makes launches more expensive on the host: a graph of 138 kernels takes about half a millisecond
more. If the GPU's work does not hide the host's, as with small models, the traced run is slower and idles more than the measured one.
"""

import gzip
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from minllm.bench.serving.profile.steps import Event, StepSize, TracedStep, traced_steps
from minllm.bench.serving.run import serve
from minllm.bench.serving.workload import BenchRequest
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.scheduling.step import Step
from minllm.errors import InvalidOptionError

COPIES = ("gpu_memcpy", "gpu_memset")  # categories of events in the trace
SUFFIX = ".pt.trace.json.gz"  # the suffix of torch's and vLLM's traces
SIZES = "minllm_steps"  # the entry of minllm's traces with [decodes, prompts, tokens] of every step


def check_profiler(device: str, option: str = "--profile") -> None:
    """Raises InvalidOptionError unless torch can trace this device; option: what asked for a trace."""
    if device != "cuda":
        raise InvalidOptionError(f"{option} traces the kernels of a GPU, and this run computes on the CPU: leave the option out.")
    try:
        import torch
    except ImportError as error:
        raise InvalidOptionError(f"{option} needs PyTorch's profiler ({error}): pip install torch, or leave the option out.") from None
    if not torch.cuda.is_available():
        raise InvalidOptionError(f"{option}: this PyTorch sees no GPU. Install one with CUDA, or leave the option out.")


def profiled(engine: Any, requests: list[BenchRequest], max_concurrency: int | None, path: Path) -> list[TracedStep]:
    """Serve the requests under the profiler, write the trace for Perfetto (ui.perfetto.dev) to `path`, return its steps."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.init()
    with tempfile.TemporaryDirectory() as folder:
        with noted_sizes(engine.core.runner) as sizes, profile(activities=[ProfilerActivity.CUDA]) as profiler:
            serve(engine, requests, max_concurrency=max_concurrency)
            torch.cuda.synchronize()
        exported = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(exported))
        trace = json.loads(exported.read_bytes())
    trace[SIZES] = sizes
    with gzip.open(path, "wt", compresslevel=5, encoding="utf-8") as file:
        json.dump(trace, file)
    return steps_of(trace)


@contextmanager
def noted_sizes(runner: ModelRunner) -> Iterator[list[StepSize]]:
    """A context with a list of the sizes of all forwards: one per step, or several with a residual window."""
    sizes, execute = [], runner.execute

    def noting(step: Step) -> Any:
        for spans in runner.forwards(step):
            prompts = sum(not span.decodes for span in spans)
            sizes.append(StepSize(len(spans) - prompts, prompts, sum(span.length for span in spans)))
        return execute(step)

    runner.execute = noting
    try:
        yield sizes
    finally:
        runner.execute = execute


def steps_of(trace: dict[str, Any]) -> list[TracedStep]:
    """The steps of a trace written by `profiled`, or of any Chrome trace with an entry minllm_steps."""
    found = [event for event in trace["traceEvents"] if event.get("cat") in ("kernel", *COPIES)]
    first = min((event["ts"] for event in found), default=0.0)
    events = [Event(event["name"], event["ts"] - first, event["ts"] - first + event["dur"], event["cat"] in COPIES) for event in found]
    return traced_steps(events, [StepSize(*size) for size in trace[SIZES]])
