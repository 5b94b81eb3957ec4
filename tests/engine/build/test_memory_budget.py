"""Less memory than is asked for: every error says what was asked for, what there is, what would fit, and what helps on this machine."""

from types import SimpleNamespace

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from minllm.engine.build import memory_budget
from minllm.engine.options import EngineOptions
from minllm.errors import OutOfMemoryError
from minllm.models.config_reader import read_model_config
from tests.engine.models import model_directory

TOKEN = 6144  # bytes of keys and values of a token of this model in float32: 2 * 3 layers * 2 heads * 128 * 4


@pytest.fixture
def room(monkeypatch):
    """Sets how many bytes a cache may take."""
    return lambda num_bytes: monkeypatch.setattr(memory_budget, "MAX_HOST_BYTES", num_bytes)


def load(**options):
    return LLM(model_directory("llama3"), device="cpu", **options)


@pytest.mark.parametrize(
    "num_bytes,options,message",
    [
        (0, {}, "a block of 16 tokens takes 98,304 bytes, and 0 are left, which hold 0 tokens: take a smaller model, or take a GPU"),
        (50_000, dict(block_size=64), "a block of 64 tokens .* 50,000 are left, which hold 8 tokens: take block_size=8 or less"),
        (50_000, dict(kv_cache_dtype="int8", block_size=256), "a block of 256 tokens takes [0-9,]+ bytes, and 50,000 are left"),
        (TOKEN - 1, dict(kv_cache_policy="contiguous"), "a block of 1 tokens takes 6,144 bytes, and 6,143 are left"),
        (TOKEN, dict(kv_cache_policy="contiguous"), "has memory for 1 tokens of a sequence, and a prompt and its first new token are 2"),
        (TOKEN, dict(block_size=1), "has memory for 1 tokens of a sequence, and a prompt and its first new token are 2"),
        (50_000, dict(kv_cache_policy="virtual"), "a page of keys and one of values take 131,072 bytes, and 50,000 are left"),
        (600_000, dict(kv_cache_policy="virtual"), 'memory for 0 tokens of a sequence .*"virtual" maps whole tiles; "paged" needs less'),
        (9 * TOKEN, dict(max_model_len=200, block_size=1), "max_model_len=200 does not fit .* for 9 tokens: lower max_model_len to 9, or"),
        (9 * TOKEN, dict(max_model_len=200, kv_cache_policy="contiguous"), "does not fit .* lower max_model_len to 9, or"),
        (9 * TOKEN, dict(max_model_len=200, enable_prefix_caching=True, block_size=4), "max_model_len=200 .* to 8, or"),
        (2**20, dict(max_model_len=200, kv_cache_policy="virtual"), "max_model_len=200 does not fit .* lower max_model_len to 128, or"),
    ],
)
def test_a_cache_too_small_for_one_sequence_says_what_would_fit(room, num_bytes, options, message):
    room(num_bytes)
    with pytest.raises(OutOfMemoryError, match=message) as error:
        load(**options)
    assert "gpu_memory_utilization" not in str(error.value), "there is no GPU here"
    assert f"on a CPU the KV cache takes at most {num_bytes:,} bytes" in str(error.value)


def test_what_an_error_says_would_fit_does_fit(room):
    room(50_000)
    with load(block_size=8) as llm:
        assert llm.max_model_len == 8
    room(9 * TOKEN)
    with load(block_size=1, max_model_len=9) as llm:
        assert len(llm.generate([5], SamplingParams(max_tokens=None, temperature=0, ignore_eos=True))[0].outputs[0].token_ids) == 8


def test_without_a_wish_the_models_length_is_what_fits(room):
    room(9 * TOKEN)
    with load(block_size=1) as llm:
        assert llm.max_model_len == llm.engine.cache_policy.num_blocks == 9


def test_half_of_a_small_machine(monkeypatch):
    monkeypatch.setattr(memory_budget, "available_host_bytes", lambda: 2 * 9 * TOKEN)
    config = read_model_config(model_directory("llama3"))
    budget = memory_budget.cache_budget("cpu", None, config, EngineOptions())
    assert budget.num_bytes == 9 * TOKEN and "end other programs, because on a CPU the KV cache takes half" in budget.advice


def test_weights_that_do_not_fit_are_not_loaded(monkeypatch):
    monkeypatch.setattr(memory_budget, "available_host_bytes", lambda: 1_000_000)
    message = "weights of this model take [0-9,]+ bytes, 4 for each of [0-9,]+ numbers, and 1,000,000 of this machine's memory are free"
    for load_format in ("auto", "dummy"):
        with pytest.raises(OutOfMemoryError, match=message):
            load(load_format=load_format, progress=lambda *_: pytest.fail("weights were loaded"))


def test_logits_that_do_not_fit_are_not_computed(monkeypatch, llm):
    monkeypatch.setattr(memory_budget, "available_host_bytes", lambda: 9 * 8 * 1003)
    assert llm.logits(list(range(9))).shape == (9, 1003)
    monkeypatch.setattr(llm.engine.ops, "embed", lambda *_: pytest.fail("it was computed"))
    with pytest.raises(OutOfMemoryError, match="logits of 10 tokens take 40,120 bytes, .* and 72,216 .* give 9 tokens or fewer"):
        llm.logits(list(range(10)))


def test_a_gpus_memory_is_shared_out_by_options():
    """Advice names the options that divide a GPU's memory, with what they are now."""
    ops = SimpleNamespace(dtype=np.dtype(np.float16), device_memory=lambda: (100_000, 900_000))
    config = read_model_config(model_directory("llama3"))
    options = EngineOptions(gpu_memory_utilization=0.8, max_num_seqs=256, max_num_batched_tokens=7)
    budget = memory_budget.cache_budget("cuda", ops, config, options)
    assert budget.num_bytes < 0
    assert "raise gpu_memory_utilization=0.8, lower max_num_batched_tokens=7 or max_num_seqs=256" in budget.advice
    with pytest.raises(OutOfMemoryError, match="2 for each of [0-9,]+ numbers, and 100,000 of the GPU's memory are free"):
        memory_budget.check_weights_fit("cuda", ops, config)


def test_bytes_for_the_cache_can_be_given_instead():
    with load(kv_cache_memory_bytes=9 * TOKEN + 1, block_size=1) as llm:
        assert llm.engine.cache_policy.num_blocks == llm.max_model_len == 9
    message = "max_model_len=10 does not fit .* lower max_model_len to 9, or raise kv_cache_memory_bytes=55296"
    with pytest.raises(OutOfMemoryError, match=message):
        load(kv_cache_memory_bytes=9 * TOKEN, block_size=1, max_model_len=10)
    message = "kv_cache_memory_bytes=[0-9,]+ is more than the [0-9,]+ bytes of this machine's memory that are free"
    with pytest.raises(OutOfMemoryError, match=message):
        load(kv_cache_memory_bytes=2**60)


@pytest.mark.parametrize("num_bytes", [100_000, 100_001])
def test_bytes_given_for_the_cache_of_a_gpu_leave_its_share_out_of_account(num_bytes):
    ops = SimpleNamespace(dtype=np.dtype(np.float16), device_memory=lambda: (100_000, 900_000))
    config = read_model_config(model_directory("llama3"))
    options = EngineOptions(gpu_memory_utilization=0.01, kv_cache_memory_bytes=num_bytes)
    if num_bytes <= 100_000:
        assert memory_budget.cache_budget("cuda", ops, config, options).num_bytes == num_bytes
    else:
        with pytest.raises(OutOfMemoryError, match="100,001 is more than the 100,000 bytes of the GPU's memory that are free: lower it"):
            memory_budget.cache_budget("cuda", ops, config, options)
