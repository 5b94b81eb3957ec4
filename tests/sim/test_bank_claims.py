"""What docstrings say of shared memory, counted: tiles that are padded or swizzled so that no two lanes meet in a bank."""

import numpy as np
import pytest

from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.ladder import flash_attention_1
from minllm.kernels.matmul.ladder.tiled import matmul_tiled
from minllm.kernels.matmul.tensor_core import TensorCoreTiling, matmul_tensor_core
from minllm.sim import detecting, tracing
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.guarded import BFLOAT16

ENGINE = "lanes"  # whose traces are those of the threads


def traced(launcher, *arguments, **options):
    """The trace of a launch of one kernel."""
    with tracing() as traces, detecting(False):
        launcher(*arguments, **options)
    (counts,) = traces
    return counts


def last_rows(head_dim):
    """The arguments of attention of the last 3 tokens of 33, with one head."""
    arrays = make_arrays(AttentionCase((3,), (33,), 1, 1, head_dim, dtype=BFLOAT16))
    caches = (arrays.key_cache, arrays.value_cache, arrays.out)
    return arrays.query, *caches, arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale


@pytest.mark.parametrize("tiling", [(16, 64, 64, 1, 4, 4), (64, 64, 64, 2, 2, 4), (32, 32, 32, 1, 2, 3), (32, 32, 16, 1, 2, 2)], ids=str)
def test_swizzled_tiles_of_the_tensor_core_product_meet_in_no_bank(tiling):
    m, n, k, *_ = tiling
    arrays = [np.zeros(shape, BFLOAT16) for shape in ((m, 2 * k), (n, 2 * k), (m, n))]
    counts = traced(matmul_tensor_core, *arrays, tiling=TensorCoreTiling(*tiling))
    assert counts.shared and counts.bank_conflicts == 0


def test_neighbouring_threads_read_the_tiled_product_s_tiles_without_conflicts():
    arrays = [np.zeros(shape, np.float32) for shape in ((64, 32), (64, 32), (64, 64))]
    counts = traced(matmul_tiled, *arrays, tile=(64, 32, 4))
    assert {line.array for line in counts.shared} == {"x_tile", "weight_tile"} and counts.bank_conflicts == 0


@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_ldmatrix_reads_the_padded_rows_of_flash_attention_2_without_conflicts(head_dim):
    counts = traced(flash_attention_2.attention, *last_rows(head_dim))
    fragments = [line for line in counts.shared if line.kind == "read" and line.bytes == 512 * line.requests]
    assert len(fragments) >= 3 and sum(line.conflicts for line in fragments) == 0


def test_flash_attention_1_keeps_32_keys_in_32_banks():
    counts = traced(flash_attention_1.attention, *last_rows(64))
    assert counts.shared and counts.bank_conflicts == 0
