"""All specimens of the package: every kernel variant, once. The compile gate and `minllm inspect` read only this list."""

import functools
import importlib
import itertools
from collections.abc import Iterator
from dataclasses import replace

from minllm.kernels import attention, matmul
from minllm.kernels.specimen import Specimen
from minllm.runtime.dry_run import Signature

STAGES = (
    *("embedding", "normalization", "rope", "activation", "kv", "matmul", "attention", "sampling"),
    *("split_vocabulary", "slots", "speculation", "all_reduce"),
)
TABLES = {"matmul": matmul.VARIANTS, "attention": attention.VARIANTS}  # stages with several variants


@functools.cache
def all_specimens() -> dict[str, Specimen]:
    """{name: specimen} of all stages, in the order of a forward pass. Imports all kernels, compiles none.

    A stage lists a kernel twice if two kinds of GPU choose the same shape; it is compiled for the targets of both.
    """
    found: dict[str, Specimen] = {}
    for specimen in itertools.chain.from_iterable(map(specimens_of, STAGES)):
        before = found.get(specimen.name, specimen).targets
        found[specimen.name] = replace(specimen, targets=tuple(sorted({*before, *specimen.targets})))
    return found


def signatures_for(target: tuple[int, int]) -> list[Signature]:
    """The kernels and argument types to compile for a target, one per specimen."""
    return [Signature(one.kernel, tuple(one.arguments)) for one in all_specimens().values() if target in one.targets]


def specimens_of(stage: str) -> Iterator[Specimen]:
    """The specimens of one stage: of all variants in its table, or of its module `specimens`."""
    return (TABLES.get(stage) or importlib.import_module(f"minllm.kernels.{stage}.specimens")).specimens()
