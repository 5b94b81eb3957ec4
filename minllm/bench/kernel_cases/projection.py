"""The two kernels that compute queries, keys and values for materialized attention and fill its caches."""

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TB_S, TFLOP_S, KernelCase, Prepared, relative_error, some_of
from minllm.kernels.attention.first_rungs.materialized import THREADS
from minllm.kernels.attention.first_rungs.materialized_projection import fill_new_key_value_kernel, project_latest_kernel
from minllm.kernels.matmul.reference import matmul_reference
from minllm.runtime.kernel import launch

SAMPLE_FEATURES = 256
DTYPE = BFLOAT16


def fill_flops(tokens: int, hidden: int, key_value_features: int) -> int:
    """FLOPs of the two GEMMs for K and V."""
    return 2 * 2 * tokens * hidden * key_value_features


def project_bytes(hidden: int, query_features: int, key_value_features: int, itemsize: int) -> int:
    """Bytes of all weights, read once, of the token, and of q, k and v."""
    features = query_features + 2 * key_value_features
    return (features * hidden + hidden + features) * itemsize


def fill_case(tokens: int = 512, hidden: int = 4096, kv_heads: int = 8, head_dim: int = 128) -> KernelCase:
    """The kernel that computes K and V of one new prompt."""
    features = kv_heads * head_dim

    def prepare(ops, noise, sets):
        inputs, on_host = [], None
        for _ in range(sets):
            x, key, value = noise.array((1, tokens, hidden), DTYPE), *(noise.array((features, hidden), DTYPE) for _ in range(2))
            on_host = on_host or (x, value)
            caches = ops.empty((1, kv_heads, head_dim, tokens), DTYPE), ops.empty((1, tokens, kv_heads, head_dim), DTYPE)
            lens = ops.array(np.array([tokens], np.int32)), ops.array(np.array([0], np.int32))
            inputs.append(dict(arguments=(ops.array(x), *lens, ops.array(key), ops.array(value), *caches), value_cache=caches[1]))
        grid = (-(-features // THREADS), tokens, 1)
        rows, columns = some_of(tokens, 16, noise), some_of(features, SAMPLE_FEATURES, noise)
        expected = matmul_reference(on_host[0][0, rows].astype(np.float32), on_host[1][columns].astype(np.float32))
        return Prepared(
            [lambda a=a: launch(fill_new_key_value_kernel, grid, THREADS, a["arguments"], ops.stream) for a in inputs],
            inputs,
            result=lambda: ops.to_host(inputs[0]["value_cache"]).reshape(tokens, features),
            error=lambda out: relative_error(out[np.ix_(rows, columns)], expected),
        )

    set_bytes = (tokens * hidden + 2 * features * hidden + 2 * tokens * features) * DTYPE.itemsize
    case, work = f"{tokens}x{2 * features}x{hidden}, {DTYPE.name}", fill_flops(tokens, hidden, features)
    return KernelCase(
        "attention",
        "projection",
        case,
        variant="fill_new_key_value",
        dtype=DTYPE,
        unit=TFLOP_S,
        work=work,
        set_bytes=set_bytes,
        prepare=prepare,
    )


def project_case(hidden: int = 4096, heads: int = 32, kv_heads: int = 8, head_dim: int = 128, max_len: int = 64) -> KernelCase:
    """The kernel that computes q, k and v of one sequence's latest token."""
    features = heads * head_dim, kv_heads * head_dim, kv_heads * head_dim

    def prepare(ops, noise, sets):
        inputs, on_host = [], None
        for _ in range(sets):
            x, weights = noise.array((1, 1, hidden), DTYPE), [noise.array((width, hidden), DTYPE) for width in features]
            on_host = on_host or (x, weights[0])
            query = ops.empty((1, heads, head_dim), DTYPE)
            caches = ops.empty((1, kv_heads, head_dim, max_len), DTYPE), ops.empty((1, max_len, kv_heads, head_dim), DTYPE)
            lens = ops.array(np.array([max_len], np.int32))
            inputs.append(dict(arguments=(ops.array(x), lens, *map(ops.array, weights), query, *caches), query=query))
        grid = (-(-features[0] // THREADS), 1)
        columns = some_of(features[0], SAMPLE_FEATURES, noise)
        expected = matmul_reference(on_host[0][0].astype(np.float32), on_host[1][columns].astype(np.float32))
        return Prepared(
            [lambda a=a: launch(project_latest_kernel, grid, THREADS, a["arguments"], ops.stream) for a in inputs],
            inputs,
            result=lambda: ops.to_host(inputs[0]["query"]).reshape(1, features[0]),
            error=lambda out: relative_error(out[:, columns], expected),
        )

    work = project_bytes(hidden, features[0], features[1], DTYPE.itemsize)
    case = f"1x{sum(features)}x{hidden}, {DTYPE.name}"
    return KernelCase(
        "attention", "projection", case, variant="project_latest", dtype=DTYPE, unit=TB_S, work=work, set_bytes=work, prepare=prepare
    )


def cases() -> list[KernelCase]:
    """Both kernels, with the shapes of an 8B model."""
    return [fill_case(), project_case()]
