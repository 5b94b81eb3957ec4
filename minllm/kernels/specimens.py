"""All specimens of the package: every kernel variant, once. The compile gate and `minllm inspect` read this list and no other."""

import functools
import importlib
from collections.abc import Iterator

from minllm.kernels import attention, matmul
from minllm.kernels.specimen import Specimen

STAGES = ("embedding", "normalization", "rope", "activation", "kv", "matmul", "attention", "sampling")
TABLES = {"matmul": matmul.VARIANTS, "attention": attention.VARIANTS}  # stages of several variants


@functools.cache
def all_specimens() -> dict[str, Specimen]:
    """{name: specimen} of all stages, in the order of a forward pass. Imports all kernels, compiles none."""
    return {specimen.name: specimen for stage in STAGES for specimen in specimens_of(stage)}


def specimens_of(stage: str) -> Iterator[Specimen]:
    """Those of one stage: of each variant in its table, or of its one list."""
    return (TABLES.get(stage) or importlib.import_module(f"minllm.kernels.{stage}.specimens")).specimens()
