"""The log-sum-exp that kernels tell beside their outputs, simulated, against float64."""

import numpy as np
import pytest

from minllm.catalogue.attention.paged import attention
from minllm.catalogue.attention.quantized import quantized_attention
from minllm.errors import KernelArgumentError
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.attention.split_tensor_core import decode_step
from minllm.kernels.attention.split_tensor_core.block_sizes import SplitShape
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.log_sum_exp_runs import check_log_sum_exp
from tests.kernels.guarded import BFLOAT16, FLOAT16, FLOAT32

STEPS = ((1, 1, 1, 1), (40, 0, 5, 21))
PROMPT = ((18, 0, 3), (25, 4, 2))  # a row before the first key
OF_STEPS, OF_PROMPT = (6, 2, 32, BFLOAT16), (2, 1, 32, FLOAT16)  # heads, KV heads, head_dim, dtype
PLAIN, CODES = SplitShape(2, 16, 2, 1), SplitShape(2, 16, 2, 1, turns=2)
LAUNCHES = [
    attention("split_tensor_core", *STEPS, *OF_STEPS, lse=True, sm_count=3, shape=PLAIN),  # parts of heads are merged
    attention("split_tensor_core", *STEPS, *OF_STEPS, lse=True, splits=1, shape=PLAIN),
    quantized_attention("split_quantized", *STEPS, "int4", *OF_STEPS, lse=True, sm_count=3, shape=CODES),
    quantized_attention("split_quantized", *STEPS, "fp8_e4m3", *OF_STEPS, lse=True, splits=1, shape=CODES),
    attention("flash_attention_2", *PROMPT, *OF_PROMPT, lse=True, tiles=(16, 16, 1)),
    attention("flash_attention_2", *PROMPT, 2, 1, 16, FLOAT32, lse=True, tiles=(4, 8, 2, 2)),
    quantized_attention("flash_attention_2_quantized", *PROMPT, "int8", *OF_PROMPT, lse=True, tiles=(32, 16, 1)),
    quantized_attention("flash_attention_2_quantized", *PROMPT, "fp8_e5m2", *OF_PROMPT, lse=True, tiles=(16, 16, 1)),
]


@pytest.mark.parametrize("launch", LAUNCHES, ids=str)
def test_log_sum_exp(device, launch):
    check_log_sum_exp(device, launch)


@pytest.mark.parametrize(
    ("module", "not_in_float32"), [(decode_step, dict(lse=np.zeros((3, 6), np.float32))), (flash_attention_2, dict(residual_window=32))]
)
def test_what_is_refused(module, not_in_float32):
    arrays = make_arrays(AttentionCase((1, 1, 1), (40, 5, 21), heads=6, kv_heads=2, head_dim=32, dtype=BFLOAT16))
    inputs = (arrays.query, arrays.key_cache, arrays.value_cache, np.ascontiguousarray(arrays.out))
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale)
    with pytest.raises(KernelArgumentError, match=r"lse is float32 \(4, 6\); it must be float32 \(3, 6\)"):
        module.attention(*inputs, *batch, lse=np.zeros((4, 6), np.float32))
    with pytest.raises(KernelArgumentError, match="float16 or bfloat16"):
        wide = [array.astype(np.float32) for array in inputs]
        module.attention(*wide, *batch, **not_in_float32)
