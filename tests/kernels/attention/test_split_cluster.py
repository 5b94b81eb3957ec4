"""Clusters of blocks that share a head, in the simulator: against the float64 oracle, and where the launcher chooses them."""

import dataclasses

import numpy as np
import pytest

from minllm.kernels.attention.common.arguments import AttentionSizes, sizes_of
from minllm.kernels.attention.split_tensor_core import cluster_step, decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.kernels.attention.split_tensor_core.cluster_step import choose_cluster, launch_clusters
from tests.kernels.attention.case_lists import RAGGED_CASES, SPLIT_CASES, TENSOR_COPY_CASES, in_16_bits
from tests.kernels.attention.cases import AttentionCase, check_output, make_arrays, run_variant

SMALL = SplitShape(1, 16, 2, 2)
CASES = [(in_16_bits(case), 2, SMALL) for case, _ in SPLIT_CASES[:9]]
CASES += [(RAGGED_CASES[0], 4, SMALL), (RAGGED_CASES[2], 3, SplitShape(2, 16, 3, 1))]  # several sequences, one of them without keys
CASES += [(case, 3, dataclasses.replace(SMALL, tensor_copies=True)) for case in TENSOR_COPY_CASES]
CASES += [(in_16_bits(SPLIT_CASES[3][0]), 8, SMALL)]  # more blocks than tiles: most are without keys


def run_clusters(device, case, splits, shape):
    """The kernel with `splits` blocks a cluster on `device`, and what it wrote, judged."""
    arrays = make_arrays(case)
    names = ("query", "key_cache", "value_cache", "out", "query_start", "context_lens", "block_tables")
    guarded_out = device.array(arrays.guarded_out)
    on_device = {name: device.array(getattr(arrays, name)) for name in names if name != "out"}
    on_device["out"] = guarded_out[3 : 3 + len(arrays.query)]
    sizes = sizes_of(arrays.query, arrays.key_cache, arrays.block_tables)
    launch_clusters(tuple(on_device[name] for name in names), sizes, arrays.scale, case.sliding_window, None, splits, shape)
    check_output(case, arrays, np.asarray(device.host(guarded_out)))


@pytest.mark.detected("splits", "shape", "case.sliding_window")
@pytest.mark.parametrize(("case", "splits", "shape"), CASES, ids=str)
def test_clusters(device, case, splits, shape):
    run_clusters(device, case, splits, shape)


def test_one_short_sequence_gets_clusters(device, monkeypatch):
    launched = []
    monkeypatch.setattr(cluster_step, "launch_clusters", lambda *a: (launched.append(a[5]), launch_clusters(*a)))
    case = AttentionCase((1,), (37,), heads=2, kv_heads=2, head_dim=16, dtype=np.float16)
    run_variant(device, decode_step, case)
    assert launched == [8]


def test_what_clusters_are_not_for():
    """Several sequences, long contexts, more heads than leave room for clusters."""
    short = AttentionSizes(1, 32, 8, 128, 16, 1, 64)
    splits, shape = choose_cluster(short)
    assert (splits, shape.tensor_copies) == (8, True)
    others = (dict(tokens=2, sequences=2), dict(max_blocks=257), dict(heads=32, kv_heads=32))
    assert [choose_cluster(dataclasses.replace(short, **other)) for other in others] == [None] * 3
