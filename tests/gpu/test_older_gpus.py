"""Kernels with the instructions that stand in on GPUs before compute capability 8.0, run on this GPU, which has those instructions too."""

import gc

import numpy as np
import pytest

from minllm.catalogue.attention.codes import SHAPES, step
from minllm.catalogue.attention.paged import attention
from minllm.catalogue.attention.prompts import CHUNKS
from minllm.catalogue.matmul.products import product
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from minllm.runtime import compiler
from minllm.runtime.kernel import Kernel
from minllm.runtime.older_gpus import REPLACEMENTS, replace_all
from tests.kernels.attention.case_lists import SPLIT_CASES
from tests.kernels.attention.cases import run_variant
from tests.kernels.guarded import FLOAT16
from tests.kernels.launches import check

PROMPTS = [attention("flash_attention_2", *chunk) for chunk in CHUNKS if chunk[5] == FLOAT16]
PRODUCTS = [product("tensor_core", *shape, FLOAT16, bias=True) for shape in ((127, 129, 1031), (129, 256, 2040))]
PRODUCTS += [product("flat", 33, 1003, 2056, FLOAT16, bias=True), product("gemv", 1, 2048, 2048, FLOAT16, bias=True)]


def forget_loaded_kernels():
    """Every kernel is compiled anew at its next launch."""
    for one in gc.get_objects():
        if isinstance(one, Kernel):
            one.loaded.clear()


@pytest.fixture(autouse=True)
def with_replacements(monkeypatch, tmp_path, request):
    """Compile every kernel as for 7.5, but for this GPU, and keep the results from the disk cache of all."""
    if request.config.option.compile_only:
        pytest.skip("these kernels are not kept")
    monkeypatch.setenv("MINLLM_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiler, "replace_missing", lambda code, _: replace_all(code, REPLACEMENTS[8, 0]))
    forget_loaded_kernels()
    yield
    forget_loaded_kernels()


@pytest.mark.parametrize("launch", PRODUCTS, ids=str)
def test_products(device, launch):
    check(launch, device)


@pytest.mark.parametrize("launch", PROMPTS, ids=str)
def test_prompts(device, launch):
    check(launch, device)


@pytest.mark.parametrize("case", [case for case, _ in SPLIT_CASES if case.dtype is np.float16][:4], ids=str)
def test_decode_steps(device, case):
    run_variant(device, decode_step, case, workspace_options=dict(shape=SplitShape(4, 16, 2, 1)), shape=SplitShape(4, 16, 2, 1))


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_decode_steps_over_codes(device, form):
    check(step((1,), (1,), form, 2, 2, 32, sm_count=3, shape=SHAPES[0]), device)
