"""The log-sum-exp that kernels tell beside their outputs, simulated, against float64."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.attention.split_quantized import split_quantized
from minllm.kernels.attention.split_tensor_core import split_tensor_core
from minllm.kernels.attention.split_tensor_core.shape import SplitShape
from tests.kernels.attention.case_lists import BFLOAT16, FLOAT16
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.log_sum_exp_runs import run_log_sum_exp

STEPS = AttentionCase((1, 1, 0, 1), (40, 0, 5, 21), heads=6, kv_heads=2, head_dim=32, dtype=BFLOAT16)
PROMPT = AttentionCase((18, 0, 3), (25, 4, 2), heads=2, kv_heads=1, head_dim=32, dtype=FLOAT16)  # a row before the first key
PLAIN, CODES = SplitShape(2, 16, 2, 1), SplitShape(2, 16, 2, 1, turns=2)


LAUNCHES = [
    (split_tensor_core, STEPS, None, dict(sm_count=3, shape=PLAIN)),  # parts of heads are merged
    (split_tensor_core, STEPS, None, dict(splits=1, shape=PLAIN)),
    (split_quantized, STEPS, "int4", dict(sm_count=3, shape=CODES)),
    (split_quantized, STEPS, "fp8_e4m3", dict(splits=1, shape=CODES)),
    (flash_attention_2, PROMPT, None, dict(tiles=(16, 16, 1))),
    (flash_attention_2_quantized, PROMPT, "int8", dict(tiles=(32, 16, 1))),
    (flash_attention_2_quantized, PROMPT, "fp8_e5m2", dict(tiles=(16, 16, 1))),
]


@pytest.mark.parametrize(("module", "case", "name", "options"), LAUNCHES, ids=str)
def test_log_sum_exp(device, module, case, name, options):
    run_log_sum_exp(device, module, case, name, **options)


@pytest.mark.parametrize("module", [split_tensor_core, flash_attention_2])
def test_what_is_refused(module):
    arrays = make_arrays(STEPS)
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.ascontiguousarray(arrays.out))
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale)
    with pytest.raises(KernelArgumentError, match=r"lse is float32 \(4, 6\); it must be float32 \(3, 6\)"):
        module.attention(*inputs, *batch, lse=np.zeros((4, 6), np.float32))
    with pytest.raises(KernelArgumentError, match="float16 or bfloat16"):
        wide = [array.astype(np.float32) for array in inputs]
        module.attention(*wide, *batch, lse=np.zeros((3, 6), np.float32))
