"""Generation on a GPU, with decode steps as CUDA graphs and eager: the checks that tests/engine makes with NumPy."""

import numpy as np
import pytest

from minllm import LLM, ContrastiveSearchParams, SamplingParams
from minllm.runtime import compiler
from tests.engine import checks
from tests.engine.models import model_directory
from tests.gpu.agreement import KV_CACHE_BYTES
from tests.models.random_models import FAMILIES, prompt

RUNNERS = pytest.mark.parametrize("enforce_eager", [False, True], ids=["graph", "eager"])


@pytest.fixture(scope="module", params=[False, True], ids=["graph", "eager"])
def llm(request):
    """A random Llama 3 in float32 on the GPU."""
    options = dict(max_model_len=256, max_num_seqs=8, kv_cache_memory_bytes=KV_CACHE_BYTES, enforce_eager=request.param)
    with LLM(model_directory("llama3"), device="cuda", **options) as llm:
        yield llm


@pytest.mark.covering("family", "enforce_eager")
@RUNNERS
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_equals_transformers(family, enforce_eager):
    checks.check_greedy_equals_transformers(family, device="cuda", kv_cache_memory_bytes=KV_CACHE_BYTES, enforce_eager=enforce_eager)


@pytest.mark.covering("family", "enforce_eager")
@RUNNERS
@pytest.mark.parametrize("family", ["llama3", "gpt2"])
def test_beam_search_equals_transformers(family, enforce_eager):
    options = dict(device="cuda", max_num_seqs=8, kv_cache_memory_bytes=KV_CACHE_BYTES, enforce_eager=enforce_eager)
    checks.check_beam_search_equals_transformers(family, 4, **options)


def test_contrastive_search_equals_that_of_the_cpu(llm):
    params = ContrastiveSearchParams(max_tokens=20, ignore_eos=True)
    with LLM(model_directory("llama3"), device="cpu", max_model_len=256) as other:
        [expected] = other.contrastive_search(prompt(30), params)
    assert llm.contrastive_search(prompt(30), params)[0].outputs[0].token_ids == expected.outputs[0].token_ids


@pytest.mark.covering("options", "llm")
@pytest.mark.parametrize("options", checks.BATCHINGS)
def test_how_requests_are_batched_changes_no_token(llm, options):
    checks.check_batching_changes_no_token(llm, device="cuda", kv_cache_memory_bytes=KV_CACHE_BYTES, **options)


@pytest.mark.covering("index", "llm")
@pytest.mark.parametrize("index", ["hash", "radix"])
def test_prefix_caching_changes_no_token(llm, index):
    checks.check_prefix_caching_changes_no_token(llm, device="cuda", enable_prefix_caching=index, kv_cache_memory_bytes=KV_CACHE_BYTES)


def test_requests_compile_nothing(llm, monkeypatch):
    """Whatever numbers of rows a step has, its kernels were compiled while the engine was loading."""
    monkeypatch.setattr(compiler, "compile_fresh", lambda function, *_: pytest.fail(f"{function.__name__} was compiled"))
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=3, temperature=temperature)
        for length in (1, 2, 5, 9, 17, 33, 64, 100, 200, 250):
            llm.generate([prompt(length)], params)
        for count in range(2, 9):
            llm.generate([prompt(3)] * count, params)


def test_parallel_samples(llm):
    checks.check_parallel_samples(llm)


def test_a_batch_of_one_equals_a_batch_of_many(llm):
    checks.check_a_batch_of_one_equals_a_batch_of_many(llm)


def test_seeded_requests_repeat_and_ignore_their_neighbours(llm):
    checks.check_seeded_requests(llm)


def test_options_of_neighbours_do_not_mix(llm):
    checks.check_endings(llm)


def test_leaving_a_stream_early_frees_its_blocks(llm):
    with llm.stream("def f(x):", SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)) as stream:
        next(stream)
    assert llm.engine.cache_policy.usage().allocated == 0
    checks.check_a_batch_of_one_equals_a_batch_of_many(llm)


def test_logits_and_perplexity_equal_numpys(llm):
    with LLM(model_directory("llama3"), device="cpu", max_model_len=256) as numpy_llm:
        expected = numpy_llm.logits(prompt(130))
        np.testing.assert_allclose(llm.logits(prompt(130)), expected, rtol=0, atol=1e-4 * np.abs(expected).max())
        assert llm.perplexity(prompt(300), 64, 32) == pytest.approx(numpy_llm.perplexity(prompt(300), 64, 32), rel=1e-4)


@pytest.mark.alone
def test_closing_gives_the_memory_back():
    from minllm.runtime.device import current_device

    def used():
        free, total = current_device().memory_info()
        return total - free

    for _ in range(3):  # each takes half of the GPU's memory
        with LLM(model_directory("llama3"), device="cuda", max_num_seqs=4, gpu_memory_utilization=0.5) as llm:
            llm.generate(prompt(5), checks.GREEDY)
            within = used()
    assert used() <= within
