"""`minllm bench report`: the core of the record, as one JSON that a reader can send. It takes two minutes, and no PyTorch.

A report holds the rate of a copy, whole decode steps and prefills of STEPS by the benchmark `step`, and one served list of requests by
`serve`. Its rows are the record's, so that GPUs compare row by row. Kernels are compiled first, on all cores, which takes minutes where few
cores have many to compile. A model that does not fit is left out. tools/reader_report.py makes a line of docs/gpus.md of it.
"""

import gc
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

from minllm.bench.random_model import load_random_weights
from minllm.bench.record import Row, console, write_rows
from minllm.bench.record_kernels import kernels_of_engines
from minllm.bench.serving.command import opened_engine
from minllm.bench.serving.comparisons import ServingBench
from minllm.bench.serving.report import rows as rows_of
from minllm.bench.serving.workload import REQUEST_LISTS, longest
from minllm.bench.step import REPLAYS, WARM_UP, StepBench
from minllm.bench.timing import CudaClock
from minllm.errors import DeviceError, OutOfMemoryError
from minllm.models.shapes import named_config
from minllm.runtime.compile_ahead import compile_ahead
from minllm.runtime.device import current_device, is_available
from minllm.weights.formats import WEIGHT_FORMATS

STEPS = (("llama-3.2-1b", ""), ("llama-3.1-8b", ""), ("llama-3.1-8b", "int4_g128"))  # (shape, format of the layers' weights or "")
BATCHES, CONTEXT, PROMPT = (1, 64), 1024, 2048
SERVED, REQUESTS = "llama-3.2-1b", "mixed-prompts"


def run(json_file: Path) -> None:
    """Measure, print a line per row, and write the report. Raises DeviceError without a GPU."""
    if not is_available():
        raise DeviceError(
            "minllm bench report measures an NVIDIA GPU of compute capability 7.5 or newer, and this machine has none that minllm can use: "
            "`minllm doctor` says what is missing. Neither a CPU nor the simulator can stand for one."
        )
    from minllm.bench.ceilings import copy_tb_s

    out, device = console(json_file), current_device()
    dtype = "bfloat16" if device.compute_capability >= (8, 0) else "float16"
    out.print(f"{device.name}: compiling kernels that the cache lacks")
    with compile_ahead(kernels_of_engines, (device, STEPS, dtype), device.compute_capability) as work:
        work.wait()
    ceilings: dict[str, float | None] = {"copy_tb_s": round(copy_tb_s(), 3), "bf16_tflops": None}
    out.print(f"a copy moves {ceilings['copy_tb_s']:.2f} TB/s, read plus written")
    found: list[Row] = []
    for name, measure in parts(dtype, ceilings).items():
        try:
            rows = measure()
        except OutOfMemoryError as error:
            out.print(f"{name} is left out: {error}")
            continue
        for row in rows:
            out.print(f"{row.benchmark}, {row.case}, {row.variant}: {row.value:,} {row.unit}")
        found += rows
        gc.collect()  # frees gigabytes
    write_rows(json_file, device.name, ceilings, found)


def parts(dtype: str, ceilings: dict[str, float | None]) -> dict[str, Callable[[], list[Row]]]:
    """{name: its measurement}, in order."""
    steps = {f"{model} {form}".strip(): partial(step_rows, model, form, dtype, ceilings) for model, form in STEPS}
    return {**steps, f"{REQUESTS}, {SERVED}": serving_rows}


def step_rows(model: str, weight_format: str, dtype: str, ceilings: dict[str, float | None]) -> list[Row]:
    """Decode steps, and of plain weights a prefill, of a shape with random weights, as graph replays."""
    from minllm.ops.cuda_ops import CudaOps

    ops, clock, found, form = CudaOps(dtype), CudaClock(), [], WEIGHT_FORMATS.get(weight_format)
    weights = load_random_weights(ops, named_config(model), form)
    for batch in BATCHES:
        tokens = max(CONTEXT + WARM_UP + REPLAYS, PROMPT if batch == 1 else 0)
        bench = StepBench(model, ops, clock, batch, tokens, ceilings, weight_format=form, weights=weights)
        found += [row for row in bench.decode_rows(CONTEXT, parts=False) if row.variant == "graph replay"]
        found += bench.prefill_rows(PROMPT, None)[1:] if batch == 1 and form is None else []
        del bench
        gc.collect()
        ops.memory.trim()
    return found


def serving_rows() -> list[Row]:
    """One list of requests, all at once."""
    workload = REQUEST_LISTS[REQUESTS]
    requests = workload.requests()
    case = f"{SERVED} (random weights), {REQUESTS}, {workload.num_prompts} requests"
    bench = ServingBench(lambda tried: opened_engine(SERVED, dict(device="cuda") | tried, longest(requests)), case, requests)
    return [row for result in bench.measure("default", [math.inf]) for row in rows_of(result)]
