"""What an engine would launch on each generation of GPUs compiles for it without spills, and fits its blocks.

A dry run of the engine on an assumed GPU lists the launches (engine/kernels_needed.py); no GPU is needed. Every run checks the resources
of all launches, and compiles, for compute capability 7.5, one kernel of each function that holds an instruction which 7.5 lacks.
With --exhaustive and MINLLM_GATE=full every kernel is compiled for every GPU, and for the caches and families beside the usual ones.
"""

import functools
import os
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from minllm.engine.build.cache_format import cache_shape
from minllm.engine.kernels_needed import EngineShape, launches_needed
from minllm.kernels.quantization.formats import FP8_SINCE, default_window
from minllm.kernels.quantization.groups import TOKEN_GROUP
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.machine.devices import missing_compilers
from minllm.machine.hardware import find_gpu
from minllm.machine.occupancy import THREADS_PER_BLOCK, multiprocessor_of
from minllm.models.shapes import named_config
from minllm.runtime.argument_type import argument_type
from minllm.runtime.device import AMPERE, HOPPER, Device
from minllm.weights.formats import WEIGHT_FORMATS, quantizations

FULL = os.environ.get("MINLLM_GATE") == "full"
TURING = (7, 5)
GPUS = {  # compute capability: a GPU that has it
    TURING: "Tesla T4",
    (8, 0): "NVIDIA A100-SXM4-80GB",
    (8, 6): "NVIDIA GeForce RTX 3090",
    (8, 9): "NVIDIA GeForce RTX 4090",
    (9, 0): "NVIDIA H200",
    (10, 0): "NVIDIA B200",
    (12, 0): "NVIDIA GeForce RTX 5090",
    (12, 1): "NVIDIA GB10",
}
GB10_SMS = 48  # not among the data sheets of machine/hardware.py
DTYPES = {"float16": np.dtype(np.float16), "float32": np.dtype(np.float32), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
USUAL_MODELS, OTHER_MODELS = ("llama-3.2-1b", "llama-3.1-8b"), ("qwen3-8b", "gemma-3-1b", "gpt2")
CACHES = ("int8", "int4", "kivi_int4", "fp8_e4m3", "fp8_e5m2")


class Engine(NamedTuple):
    """An engine on one GPU."""

    capability: tuple[int, int]
    dtype: str
    model: str
    cache: str = "auto"
    quantization: str | None = None

    def __str__(self):
        return "-".join((".".join(map(str, self.capability)), *self[1:4], *filter(None, self[4:])))


def engines(models, caches, formats):
    """Those that options allow: bfloat16 needs Ampere, an fp8 cache or weight Ada, and a float32 model has no quantised cache."""
    for capability in GPUS:
        for dtype in DTYPES if capability >= AMPERE else ("float16", "float32"):
            yield from (Engine(capability, dtype, model) for model in models)
            for cache in caches if dtype != "float32" else ():
                if capability >= FP8_SINCE or not cache.startswith("fp8"):
                    yield Engine(capability, dtype, USUAL_MODELS[-1], cache)
            for name in formats:
                if capability >= (WEIGHT_FORMATS[name].since or TURING):
                    yield Engine(capability, dtype, USUAL_MODELS[0], quantization=name)


def device_of(capability):
    """The GPU of a capability, as the driver would describe it."""
    sheet = find_gpu(GPUS[capability])
    sms = sheet.multiprocessors if sheet else GB10_SMS
    return Device(0, GPUS[capability], capability, sm_count=sms, total_memory=16 << 30, l2_bytes=4 << 20)


@functools.cache
def launches(engine, longest=8192):
    """One launch of each kernel that the engine needs for up to `longest` tokens, the one with the most shared memory."""
    config = named_config(engine.model)
    block_size = TOKEN_GROUP if engine.cache == "kivi_int4" else 16
    shape = EngineShape(
        device_of(engine.capability), config,
        cache_shape(config, DTYPES[engine.dtype], block_size, engine.cache, default_window(engine.cache)),
        weight_format=WEIGHT_FORMATS[engine.quantization] if engine.quantization else None,
        kernel_variants=None, virtual_cache=False, uses_graphs=True, max_num_seqs=256, max_num_batched_tokens=2048,
        max_model_len=min(config.max_position_embeddings, longest),
        kinds=(SamplingKind.GREEDY, SamplingKind.RANDOM, SamplingKind.ADJUSTED),
    )  # fmt: skip
    found = {}
    for one in sorted(launches_needed(shape), key=lambda one: one.launch.shared_bytes):
        found[one.launch.kernel, tuple(map(argument_type, one.arguments))] = one.launch
    return found


def faults(engine, kernel, types, launch):
    """What is wrong with one kernel's machine code for the GPU."""
    compiled = kernel.compile(*types, compute_capability=engine.capability)
    most = multiprocessor_of(engine.capability).block_shared_bytes
    shared = launch.shared_bytes + compiled.shared_bytes
    found = [f"spills {compiled.spill_bytes} bytes"] if compiled.spill_bytes else []
    found += [f"has a stack frame of {compiled.stack_bytes} bytes"] if compiled.stack_bytes else []
    found += [f"takes {shared} bytes of shared memory of {most}"] if shared > most else []
    return found


def names_of_faults(engine, chosen):
    """{kernel: its faults} of those that have any."""
    found = {kernel.__name__: faults(engine, kernel, types, launch) for (kernel, types), launch in chosen.items()}
    return {name: what for name, what in found.items() if what}


@pytest.fixture
def toolkit():
    """Skip without the compiler's libraries."""
    if missing := missing_compilers():
        pytest.skip(f"{', '.join(missing)} of the CUDA toolkit cannot be loaded, and nothing is compiled without: install minllm[cu13]")


@pytest.mark.parametrize("capability", GPUS, ids=lambda capability: ".".join(map(str, capability)))
def test_every_launch_fits_the_gpu(capability):
    dtype = "bfloat16" if capability >= AMPERE else "float16"
    most = multiprocessor_of(capability).block_shared_bytes
    found = [launches(Engine(capability, dtype, USUAL_MODELS[0])), launches(Engine(capability, dtype, USUAL_MODELS[1], "int8"))]
    formats = [name for name in quantizations() if capability >= (WEIGHT_FORMATS[name].since or TURING)]
    if capability in (TURING, HOPPER):  # weights decide on no kernel of longer contexts
        engines = [Engine(capability, one, USUAL_MODELS[0], quantization=name) for name in formats for one in (dtype, "float32")]
        found += [launches(one, longest=512) for one in engines]
    for chosen in found:
        too_large = {(kernel.__name__, launch.shared_bytes) for (kernel, _), launch in chosen.items() if launch.shared_bytes > most}
        assert not too_large
        assert all(np.prod(launch.block) <= THREADS_PER_BLOCK for launch in chosen.values())


def test_kernels_with_instructions_that_turing_lacks_compile_for_it(toolkit):
    """cp.async, mma.m16n8k16 and m16n8k32, conversions and maxima of two float16, loads that prefetch 256 bytes."""
    one = Engine(TURING, "float16", "llama-3.2-1b")
    wanted = ("matmul_gemv_kernel", "matmul_flat_kernel", "split_tensor_core_kernel", "qkv_rope_append_vector_kernel")
    chosen = {kernel.__name__: (kernel, types) for kernel, types in launches(one) if kernel.__name__ in wanted}
    assert set(chosen) == set(wanted)
    assert names_of_faults(one, {key: launches(one)[key] for key in chosen.values()}) == {}


def pytest_generate_tests(metafunc):
    """Every engine in the gate's full run, none otherwise."""
    if "engine" in metafunc.fixturenames:
        left_out = pytest.param(None, marks=pytest.mark.skip(reason="hours of compiling: only with MINLLM_GATE=full and --exhaustive"))
        full = FULL and metafunc.config.option.exhaustive
        metafunc.parametrize("engine", engines(USUAL_MODELS + OTHER_MODELS, CACHES, quantizations()) if full else [left_out], ids=str)


@pytest.mark.timeout(3600)
def test_all_kernels_of_an_engine_compile_without_spills(engine, toolkit):
    assert names_of_faults(engine, launches(engine)) == {}
