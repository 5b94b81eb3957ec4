"""The limits of a step that options leave open: those of the device, which given numbers override, and on which ranks agree."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minllm import LLM
from minllm.costs.step_limits import step_limits
from minllm.engine.build.cache_format import cache_shape
from minllm.engine.build.step_limits import with_step_limits
from minllm.engine.options import EngineOptions
from minllm.models.shapes import named_config
from minllm.runtime import device
from minllm.weights.formats import WEIGHT_FORMATS
from tests.engine.models import model_directory

LLAMA = named_config("llama-3.1-8b")
FP8 = WEIGHT_FORMATS["fp8"]
DTYPE = np.dtype(np.float16)


@pytest.fixture
def resolved(monkeypatch):
    """The limits of options on an H200 with this number of free bytes, with weights in fp8."""
    monkeypatch.setattr(device, "current_device", lambda: SimpleNamespace(name="NVIDIA H200"))

    def of(free=140 * 10**9, share=None, weight_format=FP8, **options):
        ops = SimpleNamespace(dtype=DTYPE, device_memory=lambda: (free, 141 * 10**9))
        shape = cache_shape(LLAMA, DTYPE, 16, options.get("kv_cache_dtype", "auto"))
        found = with_step_limits(EngineOptions(**options), "cuda", ops, LLAMA, weight_format, shape, share)
        return found.max_num_seqs, found.max_num_batched_tokens

    return of


def test_a_cpu_keeps_its_limits():
    with LLM(model_directory("small"), device="cpu", max_model_len=64) as llm:
        assert (llm.options.max_num_seqs, llm.options.max_num_batched_tokens) == (256, 2048)
        assert llm.engine.scheduler.max_num_batched_tokens == 2048
    with LLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=3000) as llm:
        assert (llm.options.max_num_seqs, llm.options.max_num_batched_tokens) == (3000, 2048)


def test_given_numbers_win(resolved):
    assert resolved() == (512, 2048) and resolved(weight_format=None) == (256, 2048)
    assert resolved(max_num_seqs=7) == (7, 2048) and resolved(max_num_batched_tokens=7) == (512, 7)
    assert resolved(max_num_seqs=5000) == (5000, 5001) and resolved(max_num_seqs=5000, max_num_batched_tokens=9) == (5000, 9)


def test_memory_beside_the_weights_counts(resolved):
    """Of 141 GB, other programs hold what is not free; one sequence's 64 tokens take 8 MiB, half of it in an 8-bit cache."""
    weights = 8_030_261_248 + 2 * 2 * 128256 * 4096 - 2 * 128256 * 4096  # codes, and embedding and head in 16 bits
    beside = int(141e9 * 0.9) - 141 * 10**9 - weights
    free = 2 * 10**9 - beside  # for 2 GB, up to the scales and norms
    sequences, tokens = resolved(free)
    assert sequences == 232 and tokens == 1024 and resolved(free, kv_cache_dtype="fp8") == (256, 1024)
    assert resolved(-beside + 3 * 10**8) == (32, 512) and resolved(-beside + 3 * 10**8, kv_cache_dtype="fp8") == (64, 512)


def test_ranks_take_the_limits_of_the_rank_with_the_least_memory(resolved):
    share = SimpleNamespace(agreed=lambda budget, *_: replace(budget, num_bytes=min(budget.num_bytes, 2 * 10**9)))
    assert resolved(share=share) == step_limits(LLAMA, FP8, 131072, 2 * 10**9) == (232, 1024)
    assert resolved(share=SimpleNamespace(), max_num_seqs=3, max_num_batched_tokens=5) == (3, 5)
