"""Every launch of the catalogue on a device: the simulator's sizes and larger ones."""

import pytest

from minllm.catalogue import large_launches, small_launches
from minllm.catalogue.matmul import HOPPER_RUNGS
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.runtime.device import ADA, HOPPER, current_device
from tests.kernels.launches import check

EVERY = [launch for launch in small_launches() + large_launches() if launch.stage != "all_reduce"]  # these take several GPUs


@pytest.mark.parametrize("launch", EVERY, ids=str)
def test_results(launch, device):
    capability = current_device().compute_capability
    by_wgmma = isinstance({**launch.shape, **launch.shape.get("options", {})}.get("tiling"), FlatWgmmaTiling)
    if (by_wgmma or launch.shape.get("variant") in (*HOPPER_RUNGS, "batched_gemv", "split_cluster")) and capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma and clusters are Hopper's")
    if launch.shape.get("form", "").startswith("fp8") and capability < ADA:
        pytest.skip(f"a GPU of compute capability {capability} has no instructions for fp8")
    check(launch, device)
