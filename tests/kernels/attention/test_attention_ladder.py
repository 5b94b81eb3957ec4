"""What all variants have in common besides their answers: the same errors, and the registry that names them."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.choice import choose
from tests.kernels.attention.case_lists import BFLOAT16
from tests.kernels.attention.cases import GUARD_ROWS, AttentionCase, check_output, make_arrays, oracle


@pytest.mark.parametrize("name", VARIANTS.names())
def test_wrong_arguments_are_explained(name):
    arrays = make_arrays(AttentionCase((1,), (5,), heads=6, kv_heads=2, head_dim=8))
    arguments = dict(
        query=arrays.query, key_cache=arrays.key_cache, value_cache=arrays.value_cache, out=np.ascontiguousarray(arrays.out),
        query_start=arrays.query_start, context_lens=arrays.context_lens, block_tables=arrays.block_tables, scale=arrays.scale,
    )  # fmt: skip

    def refused(match, **changes):
        with pytest.raises(KernelArgumentError, match=match):
            VARIANTS[name].attention(**(arguments | changes))

    refused("must be \\[tokens, heads, head_dim\\]", query=arrays.query[0])
    refused("attention takes float32", query=arrays.query.astype(np.float64))
    refused("must have one dtype", key_cache=arrays.key_cache.astype(np.float16))
    refused("must have one dtype", out=np.empty((1, 6, 8), np.float16))
    refused("out has shape", out=np.empty((2, 6, 8), np.float32))
    refused("value_cache has shape", value_cache=arrays.value_cache[:1])
    refused("holds head_dim 8", query=np.zeros((1, 6, 16), np.float32), out=np.zeros((1, 6, 16), np.float32))
    refused("cannot share", query=np.zeros((1, 5, 8), np.float32), out=np.zeros((1, 5, 8), np.float32))
    refused("query_start has shape", query_start=np.zeros(3, np.int32))
    refused("context_lens is int64", context_lens=arrays.context_lens.astype(np.int64))
    refused("scale is -1", scale=-1)
    refused("sliding_window is -1", sliding_window=-1)
    refused("max_query_len is 0", max_query_len=0)
    wide = [np.zeros(shape, np.float32) for shape in ((1, 6, 264), (4, 16, 2, 264), (4, 16, 2, 264), (1, 6, 264))]
    refused("head_dim 264", **dict(zip(("query", "key_cache", "value_cache", "out"), wide, strict=True)))
    shapes = VARIANTS[name].workspace_shapes(arrays.query, arrays.key_cache, arrays.block_tables)
    if shapes:
        refused("workspace lacks", workspace={})
        refused("this call needs", workspace={key: np.zeros((1,), dtype) for key, (_, dtype) in shapes.items()})


def test_the_registry():
    decode = ["split_kv", "split_tensor_core", "split_unified_maximum", "split_cluster"]
    assert VARIANTS.names() == ["materialized", "flash_attention_1", "flash_attention_2", "fixed_split", "flash_attention_3", *decode]
    assert choose(1) == choose(1, "bfloat16", (9, 0)) == choose(1, np.dtype(np.float16), (8, 0)) == "split_tensor_core"
    assert choose(1, "float32") == choose(1, "float32", (9, 0)) == "split_kv"
    assert choose(2, "float32") == choose(2, "float32", (9, 0)) == "flash_attention_2"
    assert choose(2, "bfloat16", (8, 0)) == choose(16, "float16") == choose(5, "bfloat16", (9, 0)) == "fixed_split"
    assert choose(17, "bfloat16", (8, 0)) == choose(17, "float16") == "flash_attention_2"
    assert choose(17, "bfloat16", (9, 0)) == choose(17, np.dtype(np.float16), (9, 0)) == "flash_attention_3"
    with pytest.raises(KeyError, match="no attention kernel is called 'flash'"):
        VARIANTS["flash"]


def test_the_table_and_the_reference_import_no_kernel():
    """Whoever reads the table or computes with NumPy does not wait for Numba."""
    code = "import sys; sys.modules['numba'] = None; import minllm.kernels.attention.choice, minllm.kernels.attention.reference"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_checks_can_fail(device):
    """The judge of all these tests: an answer with one wrong row, a NaN or a touched guard does not pass."""
    case = AttentionCase((3,), (9,), heads=2, head_dim=8, dtype=BFLOAT16)
    arrays = make_arrays(case)
    arrays.out[:] = oracle(case, arrays).astype(BFLOAT16)
    check_output(case, arrays, arrays.guarded_out)
    for row, value in ((GUARD_ROWS + 1, 0.0), (GUARD_ROWS + 2, np.nan), (GUARD_ROWS - 1, 0.0), (GUARD_ROWS + 3, 1.0)):
        spoilt = arrays.guarded_out.copy()
        spoilt[row] = value
        with pytest.raises(AssertionError):
            check_output(case, dataclasses.replace(arrays), spoilt)
