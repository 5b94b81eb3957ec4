"""Hopper's instructions on a GPU: the simulator's cases, so that what an emulation claims is held against the hardware."""

import pytest

from minllm.runtime.device import current_device, is_available
from tests.ptx import cases_barrier, cases_bulk_copy, cases_cluster, cases_matrix, cases_warpgroup
from tests.ptx.cases_hopper import check_attention, check_matmul


def has_hopper():
    """Whether the GPU has compute capability 9.0, whose instructions these are."""
    return is_available() and current_device().compute_capability == (9, 0)


pytestmark = pytest.mark.skipif(not has_hopper(), reason="no GPU of compute capability 9.0: wgmma is Hopper's alone")


@pytest.mark.parametrize("product", cases_warpgroup.PRODUCTS, ids=str)
def test_every_layout_gives_the_product(product, device):
    cases_warpgroup.check_product(product, device)


@pytest.mark.parametrize("case", cases_bulk_copy.TILES, ids=str)
def test_tiles_come_and_go(case, device):
    cases_bulk_copy.check_tile(case, device)


@pytest.mark.parametrize("byte_count", cases_bulk_copy.RUNS)
def test_runs_of_bytes_come_and_go(byte_count, device):
    cases_bulk_copy.check_run(byte_count, device)


@pytest.mark.parametrize("pipeline", cases_barrier.PIPELINES, ids=str)
def test_a_pipeline_loses_nothing(pipeline, device):
    cases_barrier.check_pipeline(pipeline, device)


def test_warps_take_turns_at_named_barriers(device):
    cases_barrier.check_turns(device)


def test_one_lane_is_elected(device):
    cases_barrier.check_elect(device)


def test_a_warp_reduces_words(device):
    cases_barrier.check_redux(device)


@pytest.mark.parametrize("cluster", cases_cluster.CLUSTERS, ids=str)
def test_blocks_reach_their_neighbours(cluster, device):
    cases_cluster.check_neighbours(cluster, device)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_one_copy_reaches_all_blocks(blocks, device):
    cases_cluster.check_multicast(blocks, device)


@pytest.mark.parametrize("move", cases_matrix.MOVES, ids=str)
def test_tiles_between_shared_memory_and_registers(move, device):
    cases_matrix.check_move(move, device)


@pytest.mark.parametrize("name", cases_matrix.PRODUCTS)
def test_products_of_a_warp(name, device):
    cases_matrix.check_mma(name, device)


@pytest.mark.parametrize("name", cases_matrix.FP8)
def test_fp8_and_back(name, device):
    cases_matrix.check_fp8(name, device)


@pytest.mark.parametrize("shape", [(128, 256, 192), (256, 512, 2048), (4096, 4096, 4096)], ids=str)
def test_a_matrix_product(shape, device):
    check_matmul(*shape, device)


@pytest.mark.parametrize("shape", [(1, 1, 128), (1, 1, 384), (8, 2, 1024)], ids=str)
def test_causal_attention(shape, device):
    check_attention(*shape, device)
