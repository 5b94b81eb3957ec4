"""The cases of `minllm bench kernels`: every kernel of the package, every rung of its ladders."""

from minllm.bench.kernel_case import KernelCase, case_of
from minllm.catalogue import measured_launches

# folders of minllm/kernels, and "quantised" for GEMMs with quantised weights
STAGES = ("matmul", "attention", "embedding", "normalization", "rope", "activation", "kv", "sampling", "slots", "experts", "quantised")


def kernel_cases(stages: tuple[str, ...] = STAGES) -> list[KernelCase]:
    """The cases of these stages, in the order in which they run and are recorded."""
    return [case for case in map(case_of, measured_launches()) if case.stage in stages]
