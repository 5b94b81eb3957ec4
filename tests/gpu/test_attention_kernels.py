"""Attention on a GPU, besides the catalogue: the simulator's cases, contexts of real sizes, and caches of over 2**31 elements."""

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.common.workspace import make_workspace
from minllm.kernels.attention.ladder import unified_maximum as split_unified_maximum
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from tests.kernels.attention.case_lists import (
    RAGGED_CASES,
    REAL_DECODES,
    REAL_PROMPTS,
    SPLIT_CASES,
    SPLIT_SHAPES,
    STRIDED_CASES,
    TENSOR_COPY_CASES,
    TENSOR_COPY_OPTIONS,
    in_16_bits,
)
from tests.kernels.attention.cases import run_variant
from tests.kernels.attention.test_split_cluster import CASES as CLUSTER_CASES
from tests.kernels.attention.test_split_cluster import run_clusters


@pytest.mark.covering("shape", "case.dtype", "case.head_dim", "case.block_size", "case.sliding_window", "case.magnitude")
@pytest.mark.parametrize("case", [case for case, _ in SPLIT_CASES] + RAGGED_CASES, ids=str)
@pytest.mark.parametrize("shape", SPLIT_SHAPES, ids=str)
def test_split_tensor_core_with_small_blocks(device, case, shape):
    for options in (dict(splits=3, shape=shape), dict(sm_count=3, shape=shape)):
        run_variant(device, decode_step, in_16_bits(case), workspace_options=options, **options)


@pytest.mark.covering("case", "splits")
@pytest.mark.parametrize("case", REAL_DECODES, ids=str)
@pytest.mark.parametrize("splits", [None, 1, 7])
def test_split_tensor_core(device, case, splits):
    first, second = (run_variant(device, decode_step, case, workspace_options={"splits": splits}, splits=splits) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint8), second.view(np.uint8))


@pytest.mark.covering("case", "options")
@pytest.mark.parametrize("case", TENSOR_COPY_CASES, ids=str)
@pytest.mark.parametrize("options", TENSOR_COPY_OPTIONS, ids=str)
def test_split_tensor_core_by_tensor_copies(device, case, options):
    run_variant(device, decode_step, case, workspace_options=options, **options)


@pytest.mark.covering("splits", "shape", "case.dtype", "case.head_dim", "case.block_size", "case.sliding_window", "case.magnitude")
@pytest.mark.parametrize(("case", "splits", "shape"), CLUSTER_CASES, ids=str)
def test_split_cluster(device, case, splits, shape):
    run_clusters(device, case, splits, shape)


@pytest.mark.covering("case", "splits")
@pytest.mark.parametrize("case", [case for case in REAL_DECODES if case.head_dim <= 128 and case.dtype is not np.float32], ids=str)
@pytest.mark.parametrize("splits", [2, 8])
def test_split_cluster_of_real_sizes(device, case, splits):
    run_clusters(device, case, splits, SplitShape(4, 16, 2, 2))


STRIDED_STEPS = [(name, case, {}, {}) for name in ("split_kv", "split_tensor_core") for case in REAL_DECODES[:3] + REAL_DECODES[5:9]]
STRIDED_PROMPTS = [(name, case, {}, {}) for name in ("flash_attention_2", "flash_attention_3") for case in REAL_PROMPTS[:8]]


@pytest.mark.covering("name + case.dtype", "case.head_dim", "case.block_size", "case.sliding_window")
@pytest.mark.parametrize(("name", "case", "options", "workspace"), STRIDED_CASES + STRIDED_STEPS + STRIDED_PROMPTS, ids=str)
def test_a_layer_among_others(device, name, case, options, workspace):
    """The layers of a token side by side: the same bits as from a contiguous cache."""
    contiguous, among = (
        run_variant(device, VARIANTS[name], case, workspace_options=workspace, layers=layers, **options) for layers in (None, (3, 1))
    )
    np.testing.assert_array_equal(contiguous.view(np.uint8), among.view(np.uint8))


@pytest.mark.covering("case", "phi")
@pytest.mark.parametrize("phi", [-1000.0, 0.0, 20.0])
@pytest.mark.parametrize("case", [case for case in REAL_DECODES if case.dtype is not np.float32], ids=str)
def test_split_unified_maximum(device, case, phi):
    run_variant(device, split_unified_maximum, case, phi=phi)


@pytest.mark.parametrize("name", VARIANTS.names())
def test_two_runs_give_the_same_bits(device, name):
    case = REAL_DECODES[3]
    first, second = (run_variant(device, VARIANTS[name], case) for _ in range(2))
    np.testing.assert_array_equal(first.view(np.uint16), second.view(np.uint16))


@pytest.mark.covering("name", "dtype")
@pytest.mark.xdist_group("gigabytes")
@pytest.mark.parametrize("name", VARIANTS.names())
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_caches_of_more_than_2_31_elements(device, name, dtype):
    """32,800 blocks of 65,536 elements: the sequence's keys lie at both ends, and everything between is zero."""
    shape, table, context = (32800, 64, 8, 128), [32799, 3, 32798], 150
    rng = np.random.default_rng(0)
    caches = [np.zeros(shape, dtype) for _ in range(2)]  # 4.3 GB each, which the host does not store
    for cache in caches:
        for block in table:
            cache[block] = rng.standard_normal(shape[1:]).astype(dtype)
    query = rng.standard_normal((1, 16, 128)).astype(dtype)
    batch = [np.array([0, 1], np.int32), np.array([context], np.int32), np.array([table], np.int32)]
    expected = attention_reference(query, *caches, *batch, 128**-0.5).astype(np.float64)
    inputs = [device.array(array) for array in (query, *caches)]
    workspace = VARIANTS[name].workspace_shapes(query, caches[0], batch[2])
    out = device.array(np.full(query.shape, np.nan, dtype))
    VARIANTS[name].attention(
        *inputs, out, *(device.array(array) for array in batch), 128**-0.5,
        workspace=make_workspace(
            workspace, lambda size, of: device.array(np.full(size, np.nan, of)), lambda size, of: device.array(np.zeros(size, of))
        ),
    )  # fmt: skip
    np.testing.assert_allclose(np.asarray(device.host(out)).astype(np.float64), expected, rtol=0, atol=0.02)
