"""Cascade attention in the simulator: sequences with a common beginning, against the same float64 oracle as all others."""

import dataclasses

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.split_tensor_core import cascade as split_cascade
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import AttentionCase, check_output, make_arrays

OPTIONS = dict(sm_count=3, shape=SplitShape(1, 16, 2, 1))
CASES = [  # with the length of the prefix, of which whole blocks are shared
    (AttentionCase((1,) * 3, (33, 70, 34), heads=8, kv_heads=2, head_dim=16, dtype=BFLOAT16), 32),
    (AttentionCase((1,) * 2, (81, 66), heads=2, kv_heads=2, head_dim=40, dtype=FLOAT16, block_size=5), 65),
    (AttentionCase((1, 1, 0, 1), (50, 49, 60, 0), heads=6, kv_heads=2, head_dim=64, dtype=BFLOAT16), 48),
    # Two shares of the prefix and two tiles of rows, which are blocks of their own.
    (AttentionCase((1,) * 5, (540, 530, 513, 520, 519), heads=14, kv_heads=1, head_dim=8, dtype=BFLOAT16, block_size=8), 512),
]


def with_prefix(case, prefix_len):
    """The case's arrays, its sequences' first blocks those of the first."""
    arrays = make_arrays(case)
    blocks = prefix_len // case.block_size
    for sequence, context in enumerate(case.context_lens):
        if context > prefix_len:
            arrays.block_tables[sequence, :blocks] = arrays.block_tables[0, :blocks]
            arrays.keys[sequence][:prefix_len] = arrays.keys[0][:prefix_len]
            arrays.values[sequence][:prefix_len] = arrays.values[0][:prefix_len]
    return arrays


def run_cascade(device, case, prefix_len, **options):
    arrays = with_prefix(case, prefix_len)
    names = ("query", "key_cache", "value_cache", "out", "query_start", "context_lens", "block_tables")
    shapes = split_cascade.workspace_shapes(arrays.query, arrays.key_cache, arrays.block_tables, prefix_len, **options)
    workspace = make_workspace(
        shapes, lambda *size: device.array(np.full(size[0], np.nan, size[1])), lambda *size: device.array(np.zeros(*size))
    )
    guarded_out = device.array(arrays.guarded_out)
    on_device = {name: device.array(getattr(arrays, name)) for name in names if name != "out"}
    on_device["out"] = guarded_out[3 : 3 + len(arrays.query)]
    split_cascade.attention(*(on_device[name] for name in names), arrays.scale, prefix_len, workspace, **options)
    check_output(case, arrays, np.asarray(device.host(guarded_out)))


@pytest.mark.parametrize(("case", "prefix_len"), [*CASES[:3], pytest.param(*CASES[3], marks=pytest.mark.results_only)], ids=str)
def test_a_shared_prefix(device, case, prefix_len):
    run_cascade(device, case, prefix_len, **OPTIONS)


def test_what_it_does_not_take():
    arrays = make_arrays(dataclasses.replace(CASES[0][0], dtype=np.float32))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, arrays.out, arrays.query_start, arrays.context_lens, arrays.block_tables)
    with pytest.raises(KernelArgumentError, match="takes float16 and bfloat16"):
        split_cascade.attention(*inputs, arrays.scale, 32)
