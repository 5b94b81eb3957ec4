"""Which product for how many rows of x: the inflection points of this GPU, measured once and looked up ever after.

The same weight is multiplied by 1 row or by 4,000. For few rows threads that load and multiply are fastest (gemv), then tensor cores with x
on their small side (flat), then tensor cores with x on their large side ("many rows": wgmma or tensor_core). Where one overtakes the other
depends on the weight's shape and on the GPU, and a model has four or five shapes of weights. So there is a table, with a line a shape:

    rows < flat_from                 gemv
    flat_from <= rows < many_from    flat
    many_from <= rows                many rows

`minllm tune` measures it and keeps it in the user's cache; that of the H200 comes with the package; elsewhere the default holds. A shape
that is not in the table is treated as the nearest one that is.

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
NEVER = 1 << 30  # rows from which a product is taken that never is


class Inflection(NamedTuple):
    """For a weight [n, k]: from how many rows of x flat is faster than gemv, and from how many the product of many rows is."""

    n: int
    k: int
    flat_from: int
    many_from: int


DEFAULT = (Inflection(n=4096, k=4096, flat_from=3, many_from=65),)


def choose_dataflow(m: int, n: int, k: int, table: Sequence[Inflection]) -> str:
    """"gemv", "flat" or "many rows" for x [m, k] and weight [n, k], by the nearest shape of the table."""
    nearest = min(table, key=lambda line: abs(math.log(line.n / max(n, 1))) + abs(math.log(line.k / max(k, 1))))
    if m < nearest.flat_from:
        return "gemv"
    return "flat" if m < nearest.many_from else "many rows"


def inflection_points(rows: Sequence[int], gemv: Sequence[float | None], flat: Sequence[float], many: Sequence[float]) -> tuple[int, int]:
    """(flat_from, many_from) with which the times at these `rows` (ascending) are the shortest; None where gemv does not take so many.

    Times count relative to the best at the same number of rows, so that short products weigh as much as long ones; one noisy time moves
    a point by a step at most.
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
    """The name of the table of a GPU, by the driver's name of it: "NVIDIA H200" -> "nvidia-h200.json"."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".json"


def cache_file(gpu: str) -> Path:
    """Where `minllm tune` keeps the table of a GPU, beside the compiled kernels."""
    return cache_directory().parent / "dataflow" / file_name(gpu)


def as_json(gpu: str, table: Sequence[Inflection]) -> str:
    """A table as its file holds it, a line a shape."""
    lines = ",\n".join(f"  {json.dumps(line._asdict())}" for line in table)
    return f'{{"gpu": {json.dumps(gpu)}, "shapes": [\n{lines}\n]}}\n'


def read_table(path: Path) -> tuple[Inflection, ...]:
    """The table in a file. Raises InvalidOptionError, which says what is wrong with it."""
    try:
        lines = json.loads(path.read_text())["shapes"]
        table = tuple(Inflection(*(int(line[name]) for name in Inflection._fields)) for line in lines)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidOptionError(f"{path} is no table of matrix products ({error!r}): delete it, or run minllm tune again.") from None
    if not table or any(line.n < 1 or line.k < 1 or not 1 <= line.flat_from <= line.many_from for line in table):
        raise InvalidOptionError(f"{path}: it needs shapes, each with 1 <= flat_from <= many_from; delete it, or run minllm tune again.")
    return table


@functools.cache
def table_of(gpu: str | None) -> tuple[Inflection, ...]:
    """The table of a GPU by the driver's name: what was tuned here, else what comes with minllm, else the default."""
    if gpu is not None:
        for path in (cache_file(gpu), SHIPPED / file_name(gpu)):
            if path.exists():
                return read_table(path)
    return DEFAULT
