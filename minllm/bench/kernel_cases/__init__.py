"""The cases of `minllm bench kernels`: every kernel of the package, every rung of its ladders."""

from minllm.bench.kernel_case import KernelCase
from minllm.bench.kernel_cases import (
    attention,
    glue,
    matmul,
    projection,
    quantized_attention,
    quantized_kv,
    recent_tokens,
    sampling,
    slots,
    window_attention,
)

STAGES = ("matmul", "attention", "embedding", "normalization", "rope", "activation", "kv", "sampling", "slots")  # folders of minllm/kernels


def kernel_cases(stages: tuple[str, ...] = STAGES) -> list[KernelCase]:
    """The cases of these stages, in the order in which they run and are recorded."""
    modules = (matmul, attention, quantized_attention, window_attention, projection, glue, quantized_kv, recent_tokens, sampling, slots)
    every = [case for module in modules for case in module.cases()]
    return [case for case in every if case.stage in stages]
