"""The cases of `minllm bench kernels`: every kernel of the package, every rung of its ladders."""

from minllm.bench.kernel_case import KernelCase
from minllm.bench.kernel_cases import attention, glue, matmul, projection, quantized_kv, sampling

STAGES = ("matmul", "attention", "embedding", "normalization", "rope", "activation", "kv", "sampling")  # folders of minllm/kernels


def kernel_cases(stages: tuple[str, ...] = STAGES) -> list[KernelCase]:
    """The cases of these stages, in the order in which they run and are recorded."""
    every = [*matmul.cases(), *attention.cases(), *projection.cases(), *glue.cases(), *quantized_kv.cases(), *sampling.cases()]
    return [case for case in every if case.stage in stages]
