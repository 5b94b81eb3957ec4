"""With batch_invariant an engine launches one norm, one attention, and the GEMMs that agree to the last bit, for every number of rows."""

import pytest

from minllm.engine.build.cache_format import cache_shape
from minllm.engine.kernels_needed import EngineShape, launches_needed
from minllm.engine.options import FIXED_ORDER_VARIANTS
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.shapes import named_config
from tests.compile.test_chosen_kernels import DTYPES, device_of

GEMMS_OF_HOPPER = {"matmul_flat_wgmma_kernel", "matmul_wgmma_kernel"}
SPLIT = {"fixed_split_kernel", "merge_splits_kernel"}


@pytest.mark.parametrize(
    "capability, dtype, gemms, others",
    [
        ((9, 0), "bfloat16", GEMMS_OF_HOPPER, SPLIT), ((8, 0), "float16", {"matmul_flat_kernel"}, SPLIT),
        ((9, 0), "float32", {"matmul_vectorized_kernel"}, {"flash_attention_2_kernel", "silu_and_multiply_vector_kernel"}),
    ],
)  # fmt: skip
def test_the_kernels_of_each_stage(capability, dtype, gemms, others):
    """In 16 bits the activation is computed by the GEMM of gate and up."""
    config = named_config("llama-3.1-8b")
    shape = EngineShape(
        device_of(capability), config, cache_shape(config, DTYPES[dtype], 16, "auto", 0), weight_format=None,
        kernel_variants=FIXED_ORDER_VARIANTS, virtual_cache=False, uses_graphs=False, max_num_seqs=64, max_num_batched_tokens=512,
        max_model_len=2048, kinds=(SamplingKind.GREEDY,),
    )  # fmt: skip
    names = {one.name for one in launches_needed(shape)}
    layers = {name for name in names if any(stage in name for stage in ("matmul", "attention", "split", "norm", "gemv", "rope", "silu"))}
    assert layers == {"rms_norm_vector_kernel", "qkv_rope_append_vector_kernel"} | gemms | others
