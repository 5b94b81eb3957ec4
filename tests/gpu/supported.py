"""Which launches of the catalogue run on this GPU."""

import pytest

from minllm.catalogue.matmul import HOPPER_RUNGS
from minllm.kernels.matmul.flat.wgmma_tiling import FlatWgmmaTiling
from minllm.runtime.device import ADA, HOPPER, current_device

OF_HOPPER = (*HOPPER_RUNGS, "flash_attention_3", "split_cluster")  # wgmma, and clusters
OF_STREAMS = ("linear_add", "gated_of_deferred_norm", "flat_qkv_rope_append")  # by wgmma alone


def skip_if_not_supported(launch):
    """Skip the test of a launch with instructions that this GPU lacks."""
    capability = current_device().compute_capability
    options = {**launch.shape, **launch.shape.get("options", {})}
    flat_codes = launch.name == "quantized_product" and options["variant"] == "flat"
    by_wgmma = flat_codes or launch.name in OF_STREAMS or "wgmma" in launch.name or isinstance(options.get("tiling"), FlatWgmmaTiling)
    by_clusters = options.get("variant") == "tensor_core_gemv" and options["m"] > 1
    if (by_wgmma or by_clusters or options.get("variant") in OF_HOPPER) and capability != HOPPER:
        pytest.skip("no GPU of compute capability 9.0: wgmma and clusters are Hopper's")
    if getattr(options.get("shape"), "tensor_copies", False) and capability < HOPPER:
        pytest.skip(f"a GPU of compute capability {capability} has no tensor copies")
    if any((launch.shape.get(one) or "").startswith("fp8") for one in ("form", "codes")) and capability < ADA:
        pytest.skip(f"a GPU of compute capability {capability} has no instructions for fp8")
