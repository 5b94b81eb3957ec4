"""What ptxas makes of every variant: no spills and no stack, and tensor cores where they belong.

Compiling takes a second a kernel, so both targets see every kernel, and the newer one the wider choice of dtypes and head_dims.
"""

import pytest
from numba.cuda import types

from minllm.kernels.attention import (
    flash_attention_1,
    flash_attention_2,
    flash_attention_2_float32,
    materialized,
    materialized_projection,
    split_kv,
    split_merge,
)

AMPERE, HOPPER = (8, 0), (9, 0)
INT32, FLOAT32 = types.int32, types.float32
DTYPES = {"float32": types.float32, "float16": types.float16, "bfloat16": types.bfloat16}
BLOCK_SIZE = 16
SMALL_TILES, LARGE_TILES, LARGE_TILES_128, LARGE_HEAD_TILES = (64, 64, 4), (128, 64, 4), (128, 32, 4), (64, 32, 4)


def array(dtype, ndim):
    """A C-contiguous array type."""
    return types.Array(DTYPES.get(dtype, dtype), ndim, "C")


def batch(dtype):
    """The types of query_start, context_lens and block_tables."""
    return [array(INT32, 1), array(INT32, 1), array(INT32, 2)]


def inputs(dtype):
    """The types of query, key_cache and value_cache."""
    return [array(dtype, 3), array(dtype, 4), array(dtype, 4)]


def states(rank):
    """The types of a state's maximum, sum and output in memory, the first two of rank `rank`."""
    return [array(FLOAT32, rank), array(FLOAT32, rank), array(FLOAT32, rank + 1)]


def compiled(kernel, arguments, target):
    """Compile, and find nothing in local memory."""
    result = kernel.compile(*arguments, compute_capability=target)
    assert (result.spill_bytes, result.stack_bytes) == (0, 0), f"{result.name}: {result.registers} registers and yet spills"
    return result


def instructions(result):
    """The names of the machine instructions."""
    return {line.split()[1 if line.startswith("@") else 0].split(".")[0] for line in result.sass()}


def test_tile_choices():
    """The tiles compiled below are those that launches choose."""
    assert flash_attention_2.tiles_for(64, 100, 8, 1) == SMALL_TILES
    assert flash_attention_2.tiles_for(64, 8192, 32, 1) == LARGE_TILES
    assert flash_attention_2.tiles_for(128, 8192, 32, 1) == LARGE_TILES_128
    assert flash_attention_2.tiles_for(256, 8192, 8, 1) == LARGE_HEAD_TILES


@pytest.mark.parametrize(
    ("dtype", "head_dim", "tiles", "target"),
    [
        ("bfloat16", 40, SMALL_TILES, HOPPER),
        ("bfloat16", 64, SMALL_TILES, HOPPER),
        ("bfloat16", 64, LARGE_TILES, HOPPER),
        ("bfloat16", 128, SMALL_TILES, HOPPER),
        ("bfloat16", 128, LARGE_TILES_128, HOPPER),
        ("float16", 128, LARGE_TILES_128, HOPPER),
        ("bfloat16", 256, LARGE_HEAD_TILES, HOPPER),
        ("bfloat16", 96, SMALL_TILES, HOPPER),
        ("float16", 64, SMALL_TILES, AMPERE),
        ("bfloat16", 128, LARGE_TILES_128, AMPERE),
    ],
)
def test_flash_attention_2(dtype, head_dim, tiles, target):
    kernel, _, shared_bytes = flash_attention_2.make_kernel(dtype, head_dim, BLOCK_SIZE, *tiles)
    result = compiled(kernel, [*inputs(dtype), array(dtype, 3), *batch(dtype), FLOAT32, INT32], target)
    assert {"HMMA", "LDSM", "LDGSTS", "MUFU"} <= instructions(result)
    assert not {"LDL", "STL"} & instructions(result)
    assert shared_bytes <= 163 * 1024  # what a block of compute capability 8.0 can have


@pytest.mark.parametrize(("head_dim", "target"), [(40, HOPPER), (64, HOPPER), (128, AMPERE), (256, HOPPER)])
def test_flash_attention_2_float32(head_dim, target):
    tiles = flash_attention_2_float32.tiles_for(head_dim)
    kernel, _, _, shared_bytes = flash_attention_2_float32.make_kernel(head_dim, BLOCK_SIZE, *tiles)
    compiled(kernel, [*inputs("float32"), array("float32", 3), *batch("float32"), FLOAT32, INT32], target)
    assert shared_bytes <= 163 * 1024


@pytest.mark.parametrize(
    ("dtype", "head_dim", "group", "target"),
    [
        ("bfloat16", 40, 1, HOPPER),
        ("bfloat16", 64, 4, HOPPER),
        ("bfloat16", 128, 4, HOPPER),
        ("bfloat16", 128, 8, HOPPER),
        ("bfloat16", 256, 8, HOPPER),
        ("float32", 64, 4, HOPPER),
        ("float16", 64, 4, AMPERE),
        ("float32", 128, 4, AMPERE),
    ],
)
def test_split_kv(dtype, head_dim, group, target):
    kernel = split_kv.make_split_kernel(dtype, head_dim, BLOCK_SIZE, group)[0]
    result = compiled(kernel, [*inputs(dtype), *states(3), *batch(dtype), FLOAT32, INT32], target)
    assert any(line.startswith("LDG.E") and ".128" in line for line in result.sass())


@pytest.mark.parametrize(
    ("dtype", "head_dim", "target"), [("bfloat16", 64, HOPPER), ("float16", 128, AMPERE), ("float32", 256, HOPPER)]
)
def test_merge_of_splits(dtype, head_dim, target):
    kernel = split_merge.make_merge_kernel(head_dim)[0]
    compiled(kernel, [*states(3), array(dtype, 3), array(INT32, 1), array(INT32, 1), INT32, INT32], target)


@pytest.mark.parametrize(
    ("dtype", "head_dim", "target"), [("bfloat16", 64, HOPPER), ("float16", 128, AMPERE), ("float32", 256, HOPPER)]
)
def test_flash_attention_1(dtype, head_dim, target):
    kernel, _, shared_bytes = flash_attention_1.make_kernel(head_dim, BLOCK_SIZE)
    compiled(kernel, [*inputs(dtype), *states(2), array(dtype, 3), *batch(dtype), FLOAT32, INT32], target)
    assert shared_bytes <= 163 * 1024


@pytest.mark.parametrize(("dtype", "target"), [("bfloat16", HOPPER), ("float32", AMPERE)])
def test_materialized(dtype, target):
    vector, table, scores = array(INT32, 1), array(INT32, 2), array(FLOAT32, 3)
    compiled(materialized.make_transpose_kernel(BLOCK_SIZE), [array(dtype, 4), table, vector, array(dtype, 4)], target)
    compiled(materialized.scores_kernel, [array(dtype, 3), array(dtype, 4), scores, vector, vector, INT32], target)
    compiled(materialized.softmax_kernel, [scores, vector, vector, FLOAT32, INT32], target)
    values = materialized.make_weighted_values_kernel(BLOCK_SIZE)
    compiled(values, [scores, array(dtype, 4), array(dtype, 3), vector, vector, table, INT32], target)
    weight, caches = array(dtype, 2), [array(dtype, 4), array(dtype, 4)]
    compiled(materialized_projection.fill_new_key_value_kernel, [array(dtype, 3), vector, vector, weight, weight, *caches], target)
    compiled(
        materialized_projection.project_latest_kernel,
        [array(dtype, 3), vector, weight, weight, weight, array(dtype, 3), *caches],
        target,
    )
