"""All specimens of the package: every kernel variant, once. The compile gate and `minllm inspect` read only this list."""

import functools
import importlib

from minllm.kernels.specimen import Specimen

STAGES = ("embedding", "normalization", "rope", "activation", "kv", "matmul", "attention", "sampling")


@functools.cache
def all_specimens() -> dict[str, Specimen]:
    """{name: specimen} of all stages, in the order of a forward pass. Imports all kernels, compiles none."""
    found = [specimen for stage in STAGES for specimen in importlib.import_module(f"minllm.kernels.{stage}.specimens").specimens()]
    return {specimen.name: specimen for specimen in found}
