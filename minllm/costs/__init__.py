"""What a forward pass must move and compute, counted from the model's shape: the floor of a measurement.

A matrix [out, in] that T tokens pass through costs 2 * T * out * in floating-point operations (a multiply and an add) and, read once for
all of them, out * in numbers of memory traffic. With one token there are two operations per number read, far below the hundreds
that a GPU could do in that time: decoding one sequence is bound by memory, and its floor is bytes / bandwidth. A prefill of thousands of
tokens reads the same bytes for thousands of times the work, and its floor is operations / tensor-core rate.

    parameters.py      how many numbers a model has, and the bytes of its weights and of a token's keys and values
    stages.py          every stage of a forward by itself: bytes of weights, cache and activations, operations (models/parts/ has the terms)
    steps.py           the sum over the stages: a decode step and a prefill, the floors that everything else uses
    step_time.py       what a decode step takes rather, by format of the weights: fitted to recorded products
    residual_window.py what a residual window of unquantised tokens adds
    cache_policies.py  the memory that each policy sets aside for a sequence, and how much of it holds no token
    serving.py         a mixed step of decodes and prompts, and from it the load that a server bears: utilisation, TPOT, waiting, the knee
    swap.py            whether a preempted sequence is better swapped to the host or computed again
    parallel.py        one GPU's part of a tensor-parallel model, and the bytes of its all-reduces
    all_reduce.py      the time of an all-reduce, by algorithm, from the latency and bandwidth of a link
    measured_all_reduces.py    the times that were measured, of NCCL and of our own kernels
    pipeline.py        one GPU's part of a pipeline, and how long a step takes that passes through its stages

Source: the roofline model of Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", CACM 52 (2009), section 3.
"""

from minllm.costs.cache_policies import AllocationPolicy, batch_bytes, wasted_share
from minllm.costs.parallel import all_reduce_bytes, shard
from minllm.costs.parameters import (
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
    "all_reduce_bytes",
    "batch_bytes",
    "coded_tokens",
    "decode_stages",
    "decode_step",
    "head_parameters",
    "kv_bytes_per_token",
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
