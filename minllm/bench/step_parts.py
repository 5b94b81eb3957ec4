"""The time that each kernel adds to a decode step, found by leaving out the kernels after it.

Events cannot time a single kernel of a few microseconds, and alone it behaves differently than in a step, where its prologue overlaps its
predecessor, which also leaves data in the caches. So whole steps are replayed: one in which every layer ends after its first kernel, one in
which it ends after its second, and so on. The difference of two such times, divided by the number of layers, is the time that the kernel
adds. Two other times are recorded: its time in a chain, the launches of all layers in sequence, and the time to read its bytes once.
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from minllm import costs
from minllm.bench.timing import Clock
from minllm.models.config import ModelConfig
from minllm.runtime.recording import RecordedLaunch
from minllm.weights.format import WeightFormat

WARM_UP, REPLAYS = 3, 15
# The GEMMs of a layer, in order, by the names of costs/.
PRODUCTS = ("qkv projection", "output projection", "MLP up projection", "MLP down projection")
PRODUCTS_WITH_EXPERTS = ("qkv projection", "output projection", "router", "expert up projections", "expert down projections")
# Beginnings of the names of their kernels.
GEMMS = ("matmul", "normed_router", "gate_up_gemv", "down_gemv", "grouped_gemm", "tensor_core_gemv", "mixed_input")


class StepParts(NamedTuple):
    """The launches of a decode step: before the layers, in each layer, after the layers."""

    head: list[RecordedLaunch]
    layers: list[list[RecordedLaunch]]
    tail: list[RecordedLaunch]


class PartTime(NamedTuple):
    """The times of one kernel, of every layer or before or after the layers, in seconds per launch."""

    place: str
    kernel: str
    added: float  # time that it adds to the step
    in_a_chain: float  # time in a chain of launches of the same kernel
    moved: int  # bytes that it must at least read; 0 if it is not memory-bound


def products_of(config: ModelConfig) -> tuple[str, ...]:
    """The GEMMs of a layer, in order."""
    return PRODUCTS_WITH_EXPERTS if config.num_experts else PRODUCTS


def divide(launches: Sequence[RecordedLaunch], config: ModelConfig) -> StepParts:
    """Divide the launches of a step into layers, each of which ends with its last GEMM, or the sum of the experts after it.

    The first layer has as many launches as the second: the first norm is before the layers if the later ones are not kernels of their own.
    A single layer begins after the embedding.
    """
    names = [launch.name for launch in launches]
    gemms = [i for i, name in enumerate(names) if is_gemm(name)]
    layers, each = config.num_hidden_layers, len(products_of(config))
    ends = [i + 1 + names[i + 1].startswith("combine") for i in gemms[each - 1 : layers * each : each]]
    embedded = next(i + 1 for i, name in enumerate(names) if name.startswith("embedding"))
    first = ends[0] - (ends[1] - ends[0]) if layers > 1 else embedded
    starts = [first, *ends[:-1]]
    return StepParts(list(launches[:first]), [list(launches[i:j]) for i, j in zip(starts, ends, strict=True)], list(launches[ends[-1] :]))


def is_gemm(name: str) -> bool:
    """Whether a kernel of this name multiplies by weights."""
    return name.startswith(GEMMS)


def moved_bytes(
    config: ModelConfig, parts: StepParts, batch: int, context: int, itemsize: int, kv_itemsize: float,
    weight_format: WeightFormat | None = None,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """Bytes of weights, keys and values that each kernel must read: (per kernel of a layer, per kernel after the layers)."""
    found = costs.decode_stages(config, batch, context, itemsize, kv_itemsize, weight_format=weight_format)
    stages = {stage.name: stage for stage in found}
    products = iter(products_of(config))

    def of_layer(name: str) -> int:
        if is_gemm(name):
            return stages[next(products)].weight_bytes // config.num_hidden_layers
        return stages["attention"].kv_bytes // config.num_hidden_layers if "split" in name and "merge" not in name else 0

    head = stages["lm_head"].weight_bytes
    return [of_layer(one.name) for one in parts.layers[0]], [head if is_gemm(one.name) else 0 for one in parts.tail]


def time_parts(parts: StepParts, moved: tuple[list[int], list[int]], clock: Clock) -> list[PartTime]:
    """The times of every kernel, in the order of the step."""

    def seconds(launches: Sequence[RecordedLaunch]) -> float:
        replay = clock.graph(launches)
        return statistics.median(clock.seconds([replay] * (WARM_UP + REPLAYS))[WARM_UP:])

    count, length = len(parts.layers), len(parts.layers[0])
    found, before = [], 0.0
    for i, one in enumerate(parts.head):
        until = seconds(parts.head[: i + 1])
        place = f"before the layers, kernel {i + 1} of {len(parts.head)}" if len(parts.head) > 1 else "before the layers"
        found.append(PartTime(place, one.name, until - before, seconds([one]), 0))
        before = until
    for i in range(length):
        until = seconds([*parts.head, *(one for layer in parts.layers for one in layer[: i + 1])])
        chain = seconds([layer[i] for layer in parts.layers]) / count
        found.append(PartTime(f"layer, kernel {i + 1} of {length}", parts.layers[-1][i].name, (until - before) / count, chain, moved[0][i]))
        before = until
    everything = [*parts.head, *(one for layer in parts.layers for one in layer)]
    for i, one in enumerate(parts.tail):
        everything.append(one)
        until = seconds(everything)
        place = f"after the layers, kernel {i + 1} of {len(parts.tail)}"
        found.append(PartTime(place, one.name, until - before, seconds([one]), moved[1][i]))
        before = until
    return found
