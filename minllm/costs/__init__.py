"""The bytes and FLOPs of a forward pass, counted from the model's shape: a lower bound for its time.

A matrix [out, in] that multiplies T tokens costs 2 * T * out * in floating-point operations (a multiply and an add). It is read once for
all tokens, which moves out * in numbers. With one token there are two operations per number read, far below the hundreds that a GPU could
do in that time: decoding one sequence is memory-bound, and its lower bound, or floor, is bytes / bandwidth. A prefill of thousands of
tokens reads the same bytes for thousands of times the work, and its floor is operations / tensor-core rate.

    parameters.py      the number of parameters, and the bytes of weights and of a token's keys and values
    stages.py          the stages of a forward pass: bytes of weights, cache and activations, operations (models/parts/ has the terms)
    steps.py           the sum over the stages: a decode step and a prefill, the floors that everything else uses
    step_limits.py     how many sequences and tokens a step computes together by default
    step_time.py       predicted times of decode steps by weight format, fitted to recorded GEMMs
    residual_window.py the cost of a residual window of unquantised tokens
    local_blocks.py    the memory of a sequence if layers with a sliding window keep only their window
    cache_policies.py  the memory that each policy allocates for a sequence, and how much of it holds no token
    serving.py         a mixed step of decodes and prompts, and the load that a server can bear: utilisation, TPOT, waiting, the knee
    experts.py         the load of experts: how many a step reads, and how many tokens the fullest has
    swap.py            whether swapping a preempted sequence to the host is faster than recomputing it
    parallel.py        one GPU's part of a tensor-parallel model, and the bytes of its all-reduces
    all_reduce.py      the time of an all-reduce, by algorithm, from the latency and bandwidth of a link
    measured_all_reduces.py    measured times of all-reduces, by NCCL and by minllm's kernels
    pipeline.py        one GPU's part of a pipeline, and the time of a step in micro-batches

Source: the roofline model of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009), section 3.
"""

from minllm.costs.cache_policies import AllocationPolicy, batch_bytes, wasted_share
from minllm.costs.local_blocks import local_block_bytes
from minllm.costs.parallel import all_reduce_bytes, shard
from minllm.costs.parameters import (
    active_parameters,
    head_parameters,
    kv_bytes_per_token,
    layer_matrix_parameters,
    layer_vector_parameters,
    parameter_count,
    shape_of,
    ungrouped_kv_bytes_per_token,
    weight_bytes,
    widest_activation,
)
from minllm.costs.residual_window import coded_tokens, ring_tokens
from minllm.costs.serving import Load, StepCosts
from minllm.costs.stages import Stage, decode_stages, prefill_stages
from minllm.costs.steps import Cost, decode_step, prefill

__all__ = [
    "AllocationPolicy",
    "Cost",
    "Load",
    "Stage",
    "StepCosts",
    "active_parameters",
    "all_reduce_bytes",
    "batch_bytes",
    "coded_tokens",
    "decode_stages",
    "decode_step",
    "head_parameters",
    "kv_bytes_per_token",
    "local_block_bytes",
    "layer_matrix_parameters",
    "layer_vector_parameters",
    "parameter_count",
    "prefill",
    "prefill_stages",
    "ring_tokens",
    "shape_of",
    "shard",
    "ungrouped_kv_bytes_per_token",
    "wasted_share",
    "weight_bytes",
    "widest_activation",
]
