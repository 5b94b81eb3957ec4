"""Every launch of the catalogue on a device: the simulator's sizes and larger ones."""

import pytest

from minllm.catalogue import large_launches, odd_launches, small_launches
from minllm.catalogue.matmul import HOPPER_RUNGS
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.runtime.device import ADA, HOPPER, current_device
from tests.kernels.launches import check, options_of, sizes_of

OF_STREAMS = ("linear_add", "gated_of_deferred_norm", "flat_qkv_rope_append")  # by wgmma alone


def of_one_gpu(launches):
    """The launches but for all-reduces, which take several GPUs."""
    return [launch for launch in launches if launch.stage != "all_reduce"]


@pytest.mark.parametrize("launch", of_one_gpu(small_launches()), ids=str)
def test_results(launch, device):
    check_if_supported(launch, device)


@pytest.mark.covering.with_args(options_of, sizes_of)
@pytest.mark.parametrize("launch", of_one_gpu(odd_launches() + large_launches()), ids=str)
def test_results_of_odd_and_large_sizes(launch, device):
    check_if_supported(launch, device)


def check_if_supported(launch, device):
    """Check the launch, if this GPU has its instructions."""
    capability = current_device().compute_capability
    options = {**launch.shape, **launch.shape.get("options", {})}
    flat_codes = launch.name == "quantized_product" and options["variant"] == "flat"
    by_wgmma = flat_codes or launch.name in OF_STREAMS or isinstance(options.get("tiling"), FlatWgmmaTiling)
    if (by_wgmma or options.get("variant") in (*HOPPER_RUNGS, "batched_gemv", "split_cluster")) and capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma and clusters are Hopper's")
    if launch.shape.get("form", "").startswith("fp8") and capability < ADA:
        pytest.skip(f"a GPU of compute capability {capability} has no instructions for fp8")
    check(launch, device)
