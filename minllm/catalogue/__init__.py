"""Every launch of the package's kernels, described once (launch.py), a module a folder of minllm/kernels."""

import functools
import importlib
import itertools
from dataclasses import replace
from typing import Any

from minllm.catalogue.noise import SHORT, Noise
from minllm.runtime.dry_run import Signature

# In the order of a forward pass.
STAGES = (
    *("embedding", "normalization", "rope", "activation", "kv", "matmul", "attention", "sampling"),
    *("experts", "split_vocabulary", "slots", "speculation", "all_reduce", "elementwise", "encoding"),
)


def stage(name: str) -> Any:
    """The module that describes a stage's launches."""
    return importlib.import_module(f"minllm.catalogue.{name}")


@functools.cache
def machine_code() -> dict[str, Any]:
    """{name: MachineCode} of all stages, in the order of a forward pass. Imports all kernels, compiles none.

    A stage lists a kernel twice if two kinds of GPU choose the same shape; it is compiled for the targets of both.
    """
    found: dict[str, Any] = {}
    for one in itertools.chain.from_iterable(stage(name).compiled() for name in STAGES):
        before = found.get(one.name, one).targets
        found[one.name] = replace(one, targets=tuple(sorted({*before, *one.targets})))
    return found


@functools.cache
def small_launches() -> tuple[Any, ...]:
    """The Launches of odd sizes; one that a stage lists twice is in the first place."""
    return tuple({str(launch): launch for name in STAGES for launch in stage(name).small()}.values())


def signatures_for(target: tuple[int, int]) -> list[Signature]:
    """The kernels and argument types to compile for a target, one per MachineCode."""
    return [Signature(one.kernel, tuple(one.arguments)) for one in machine_code().values() if target in one.targets]


def odd_launches() -> list[Any]:
    """Further launches of odd sizes, of which a covering selection is enough (tests/covering.py)."""
    return [launch for name in STAGES for launch in getattr(stage(name), "odd", tuple)()]


def large_launches() -> list[Any]:
    """The Launches of the sizes of models, for GPUs."""
    return [launch for name in STAGES for launch in getattr(stage(name), "large", tuple)()]


def measured_launches() -> list[Any]:
    """The rows of `minllm bench kernels` that are launches of the catalogue."""
    return [row for name in STAGES for row in getattr(stage(name), "measured", tuple)()]


@functools.cache
def one_per_kernel() -> dict[Any, list[str]]:
    """{Launch: names of kernels} that together launch every kernel, of each variant and form of codes, whose traffic a formula gives.

    It is the first small launch of each, and those that say so (`counted`).
    """
    found, met = {}, set()
    for launch in small_launches():
        which = launch.shape.get("variant"), launch.shape.get("form")
        names = {one.name for one in launch.dry_run((9, 0)) if launch.counted or (one.name, which) not in met}
        arrays = launch.arrays(Noise(length=SHORT)) if names else {}
        if names := {name for name in names if launch.moved_by(name, arrays)}:
            found[launch] = sorted(names)
            met |= {(name, which) for name in names}
    return found
