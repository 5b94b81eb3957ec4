"""Which GEMM variant to use for a number of rows of x: inflection points measured once per GPU and then looked up.

The same weight is multiplied by 1 row or by 4,000. For few rows threads that load and multiply are fastest (gemv), then tensor cores with x
on their small side (flat), then tensor cores with x on their large side ("many rows": wgmma or tensor_core). The crossover points depend on
the weight's shape and on the GPU, and a model has four or five weight shapes. So a table has one line per shape:

    rows < flat_from                 gemv
    flat_from <= rows < many_from    flat
    many_from <= rows                many rows

`minllm tune` measures the table and stores it in the user's cache; the H200's comes with the package; other GPUs use the default. A shape
that is not in the table uses the line of the nearest shape.

Source: FlashDecoding++, section 5, "heuristic dataflow with hardware resource adaption".
"""

import functools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from minllm.errors import InvalidOptionError
from minllm.runtime.disk_cache import cache_directory

SHIPPED = Path(__file__).parent / "tables"
NEVER = 1 << 30  # stands for "from no number of rows": the variant is never chosen


class Inflection(NamedTuple):
    """For a weight [n, k]: the rows of x from which flat beats gemv, and those from which the many-row variant beats flat."""

    n: int
    k: int
    flat_from: int
    many_from: int


DEFAULT = (Inflection(n=4096, k=4096, flat_from=3, many_from=65),)


@functools.lru_cache(4096)
def choose_dataflow(m: int, n: int, k: int, table: Sequence[Inflection]) -> str:
    """The variant for x [m, k] and weight [n, k], by the nearest shape of the table: "gemv", "flat" or "many rows"."""
    nearest = min(table, key=lambda line: abs(math.log(line.n / max(n, 1))) + abs(math.log(line.k / max(k, 1))))
    if m < nearest.flat_from:
        return "gemv"
    return "flat" if m < nearest.many_from else "many rows"


def inflection_points(rows: Sequence[int], gemv: Sequence[float | None], flat: Sequence[float], many: Sequence[float]) -> tuple[int, int]:
    """(flat_from, many_from) that minimise the times at these `rows` (ascending); a time of None means that gemv does not support them.

    Times count relative to the best at the same number of rows, so that short GEMMs weigh as much as long ones; one noisy time moves
    a point by at most one step.
    """
    best = [min(time for time in times if time is not None) for times in zip(gemv, flat, many, strict=True)]
    points = [*rows, NEVER]

    def loss(flat_from, many_from):
        total = 0.0
        for i, m in enumerate(rows):
            time = gemv[i] if m < flat_from else flat[i] if m < many_from else many[i]
            total += math.inf if time is None else time / best[i]
        return total

    pairs = [(flat_from, many_from) for flat_from in points for many_from in points if flat_from <= many_from]
    return min(pairs, key=lambda pair: loss(*pair))


def file_name(gpu: str) -> str:
    """The file name of a GPU's table, from the driver's name: "NVIDIA H200" -> "nvidia-h200.json"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def cache_file(gpu: str) -> Path:
    """The file in which `minllm tune` stores the table of a GPU, beside the compiled kernels."""
    return cache_directory().parent / "dataflow" / file_name(gpu)


def as_json(gpu: str, table: Sequence[Inflection]) -> str:
    """A table in its file format, one line per shape."""
    lines = ",\n".join(f"  {json.dumps(line._asdict())}" for line in table)
    return f'{{"gpu": {json.dumps(gpu)}, "shapes": [\n{lines}\n]}}\n'


def read_table(path: Path) -> tuple[Inflection, ...]:
    """The table in a file. Raises InvalidOptionError with a description if it is malformed."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["shapes"]
        table = tuple(Inflection(*(int(line[name]) for name in Inflection._fields)) for line in lines)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidOptionError(f"{path} is no table of matrix products ({error!r}): delete it, or run minllm tune again.") from None
    if not table or any(line.n < 1 or line.k < 1 or not 1 <= line.flat_from <= line.many_from for line in table):
        raise InvalidOptionError(f"{path}: it needs shapes, each with 1 <= flat_from <= many_from; delete it, or run minllm tune again.")
    return table


@functools.cache
def table_of(gpu: str | None) -> tuple[Inflection, ...]:
    """The table of a GPU, by the driver's name: the locally tuned one, else the packaged one, else the default."""
    if gpu is not None:
        for path in (cache_file(gpu), SHIPPED / file_name(gpu)):
            if path.exists():
                return read_table(path)
    return DEFAULT
