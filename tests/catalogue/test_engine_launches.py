"""What engines launch is in the catalogue: a kernel that an engine needs is compiled, checked and counted like all others."""

import functools

import pytest

from minllm import catalogue
from minllm.catalogue import STAGES
from tests.compile.test_chosen_kernels import Engine, launches

ENGINES = (
    Engine((9, 0), "bfloat16", "llama-3.1-8b"),
    Engine((8, 0), "float16", "llama-3.2-1b"),
    Engine((9, 0), "float32", "gpt2"),
    Engine((9, 0), "bfloat16", "gemma-3-1b"),
    Engine((9, 0), "bfloat16", "qwen3-8b", "int8"),
    *(Engine((9, 0), dtype, "llama-3.1-8b", cache) for dtype in ("float16", "bfloat16") for cache in ("kivi_int4", "fp8_e4m3")),
    Engine((9, 0), "float16", "llama-3.1-8b", "int8"),
    Engine((8, 0), "bfloat16", "llama-3.1-8b", "int4"),
    Engine((9, 0), "bfloat16", "qwen3-30b-a3b"),
    Engine((9, 0), "bfloat16", "llama-3.2-1b", quantization="int8"),
)

TILED = ("minllm.kernels.matmul.", "minllm.kernels.attention.")


@functools.cache
def described():
    """The kernels of all launches in the catalogue, with the types of their arguments."""
    entries = [one.launch for one in catalogue.machine_code().values()]
    entries += [*catalogue.small_launches(), *catalogue.large_launches()]
    return {(compared(signature.kernel), signature.types) for launch in entries for signature in launch.kernels((9, 0))}


def compared(kernel):
    """The kernel; of GEMMs and attention, whose tilings follow from the number of rows and the heads, the place of its function."""
    return (kernel.__module__, kernel.__name__) if kernel.__module__.startswith(TILED) else kernel


def missing(launched, known):
    """The names of launched kernels that are not among the known ones."""
    stages = tuple(f"minllm.kernels.{name}." for name in STAGES)
    ours = [(kernel, types) for kernel, types in launched if kernel.__module__.startswith(stages)]
    return {kernel.__name__ for kernel, types in ours if (compared(kernel), types) not in known}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_an_engine_launches_what_the_catalogue_describes(engine):
    assert missing(launches(engine, longest=512), described()) == set()


@pytest.mark.parametrize("quantization", ["int4_g128", "fp8"])
def test_an_engine_with_quantised_experts_launches_what_the_catalogue_describes(quantization):
    launched = launches(Engine((9, 0), "bfloat16", "qwen3-30b-a3b", quantization=quantization), longest=512)
    of_experts = [(kernel, types) for kernel, types in launched if kernel.__module__.startswith("minllm.kernels.experts.")]
    assert {kernel.__name__ for kernel, _ in of_experts} >= {"gate_up_gemv_kernel", "down_gemv_kernel", "grouped_gemm_kernel"}
    assert missing(of_experts, described()) == set()


def test_a_launch_that_the_catalogue_lacks_is_found():
    """Each kernel of an engine in turn is planted as an omission."""
    launched = launches(ENGINES[0], longest=512)
    ours = {compared(kernel): kernel.__name__ for kernel, types in launched if (compared(kernel), types) in described()}
    assert {*ours.values()} >= {"rms_norm_vector_kernel", "embedding_vector_kernel", "matmul_wgmma_kernel", "flash_attention_3_kernel"}
    assert {*ours.values()} >= {"fixed_split_kernel", "merge_splits_kernel", "split_tensor_core_kernel", "split_cluster_kernel"}
    for kernel, name in ours.items():
        known = {(one, types) for one, types in described() if one != kernel}
        assert missing(launched, known) == {name}
