"""The element-wise kernels, which are memory-bound: on arrays of about 128 MB, relative to the rate of a copy.

A case is named tokens x numbers per token. Each kernel's docstring gives its bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TB_S, KernelCase, Prepared, relative_error, some_of
from minllm.kernels.activation.gelu import gelu, gelu_reference
from minllm.kernels.activation.silu import silu_and_multiply, silu_and_multiply_reference
from minllm.kernels.embedding.lookup import embedding, embedding_reference
from minllm.kernels.kv.append import append
from minllm.kernels.kv.copy_blocks import copy_blocks
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append, qkv_rope_append_reference
from minllm.kernels.normalization.layer_norm import layer_norm, layer_norm_reference
from minllm.kernels.normalization.rms_norm import rms_norm, rms_norm_reference
from minllm.kernels.rope.rotate import rope, rope_reference, rope_table

DTYPE, ITEM = BFLOAT16, BFLOAT16.itemsize
SAMPLE_TOKENS = 64  # number of tokens that are recomputed on the host
BLOCK_SIZE = 16
EPSILON = 1e-5


@dataclass(frozen=True)
class Glue:
    """One set of inputs of a kernel."""

    launch: Callable[[], None]
    out: Any  # the kernel's output
    expected: Callable[[np.ndarray], np.ndarray]  # token indices -> the reference's values of `out` for them
    rows_of: Callable[[np.ndarray], np.ndarray] = lambda tokens: tokens  # token indices -> rows of `out`


def glue_case(stage, variant, case, tokens, moved, make, tolerance=None) -> KernelCase:
    """A case of an element-wise kernel; make(ops, noise) returns a Glue for one set of inputs.

    moved: bytes per launch.
    """

    def prepare(ops, noise, sets):
        glues = [make(ops, noise) for _ in range(sets)]
        first, sample = glues[0], some_of(tokens, SAMPLE_TOKENS, noise)
        expected = first.expected(sample)
        return Prepared(
            [glue.launch for glue in glues],
            [],
            result=lambda: ops.to_host(first.out),
            error=lambda out: relative_error(out.reshape(-1, *expected.shape[1:])[first.rows_of(sample)], expected),
        )

    return KernelCase(
        stage,
        stage,
        f"{case}, {DTYPE.name}",
        variant=variant,
        dtype=DTYPE,
        unit=TB_S,
        work=moved,
        set_bytes=moved,
        prepare=prepare,
        tolerance=tolerance,
    )


def embedding_case(tokens=16384, hidden=4096, vocabulary=32768, with_positions=False) -> KernelCase:
    """The embedding of distinct token ids, so that no row is in the cache already.

    with_positions: GPT-2's learned ones.
    """
    parts = 3 if with_positions else 2

    def make(ops, noise):
        token_ids = noise.random.permutation(max(vocabulary, tokens))[:tokens].astype(np.int32) % vocabulary
        table = noise.array((vocabulary, hidden), DTYPE)
        positions = np.arange(tokens, dtype=np.int32) if with_positions else None
        learned = noise.array((tokens, hidden), DTYPE) if with_positions else None
        arrays, out = [ops.array(token_ids), ops.array(table)], ops.empty((tokens, hidden), DTYPE)
        added = [ops.array(positions), ops.array(learned)] if with_positions else [None, None]

        def expected(sample):
            return embedding_reference(token_ids[sample], table, positions[sample] if with_positions else None, learned)

        return Glue(lambda: embedding(*arrays, out, *added, stream=ops.stream), out, expected)

    name, moved = "embedding with positions" if with_positions else "embedding", parts * tokens * hidden * ITEM
    return glue_case(
        "embedding", name, f"{tokens}x{hidden}", tokens=tokens, moved=moved, make=make, tolerance=None if with_positions else 0.0
    )


def rms_norm_case(tokens=16384, hidden=4096) -> KernelCase:
    """The RMS norm with residual: reads x, residual and weight, writes residual and out."""

    def make(ops, noise):
        x, residual, weight = noise.array((tokens, hidden), DTYPE), noise.array((tokens, hidden), DTYPE), noise.array((hidden,), DTYPE)
        arrays, sum_with, out = [ops.array(x), ops.array(weight)], ops.array(residual), ops.empty((tokens, hidden), DTYPE)
        return Glue(
            lambda: rms_norm(*arrays, out, EPSILON, sum_with, ops.stream),
            out,
            lambda sample: rms_norm_reference(x[sample], weight, EPSILON, residual[sample])[0],
        )

    return glue_case(
        "normalization", "rms_norm", f"{tokens}x{hidden}", tokens=tokens, moved=(4 * tokens * hidden + hidden) * ITEM, make=make
    )


def layer_norm_case(tokens=16384, hidden=4096) -> KernelCase:
    """The layer norm with residual and bias."""

    def make(ops, noise):
        x, residual = noise.array((tokens, hidden), DTYPE), noise.array((tokens, hidden), DTYPE)
        weight, bias = noise.array((hidden,), DTYPE), noise.array((hidden,), DTYPE)
        arrays, sum_with, out = [ops.array(a) for a in (x, weight, bias)], ops.array(residual), ops.empty((tokens, hidden), DTYPE)
        return Glue(
            lambda: layer_norm(*arrays, out, EPSILON, sum_with, ops.stream),
            out,
            lambda sample: layer_norm_reference(x[sample], weight, bias, EPSILON, residual[sample])[0],
        )

    return glue_case(
        "normalization", "layer_norm", f"{tokens}x{hidden}", tokens=tokens, moved=(4 * tokens * hidden + 2 * hidden) * ITEM, make=make
    )


def angles(positions: int, head_dim: int) -> np.ndarray:
    """Llama 3's table of cosines and sines: float32 [positions, head_dim]."""
    return rope_table(positions, head_dim, 500000.0 ** (-np.arange(0, head_dim, 2) / head_dim))


def rope_case(tokens=16384, heads=32, head_dim=128) -> KernelCase:
    """RoPE with a different position for every token: the table is read once, for all heads."""

    def make(ops, noise):
        x, positions, table = noise.array((tokens, heads, head_dim), DTYPE), np.arange(tokens, dtype=np.int32), angles(tokens, head_dim)
        arrays, out = [ops.array(a) for a in (x, positions, table)], ops.empty(x.shape, DTYPE)
        return Glue(lambda: rope(*arrays, out, stream=ops.stream), out, lambda sample: rope_reference(x[sample], positions[sample], table))

    moved = 2 * tokens * heads * head_dim * ITEM + tokens * head_dim * 4
    return glue_case("rope", "rope", f"{tokens}x{heads}x{head_dim}", tokens=tokens, moved=moved, make=make)


def silu_case(tokens=2048, intermediate=14336) -> KernelCase:
    """SiLU and multiply: reads gate and up, writes their product."""

    def make(ops, noise):
        gate_up = noise.array((tokens, 2 * intermediate), DTYPE)
        array, out = ops.array(gate_up), ops.empty((tokens, intermediate), DTYPE)
        return Glue(lambda: silu_and_multiply(array, out, ops.stream), out, lambda sample: silu_and_multiply_reference(gate_up[sample]))

    moved = 3 * tokens * intermediate * ITEM
    return glue_case("activation", "silu_and_multiply", f"{tokens}x{intermediate}", tokens=tokens, moved=moved, make=make)


def gelu_case(approximate: str, tokens=8192, features=8192) -> KernelCase:
    """GELU; approximate: "none" or "tanh"."""

    def make(ops, noise):
        x = noise.array((tokens, features), DTYPE)
        array, out = ops.array(x), ops.empty(x.shape, DTYPE)
        return Glue(lambda: gelu(array, out, approximate, ops.stream), out, lambda sample: gelu_reference(x[sample], approximate))

    name, moved = "gelu" if approximate == "none" else "gelu_tanh", 2 * tokens * features * ITEM
    return glue_case("activation", name, f"{tokens}x{features}", tokens=tokens, moved=moved, make=make)


def slots_of(tokens: int, noise) -> tuple[int, np.ndarray]:
    """(number of blocks that `tokens` fill, slots int32 [tokens]), with the blocks in random order."""
    blocks = -(-tokens // BLOCK_SIZE)
    order = noise.random.permutation(blocks)
    return blocks, (order[:, None] * BLOCK_SIZE + np.arange(BLOCK_SIZE)).reshape(-1)[:tokens].astype(np.int32)


def append_case(tokens=65536, kv_heads=8, head_dim=128) -> KernelCase:
    """Appending keys and values to the cache: reads them and writes them to their slots."""

    def make(ops, noise):
        key, value = (noise.array((tokens, kv_heads, head_dim), DTYPE) for _ in range(2))
        blocks, slots = slots_of(tokens, noise)
        caches = [ops.zeros((blocks, BLOCK_SIZE, kv_heads, head_dim), DTYPE) for _ in range(2)]
        arrays = [ops.array(key), ops.array(value), *caches, ops.array(slots)]
        expected = lambda sample: value[sample]  # noqa: E731
        return Glue(lambda: append(*arrays, stream=ops.stream), caches[1], expected, lambda sample: slots[sample])

    moved = 4 * tokens * kv_heads * head_dim * ITEM
    return glue_case("kv", "append", f"{tokens}x{kv_heads}x{head_dim}", tokens=tokens, moved=moved, make=make, tolerance=0.0)


def copy_blocks_case(copies=4096, kv_heads=8, head_dim=128) -> KernelCase:
    """Copying blocks of a cache in random order, half of the blocks onto the other half."""

    def make(ops, noise):
        cache = noise.array((2 * copies, BLOCK_SIZE, kv_heads, head_dim), DTYPE)
        order = noise.random.permutation(2 * copies)
        pairs = np.stack([order[:copies], order[copies:]], axis=1).astype(np.int32)
        expected = lambda sample: cache[pairs[sample, 0]]  # noqa: E731
        arrays = ops.array(cache), ops.array(pairs)
        return Glue(lambda: copy_blocks(*arrays, ops.stream), arrays[0], expected, lambda sample: pairs[sample, 1])

    moved = 2 * copies * BLOCK_SIZE * kv_heads * head_dim * ITEM
    return glue_case(
        "kv", "copy_blocks", f"{copies}x{BLOCK_SIZE}x{kv_heads}x{head_dim}", tokens=copies, moved=moved, make=make, tolerance=0.0
    )


def qkv_rope_append_case(tokens=10240, heads=32, kv_heads=8, head_dim=128, with_norm=False) -> KernelCase:
    """RoPE and append, checked by the rotated keys in the cache.

    with_norm: with Qwen3's norms of queries and keys.
    """
    width = (heads + 2 * kv_heads) * head_dim

    def make(ops, noise):
        qkv, positions = noise.array((tokens, width), DTYPE), np.arange(tokens, dtype=np.int32)
        norms = [noise.array((head_dim,), DTYPE) for _ in range(2)] if with_norm else [None, None]
        table, (blocks, slots) = angles(tokens, head_dim), slots_of(tokens, noise)
        caches = [ops.zeros((blocks, BLOCK_SIZE, kv_heads, head_dim), DTYPE) for _ in range(2)]
        query = ops.empty((tokens, heads, head_dim), DTYPE)
        arrays = [ops.array(qkv), ops.array(positions), ops.array(slots), *caches, query, ops.array(table), False]
        arrays += [norm if norm is None else ops.array(norm) for norm in norms]

        def expected(sample):
            key_cache, value_cache = (np.zeros((len(sample), 1, kv_heads, head_dim), DTYPE) for _ in range(2))
            batch = positions[sample], np.arange(len(sample), dtype=np.int32)
            qkv_rope_append_reference(
                qkv[sample], *batch, key_cache, value_cache, heads, kv_heads, table, False, *norms, epsilon=EPSILON
            )  # fmt: skip
            return key_cache[:, 0]

        def launch():
            qkv_rope_append(*arrays, epsilon=EPSILON, stream=ops.stream)

        return Glue(launch, caches[0], expected, lambda sample: slots[sample])

    name = "qkv_rope_append with norms" if with_norm else "qkv_rope_append"
    case = f"{tokens}x({heads}+2x{kv_heads})x{head_dim}"
    return glue_case("kv", name, case, tokens=tokens, moved=2 * tokens * width * ITEM, make=make)


def cases() -> list[KernelCase]:
    """One case per launcher of these stages, two for launchers with two forms."""
    return [
        embedding_case(),
        embedding_case(with_positions=True),
        rms_norm_case(),
        layer_norm_case(),
        rope_case(),
        silu_case(),
        gelu_case("none"),
        gelu_case("tanh"),
        append_case(),
        copy_blocks_case(),
        qkv_rope_append_case(),
        qkv_rope_append_case(with_norm=True),
    ]
