"""`minllm tune`: measures the fastest GEMM variant for each number of rows of x and each of a model's weight shapes, on this GPU.

Variants are timed as in `minllm bench kernels`, at every number of rows in ROWS; two inflection points per shape are kept (see
kernels/matmul/dataflow.py).
"""

import functools
import gc
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from minllm.bench.record import stream
from minllm.bench.timing import Clock, CudaClock, input_sets, median_seconds
from minllm.catalogue.noise import Noise
from minllm.errors import DeviceError, InvalidOptionError
from minllm.kernels.matmul.arguments import MOST_ROWS_OF_FLAT, MOST_ROWS_OF_GEMV
from minllm.kernels.matmul.choice import can_use_wgmma, choose_for_many_rows
from minllm.kernels.matmul.dataflow import NEVER, Inflection, as_json, cache_file, inflection_points, table_of
from minllm.kernels.matmul.variants import VARIANTS
from minllm.models.config import ModelConfig
from minllm.models.layout import layout_of
from minllm.models.shapes import find_config
from minllm.ops.protocol import Ops
from minllm.runtime.array_protocol import Array
from minllm.runtime.device import is_available

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
PRODUCTS = ("gemv", "flat", "many rows")
COLUMNS = "{:>14} {:>6} {:>9} {:>9} {:>9}  {}"


def run(model: str | None, shapes: Sequence[str], json_file: Path | None) -> None:
    """Measure, print a table, and store the points in `json_file`, by default the file that minllm reads.

    model: as for `minllm plan`; llama-3.1-8b if neither is given. shapes: weights as "28672x4096", outputs x inputs. Raises
    InvalidOptionError, and DeviceError without a GPU.
    """
    wanted = [parse_shape(text) for text in shapes]
    if model is not None or not wanted:
        wanted += model_shapes(find_config("llama-3.1-8b" if model is None else model, quantized=True)[1])
    if not is_available():
        raise DeviceError("minllm tune measures a GPU, and no usable NVIDIA GPU was found: run `minllm doctor` to see what is missing.")
    gpu, measure = measurement()
    target = cache_file(gpu) if json_file is None else json_file
    out = stream(json_file)
    print(f"Matrix products on {gpu}, µs of one launch:", file=out)
    print(COLUMNS.format("weight", "rows", *PRODUCTS, "fastest"), file=out, flush=True)
    table = [tuned(n, k, measure, out) for n, k in dict.fromkeys(wanted)]
    text = as_json(gpu, table)
    if str(json_file) == "-":
        print(text, end="")
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidOptionError(f"the table cannot be written to {target}: {error.strerror}; name another file with --json.") from None
    table_of.cache_clear()
    print(f"written to {target}", file=out)


def measurement() -> tuple[str, Callable[[int, int], Iterable[tuple[float | None, float, float]]]]:
    """(the name of the GPU, the function that measures a shape on it)."""
    from minllm.ops.cuda_ops import CudaOps
    from minllm.runtime.device import current_device

    device = current_device()
    return device.name, functools.partial(measure_shape, CudaOps("bfloat16"), CudaClock(), Noise(), device.l2_bytes)


def parse_shape(text: str) -> tuple[int, int]:
    """Parse a shape: (28672, 4096) for the text 28672x4096. Raises InvalidOptionError."""
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
    if not found or int(found[2]) % 8:
        problem = "K is a multiple of 8, or tensor cores cannot load its rows" if found else "write N x K as 28672x4096, outputs x inputs"
        raise InvalidOptionError(f"--shape {text} is not allowed: {problem}.")
    return int(found[1]), int(found[2])


def model_shapes(config: ModelConfig) -> list[tuple[int, int]]:
    """[outputs, inputs] of the weights of a decode step: the linear layers of one layer, and the head."""
    return list(dict.fromkeys(layout_of(config).matrices()))


def tuned(n: int, k: int, measure: Callable[[int, int], Iterable[tuple[float | None, float, float]]], out: Array) -> Inflection:
    """The inflection points of one shape [n, k]; prints its times."""
    times = []
    for m, found in zip(ROWS, measure(n, k), strict=True):
        times.append(found)
        best = min(time for time in found if time is not None)
        cells = ("" if time is None else f"{1e6 * time:.2f}" for time in found)
        print(COLUMNS.format(f"{n}x{k}" if m == ROWS[0] else "", m, *cells, PRODUCTS[found.index(best)]), file=out, flush=True)
    flat_from, many_from = inflection_points(ROWS, *zip(*times, strict=True))
    flat = "flat never" if flat_from == many_from else f"flat from {flat_from} rows"
    many = "many rows never" if many_from == NEVER else f"many rows from {many_from}"
    print(f"{n}x{k}: {flat}, {many}", file=out, flush=True)
    return Inflection(n, k, min(flat_from, MOST_ROWS_OF_FLAT + 1), min(many_from, MOST_ROWS_OF_FLAT + 1))


def measure_shape(ops: Ops, clock: Clock, noise: Noise, cache_bytes: int, n: int, k: int) -> Iterator[tuple[float | None, float, float]]:
    """For each of ROWS, seconds of (gemv, or None beyond its rows; flat; the variant for many rows), with weights in HBM."""
    sets = input_sets(n * k * ops.dtype.itemsize, cache_bytes)
    weights = [ops.array(noise.array((n, k), ops.dtype)) for _ in range(sets)]
    for m in ROWS:
        arrays = [(ops.array(noise.array((m, k), ops.dtype)), weight, ops.empty((m, n), ops.dtype)) for weight in weights]
        many_rows = VARIANTS[choose_for_many_rows(m, ops.dtype, can_use_wgmma(*arrays[0][:2]))]
        products = (VARIANTS["gemv"] if m <= MOST_ROWS_OF_GEMV else None, VARIANTS["flat"], many_rows)
        yield tuple(product and seconds_of(product, arrays, ops.stream, clock) for product in products)
    del weights, arrays
    gc.collect()  # frees gigabytes of arrays, and graphs that hold more
    ops.memory.trim()


def seconds_of(product: Callable[..., None], arrays: Sequence[tuple], stream: Any, clock: Clock) -> float:
    """Median seconds per launch of a GEMM variant; `arrays` has one (x, weight, out) per set of inputs."""
    return median_seconds([lambda a=a: product(*a, stream=stream) for a in arrays], clock)
