"""The element-wise kernels, which are memory-bound: on arrays of about 128 MB, relative to the rate of a copy.

A case is named tokens x numbers per token. Each kernel's docstring gives its bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.bench.kernel_case import BFLOAT16, TB_S, KernelCase, Prepared, relative_error, some_of
from minllm.kernels.kv.append import append
from minllm.kernels.kv.copy_blocks import copy_blocks
from minllm.kernels.kv.qkv_rope_append import qkv_rope_append, qkv_rope_append_reference
from minllm.kernels.rope.rotate import rope_table

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


def angles(positions: int, head_dim: int) -> np.ndarray:
    """Llama 3's table of cosines and sines: float32 [positions, head_dim]."""
    return rope_table(positions, head_dim, 500000.0 ** (-np.arange(0, head_dim, 2) / head_dim))


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
        append_case(),
        copy_blocks_case(),
        qkv_rope_append_case(),
        qkv_rope_append_case(with_norm=True),
    ]
