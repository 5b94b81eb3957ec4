"""Every small kernel with arguments of one dtype: what the compilation test compiles, by name."""

import numpy as np

from minllm.kernels.activation.gelu import gelu_kernel, gelu_vector_kernel
from minllm.kernels.activation.silu import silu_and_multiply_kernel, silu_and_multiply_vector_kernel
from minllm.kernels.embedding.lookup import embedding_kernel, embedding_vector_kernel
from minllm.kernels.kv.append import append_kernel, append_vector_kernel
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append_kernel
from minllm.kernels.normalization.layer_norm import layer_norm_kernel, layer_norm_vector_kernel
from minllm.kernels.normalization.rms_norm import rms_norm_kernel, rms_norm_vector_kernel
from minllm.kernels.normalization.row import HELD
from minllm.kernels.rope.rotate import rope_kernel

INDICES, TABLE = np.zeros(1, np.int32), np.zeros((1, 1), np.float32)
EPSILON = 1e-5


def compilations(dtype):
    """{name: (kernel, arguments)}; where a constant decides the registers, the largest that a launcher uses."""
    line, matrix, heads = (np.zeros((1,) * rank, dtype) for rank in (1, 2, 3))
    pieces = HELD * dtype.itemsize // 16
    qkv = (matrix, INDICES, INDICES, TABLE, line, line, heads, heads, heads, EPSILON)
    norm = (matrix, matrix, line, matrix, EPSILON)
    return {
        "embedding": (embedding_kernel, (INDICES, matrix, INDICES, matrix, 1, matrix)),
        "embedding, vectors": (embedding_vector_kernel(dtype, False), (INDICES, matrix, INDICES, matrix, matrix)),
        "embedding with positions, vectors": (embedding_vector_kernel(dtype, True), (INDICES, matrix, INDICES, matrix, matrix)),
        "RMSNorm": (rms_norm_kernel, (matrix, matrix, 1, line, matrix, EPSILON)),
        "RMSNorm, one vector": (rms_norm_vector_kernel(dtype, 1, True), norm),
        "RMSNorm, most vectors": (rms_norm_vector_kernel(dtype, pieces, True), norm),
        "LayerNorm": (layer_norm_kernel, (matrix, matrix, 1, line, line, 1, matrix, EPSILON)),
        "LayerNorm, most vectors": (layer_norm_vector_kernel(dtype, pieces, True, True), (matrix, matrix, line, line, matrix, EPSILON)),
        "SiLU": (silu_and_multiply_kernel, (matrix, matrix)),
        "SiLU, vectors": (silu_and_multiply_vector_kernel(dtype), (matrix, matrix)),
        "GELU": (gelu_kernel("none"), (matrix, matrix)),
        "GELU, vectors": (gelu_vector_kernel("none", dtype), (matrix, matrix)),
        "GELU by tanh, vectors": (gelu_vector_kernel("tanh", dtype), (matrix, matrix)),
        "RoPE": (rope_kernel, (heads, INDICES, TABLE, heads, 1)),
        "append": (append_kernel, (matrix, matrix, matrix, matrix, INDICES)),
        "append, vectors": (append_vector_kernel, (matrix, matrix, matrix, matrix, INDICES, 8)),
        "QKV step, 64": (qkv_rope_append_kernel(64, 64, False, False), qkv),
        "QKV step, 256 with norm": (qkv_rope_append_kernel(256, 256, False, True), qkv),
        "QKV step, 80 with norm, interleaved": (qkv_rope_append_kernel(80, 40, True, True), qkv),
    }
