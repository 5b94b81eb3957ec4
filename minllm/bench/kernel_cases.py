"""The cases of `minllm bench kernels`: every kernel of the package, every rung of its ladders."""

from minllm.bench.kernel_case import KernelCase, case_of
from minllm.catalogue import measured_launches
from minllm.runtime.dry_run import Signature

# folders of minllm/kernels, and "quantised" for GEMMs with quantised weights
STAGES = ("matmul", "attention", "embedding", "normalization", "rope", "activation", "kv", "sampling", "slots", "experts", "quantised")


def kernels_of_record(compute_capability: tuple[int, int]) -> list[Signature]:
    """The kernels of the record's cases and of their rivals, to be compiled before they are measured."""
    launches = [one for row in measured_launches() if not row.for_tuning for one in (row.launch, row.rival) if one]
    return list(dict.fromkeys(kernel for launch in launches for kernel in launch.kernels(compute_capability)))


def kernel_cases(stages: tuple[str, ...] = STAGES) -> list[KernelCase]:
    """The cases of these stages, in the order in which they run and are recorded."""
    return [case for case in map(case_of, measured_launches()) if case.stage in stages]
