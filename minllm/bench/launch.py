"""`minllm bench launch`: host cost of a kernel launch, by launch method and arguments.

    driver                 cuLaunchKernel with a prepared table of parameters: the lower bound
    minllm                 minllm's launch of a compiled kernel
    minllm, with checks    a launcher of the package, rms_norm, which checks shapes and dtypes before it launches
    numba-cuda             Numba's dispatcher
    in a graph             time per node of the replay of a graph of GRAPH_NODES such launches

The kernel does nothing, so that the GPU keeps up and its queue never fills. Only host time counts, from before the first launch of a series
to after the last, without waiting for completion. The result is the median of several series.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numba import cuda

from minllm.bench.kernel_case import MICROSECONDS, rounded
from minllm.bench.record import Row, new_record, stream, write_json
from minllm.kernels.normalization.rms_norm import rms_norm
from minllm.ops.protocol import Ops
from minllm.runtime.kernel import Launch, kernel
from minllm.runtime.parameters import parameter, write_parameters

LAUNCHES, SERIES, WARM_UP = 200, 21, 3  # the launch queue holds a thousand launches
GRAPH_NODES = 100
GRID, BLOCK = 16, 128
SCALARS = (1, 2, 3, 0.5)


def idle(x):
    """A kernel that does nothing with one array."""


def idle_with_many(a, b, c, d, e, f, g, h, i, j, k, x):
    """A kernel that does nothing with eight arrays, three ints and a float."""


FUNCTIONS = {1: idle, 8: idle_with_many}


def run(json_file: Path | None) -> None:
    """Measure, print, and write the record. Raises DeviceError without a GPU."""
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.device import current_device

    device, out = current_device(), stream(json_file)
    print(f"host time of a launch on a machine with one {device.name}, µs", file=out, flush=True)
    found = []
    for row in rows(CudaOps()):
        found.append(row)
        print(f"{row.case:24} {row.variant:24} {row.value:8.2f} {row.unit}", file=out, flush=True)
    record = new_record(device.name, {}, found)
    print(record.to_json() if str(json_file) != "-" else f"{len(found)} rows", file=out, flush=True)
    if json_file is not None:
        write_json(json_file, record)


def rows(ops: Ops) -> Iterator[Row]:
    """One row per launch method and number of arguments."""
    for count, function in FUNCTIONS.items():
        arrays = [ops.empty((16, 2048), np.float16) for _ in range(count)]
        scalars = () if count == 1 else SCALARS
        case = "1 array" if count == 1 else f"{count} arrays, {len(scalars)} scalars"
        ours = Launch(kernel(function), GRID, BLOCK, ops.stream)
        for way, call in ways(ops, ours, arrays, scalars):
            yield row(case, way, host_seconds(call, ops.core_stream))
        yield row(case, "in a graph", host_seconds(graph_of(ops, ours, arrays, scalars).launch, ops.core_stream) / GRAPH_NODES)
    x, residual, out = (ops.empty((16, 2048), np.float16) for _ in range(3))
    weight = ops.empty((2048,), np.float16)
    seconds = host_seconds(lambda: rms_norm(x, weight, out, epsilon=1e-5, residual=residual, stream=ops.stream), ops.core_stream)
    yield row("rms_norm", "minllm, with checks", seconds)


def row(case: str, way: str, seconds: float) -> Row:
    """One row of the record."""
    return Row("launch", case, way, rounded(1e6 * seconds), MICROSECONDS)


def ways(ops: Ops, ours: Launch, arrays: list[Any], scalars: tuple) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yields (name of a launch method, call that launches once)."""
    from cuda.bindings import driver

    ours(*arrays, *scalars)  # compiles
    types, values = zip(*map(parameter, (*arrays, *scalars)), strict=True)
    table = write_parameters(values)
    loaded = ours.kernel.loaded[types].function
    yield "driver", lambda: driver.cuLaunchKernel(loaded, GRID, 1, 1, BLOCK, 1, 1, 0, ops.stream, table, 0)
    yield "minllm", lambda: ours(*arrays, *scalars)
    yield "numba-cuda", numbas_own(ops, ours.kernel.function, arrays, scalars)


def numbas_own(ops: Ops, function: Callable, arrays: list[Any], scalars: tuple) -> Callable[[], None]:
    """A call that launches the function through Numba, with Numba's arrays and stream, configured once."""
    own = [cuda.device_array(array.shape, array.dtype) for array in arrays]
    configured = cuda.jit(function)[GRID, BLOCK, cuda.external_stream(ops.stream)]
    return lambda: configured(*own, *scalars)


def graph_of(ops: Ops, launched: Launch, arrays: list[Any], scalars: tuple) -> Any:
    """GRAPH_NODES launches, captured in a graph."""
    from minllm.runtime.graph import CapturedGraph

    return CapturedGraph(lambda: [launched(*arrays, *scalars) for _ in range(GRAPH_NODES)], ops.core_stream, ops.memory)


def host_seconds(call: Callable[[], Any], stream: Any) -> float:
    """Host seconds per call; the call launches and does not wait."""
    samples = []
    for _ in range(WARM_UP + SERIES):
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            call()
        samples.append((time.perf_counter() - start) / LAUNCHES)
        stream.sync()
    return statistics.median(samples[WARM_UP:])
