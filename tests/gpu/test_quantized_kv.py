"""Quantised caches on a GPU: written, read by prompts, and in the engine."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams, held_out_text
from minllm.kernels.attention import flash_attention_2_quantized
from minllm.kernels.quantization.formats import TOKEN_FORMATS
from tests.kernels.attention.case_lists import REAL_PROMPTS, in_16_bits
from tests.kernels.attention.quantized_cases import run_quantized
from tests.kernels.attention.test_flash_attention_2_quantized import CASES as SMALL_PROMPTS
from tests.kernels.guarded import BFLOAT16, DTYPES
from tests.kernels.kv.quantized_cases import CASES, GPU_CASES, check_append_quantized, check_qkv_rope_append_quantized

# Every prompt in int8, every other one in the other formats.
PROMPTS = [in_16_bits(case) for case in REAL_PROMPTS if case.head_dim % 32 == 0]

IN_FORMATS = [(case, "int8") for case in PROMPTS]
IN_FORMATS += [(case, name) for i, name in enumerate(TOKEN_FORMATS[1:]) for case in PROMPTS[i % 2 :: 2]]


@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_append(case, device):
    check_append_quantized(case, BFLOAT16, device)


@pytest.mark.parametrize("case", GPU_CASES, ids=str)
def test_qkv_rope_append(case, device):
    check_qkv_rope_append_quantized(case, BFLOAT16, device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(dtype, device):
    for case in CASES[::4]:
        check_append_quantized(case, dtype, device)
        check_qkv_rope_append_quantized(case, dtype, device)


@pytest.mark.parametrize(("case", "name", "group_size", "tiles"), SMALL_PROMPTS, ids=str)
def test_small_prompts(device, case, name, group_size, tiles):
    run_quantized(device, flash_attention_2_quantized, case, name, group_size, tiles=tiles)


@pytest.mark.parametrize(("case", "name"), IN_FORMATS, ids=str)
def test_prompts(device, case, name):
    run_quantized(device, flash_attention_2_quantized, case, name)


@pytest.fixture(scope="module")
def token_ids():
    with LLM(device="cpu", max_num_seqs=1, max_model_len=320) as llm:
        return llm.tokenizer.encode(held_out_text()[4000:5000])[:300]


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_the_engine_agrees_with_numpy(name, token_ids):
    """Logits of a text, whole and in chunks; and greedy tokens as graphs and kernel by kernel."""
    options = dict(kv_cache_dtype=name, dtype="bfloat16", max_num_seqs=4, max_model_len=320)
    with LLM(device="cpu", **options) as llm:
        expected = llm.logits(token_ids)
    spread = np.linalg.norm(expected - expected.mean(axis=1, keepdims=True))
    tokens = []
    for budget, eager in ((2048, False), (77, True)):
        with LLM(device="cuda", max_num_batched_tokens=budget, enforce_eager=eager, gpu_memory_utilization=0.3, **options) as llm:
            difference = llm.logits(token_ids) - expected
            assert np.linalg.norm(difference - difference.mean(axis=1, keepdims=True)) < 0.06 * spread
            outputs = llm.generate([token_ids[:20], token_ids[5:100]], SamplingParams(temperature=0.0, max_tokens=12))
            tokens.append([output.outputs[0].token_ids for output in outputs])
    same = np.mean([a == b for pair in zip(*tokens, strict=True) for a, b in zip(*pair, strict=True)])
    assert same > 0.5  # bfloat16 sums in another order may turn a close choice, and all that follows it
