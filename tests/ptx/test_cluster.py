"""Clusters in the simulator: ranks, distributed shared memory, multicast copies, barriers; and the machine code."""

import numpy as np
import pytest
from numba import cuda, float32

from minllm import ptx
from minllm.errors import SimulationError
from minllm.runtime.kernel import kernel
from minllm.runtime.tensor_map import tensor_map
from tests.ptx.cases_cluster import CLUSTERS, check_multicast, check_neighbours, multicast_kernel, neighbours_kernel


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_blocks_reach_their_neighbours(cluster, device):
    check_neighbours(cluster, device)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_one_copy_reaches_all_blocks(blocks, device):
    check_multicast(blocks, device)


def test_machine_code():
    numbers, places = np.zeros((2, 32), np.float32), np.zeros((2, 5), np.int32)
    neighbours = neighbours_kernel.compile(numbers, numbers, numbers, places)
    words = np.zeros((8, 32), np.uint32)
    multicast = multicast_kernel.compile(tensor_map(words, (8, 32), 0), words, 1)
    for compiled, expected in ((neighbours, ("UCGABAR_ARV", "UCGABAR_WAIT")), (multicast, ("UTMALDG.2D.MULTICAST", "STAS"))):
        text = "\n".join(compiled.sass())
        assert all(word in text for word in expected)
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0)


@kernel
def early_end_kernel(out):
    own = cuda.shared.array(32, float32, 128)
    own[cuda.threadIdx.x] = float32(1)
    if ptx.cluster_ctarank() == 0:
        cuda.syncthreads()
        out[cuda.threadIdx.x] = ptx.ld_shared_cluster_f32(ptx.mapa(ptx.shared_address(own, 0), 1))


@kernel
def unarrived_kernel(out):
    if ptx.cluster_ctarank() == 0 or cuda.threadIdx.x < 31:
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
    else:
        ptx.bar_sync(1, 64)


@kernel
def no_cluster_kernel(out):
    ptx.barrier_cluster_arrive()


@kernel
def no_such_rank_kernel(out):
    ptx.mapa(0, 2)


@pytest.mark.parametrize(
    "wrong, cluster, complaint",
    [
        (early_end_kernel, 2, "a block that has ended"),
        (unarrived_kernel, 2, "the cluster's barrier, where 63 of 64 threads have arrived"),
        (no_cluster_kernel, None, "this launch has no clusters"),
        (no_such_rank_kernel, 2, "rank 2, which the cluster does not have"),
        (no_cluster_kernel, 3, "cannot be cut into clusters"),
        (no_cluster_kernel, 16, "a cluster has 1 to 8"),
    ],
)
def test_wrong_clusters_say_why(wrong, cluster, complaint):
    with pytest.raises(SimulationError, match=complaint):
        wrong.simulate[2, 32, None, 0, cluster](np.zeros(32, np.float32))


def make_exchange_kernel(arrive):
    """A kernel in which warp 1 reads what warp 0 wrote before the cluster's barrier."""

    @kernel
    def exchange_kernel(out):
        own = cuda.shared.array(32, float32, 128)
        if cuda.threadIdx.x < 32:
            own[cuda.threadIdx.x] = float32(1)
        arrive()
        ptx.barrier_cluster_wait()
        if cuda.threadIdx.x >= 32:
            out[cuda.threadIdx.x - 32] = own[cuda.threadIdx.x - 32]

    return exchange_kernel


def test_a_relaxed_arrival_orders_nothing():
    out = np.zeros(32, np.float32)
    make_exchange_kernel(ptx.barrier_cluster_arrive).simulate[2, 64, None, 0, 2](out)
    assert (out == 1).all()
    with pytest.raises(SimulationError, match="nothing orders the two"):
        make_exchange_kernel(ptx.barrier_cluster_arrive_relaxed).simulate[2, 64, None, 0, 2](out)
