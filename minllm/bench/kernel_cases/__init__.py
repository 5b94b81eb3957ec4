"""The cases of `minllm bench kernels`: every kernel of the package, every rung of its ladders."""

from minllm.bench.kernel_case import KernelCase, case_of
from minllm.bench.kernel_cases import quantized_attention, quantized_prefill, window_attention
from minllm.catalogue import measured_launches

# folders of minllm/kernels, and "quantised" for GEMMs with quantised weights
STAGES = ("matmul", "attention", "embedding", "normalization", "rope", "activation", "kv", "sampling", "slots", "quantised")


def kernel_cases(stages: tuple[str, ...] = STAGES) -> list[KernelCase]:
    """The cases of these stages, in the order in which they run and are recorded."""
    modules = (quantized_attention, window_attention, quantized_prefill)
    every = [case for module in modules for case in module.cases()]
    every += map(case_of, measured_launches())
    return [case for case in every if case.stage in stages]
