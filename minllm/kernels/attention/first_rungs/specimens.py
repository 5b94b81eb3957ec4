"""Specimens of the first rungs of attention: scores in memory, then online softmax with its state in memory."""

from minllm.kernels.arguments import FLOAT_DTYPES
from minllm.kernels.attention.common.specimen_types import BATCH, BLOCK_SIZE, inputs, states
from minllm.kernels.attention.first_rungs import flash_attention_1, materialized, materialized_projection
from minllm.kernels.specimen import FLOAT32, INT32, Specimen, array


def specimens():
    """All kernels of the first rungs."""
    for dtype in FLOAT_DTYPES:
        yield from materialized_specimens(dtype.name)
        yield from flash_attention_1_specimens(dtype.name)


def materialized_specimens(dtype):
    """The kernels of the first rung and of the lesson's decoder: 128 threads per block; 8 blocks are half of an SM's warps."""
    vector, table, scores = array(INT32, 1), array(INT32, 2), array(FLOAT32, 3)
    rows, cache, weight = array(dtype, 3), array(dtype, 4), array(dtype, 2)
    kernels = {
        "transpose": (materialized.make_transpose_kernel(BLOCK_SIZE), (cache, table, vector, cache)),
        "scores": (materialized.scores_kernel, (rows, cache, scores, vector, vector, INT32)),
        "softmax": (materialized.softmax_kernel, (scores, vector, vector, FLOAT32, INT32)),
        "weighted_values": (materialized.make_weighted_values_kernel(BLOCK_SIZE), (scores, cache, rows, vector, vector, table, INT32)),
        "fill": (materialized_projection.fill_new_key_value_kernel, (rows, vector, vector, weight, weight, cache, cache)),
        "project": (materialized_projection.project_latest_kernel, (rows, vector, weight, weight, weight, rows, cache, cache)),
    }
    for name, (kernel, arguments) in kernels.items():
        if name != "softmax" or dtype == "float32":  # scores are always float32
            yield Specimen(f"attention/materialized/{name}/{dtype}", kernel, arguments, materialized.THREADS, blocks=8)


def flash_attention_1_specimens(dtype):
    """FlashAttention-1: one query row per warp, the state in memory."""
    for head_dim in (64, 128, 256):
        kernel, threads, shared_bytes = flash_attention_1.make_kernel(head_dim, BLOCK_SIZE)
        arguments = (*inputs(dtype), *states(2), array(dtype, 3), *BATCH, FLOAT32, INT32)
        yield Specimen(f"attention/flash_attention_1/{head_dim}/{dtype}", kernel, arguments, threads, 1, shared_bytes)
