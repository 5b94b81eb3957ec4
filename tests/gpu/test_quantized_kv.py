"""Quantised caches on a GPU: written, read by prompts, and in the engine."""

import pytest

from minllm import SamplingParams
from minllm.kernels.attention.flash_attention_2 import quantized as flash_attention_2_quantized
from minllm.kernels.quantization.formats import TOKEN_FORMATS
from tests.gpu.agreement import engines_that_agree, share_of_same
from tests.kernels.attention.case_lists import REAL_PROMPTS, in_16_bits
from tests.kernels.attention.quantized_cases import run_quantized
from tests.kernels.attention.test_flash_attention_2_quantized import CASES as SMALL_PROMPTS
from tests.kernels.guarded import BFLOAT16, DTYPES
from tests.kernels.kv.quantized_cases import CASES, GPU_CASES, check_qkv_rope_append_quantized

# Every prompt in int8, every other one in the other formats.
PROMPTS = [in_16_bits(case) for case in REAL_PROMPTS if case.head_dim % 32 == 0]

IN_FORMATS = [(case, "int8") for case in PROMPTS]
IN_FORMATS += [(case, name) for i, name in enumerate(TOKEN_FORMATS[1:]) for case in PROMPTS[i % 2 :: 2]]


@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_qkv_rope_append(case, device):
    check_qkv_rope_append_quantized(case, BFLOAT16, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, device):
    for case in CASES[::4]:
        check_qkv_rope_append_quantized(case, dtype, device)


@pytest.mark.parametrize(("case", "name", "group_size", "tiles"), SMALL_PROMPTS, ids=str)
def test_small_prompts(device, case, name, group_size, tiles):
    run_quantized(device, flash_attention_2_quantized, case, name, group_size, tiles=tiles)


@pytest.mark.covering("case", "name")
@pytest.mark.parametrize(("case", "name"), IN_FORMATS, ids=str)
def test_prompts(device, case, name):
    run_quantized(device, flash_attention_2_quantized, case, name)


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_the_engine_agrees_with_numpy(name, token_ids):
    """Logits of a text, whole and in chunks; and greedy tokens as graphs and kernel by kernel."""
    options = dict(kv_cache_dtype=name, dtype="bfloat16", max_num_seqs=4, max_model_len=320)
    params = SamplingParams(temperature=0.0, max_tokens=12)
    assert share_of_same([tokens for _, tokens in engines_that_agree(token_ids, params, **options)]) > 0.5
