"""The stage of a step to which a kernel belongs, by the kernel's name in a trace.

Numba names a kernel after its module, "minllm::kernels::slots::advance::advance_kernel[...", so the folder gives the stage. A fused kernel
counts as the stage that takes most of its time: a GEMM that also normalises or rotates is a GEMM.
"""

PREFIX = "minllm::kernels::"
GEMM, PROMPTS, DECODES, OTHER = "GEMM", "attention of prompts", "attention of decodes", "other kernels"
NORM, APPEND, SAMPLING, SLOTS = "normalization", "RoPE and append", "sampling", "batch arrays"

# {prefix of a kernel's name after PREFIX: stage}; the longest match counts
STAGES = {
    "matmul::": GEMM,
    "experts::": "experts",
    "attention::": PROMPTS,
    "attention::split_": DECODES,
    "attention::common::merge_states::": DECODES,
    "normalization::": NORM,
    "kv::": APPEND,
    "rope::": APPEND,
    "activation::": "activation",
    "elementwise::gelu_and_multiply::": "activation",
    "elementwise::in_place::": "factors and soft caps",
    "embedding::": "embedding",
    "split_vocabulary::": SAMPLING,
    "split_vocabulary::lookup::": "embedding",
    "sampling::": SAMPLING,
    "slots::": SLOTS,
    "speculation::": "speculation",
    "all_reduce::": "all-reduce",
    "all_reduce::gemv_low_latency::gemv_send_kernel": GEMM,
    "encoding::": "encoding of weights",
}
ORDER = (*dict.fromkeys(STAGES.values()), OTHER)
WRITE_SLOTS = PREFIX + "slots::write_slots::"  # writes changes by the host into the slots; a step's forward begins after it
ADVANCE = PREFIX + "slots::advance::"  # the last kernel of every step


def stage_of(kernel: str) -> str:
    """The stage of a kernel; OTHER for a kernel that is not in the table."""
    name = kernel.removeprefix(PREFIX) if kernel.startswith(PREFIX) else ""
    return STAGES[max(found, key=len)] if (found := [prefix for prefix in STAGES if name.startswith(prefix)]) else OTHER
