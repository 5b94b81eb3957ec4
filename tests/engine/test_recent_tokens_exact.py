"""The engine with a residual window, on a CPU: one meaning however a text is cut, forks, bytes, and what it refuses."""

import numpy as np
import pytest

from minllm import LLM, SamplingParams, held_out_text
from minllm.errors import InvalidOptionError, OutOfMemoryError
from tests.engine.models import model_directory

GREEDY = SamplingParams(temperature=0.0, max_tokens=70, ignore_eos=True)
FORMATS = {
    "kivi_int4": dict(kv_cache_dtype="kivi_int4", kv_cache_residual_window=64),
    "kivi_int4 in large blocks": dict(kv_cache_dtype="kivi_int4", kv_cache_residual_window=32, block_size=96),
    "kivi_int4 contiguous": dict(kv_cache_dtype="kivi_int4", kv_cache_residual_window=32, kv_cache_policy="contiguous"),
    "int8": dict(kv_cache_dtype="int8", kv_cache_residual_window=32),
    "fp8_e4m3": dict(kv_cache_dtype="fp8", kv_cache_residual_window=64),
}


def small(family="small", **options):
    return LLM(model_directory(family), device="cpu", dtype="float32", **dict(dict(max_num_seqs=3, max_model_len=224), **options))


@pytest.mark.parametrize("options", FORMATS.values(), ids=FORMATS)
def test_whole_in_chunks_and_token_by_token(options):
    """The same logits, but for a code here and there where float32 sums differ; far from the plain cache's, so codes were read."""
    token_ids, found = [7 * i % 1003 for i in range(200)], []
    for budget in (2048, 41, 1):
        with small("llama3", max_num_batched_tokens=budget, **options) as llm:
            found.append(llm.logits(token_ids))
    with small("llama3") as llm:
        plain = llm.logits(token_ids)
    for chunked in found[1:]:
        assert np.linalg.norm(chunked - found[0]) < 0.005 * np.linalg.norm(found[0])
    window = options["kv_cache_residual_window"]
    assert np.linalg.norm(found[0] - plain) > 0.008 * np.linalg.norm(plain)
    if options["kv_cache_dtype"] == "kivi_int4":  # nothing has left the window of these queries
        np.testing.assert_allclose(found[0][: window + 31], plain[: window + 31], atol=1e-4)


@pytest.mark.parametrize("options", list(FORMATS.values())[::3], ids=list(FORMATS)[::3])
def test_decoding_reads_what_scoring_reads(options):
    """Greedy tokens of two sequences that cross several groups are the likeliest ones of their own texts, scored in the middle of it."""
    with small(**options) as llm:
        prompts = [[7 * i % 1003 for i in range(90)], [11 * i % 1003 for i in range(33)]]
        alone = [llm.generate([prompt], GREEDY)[0].outputs[0].token_ids for prompt in prompts]
        core, sequences = llm.llm_engine.core, [sequence for [sequence] in llm._requests(prompts, GREEDY)]
        for sequence in sequences:
            core.add(sequence)
        while core.step():
            if len(sequences[0].output_token_ids) == 35:
                logits = [llm.logits(prompt + tokens) for prompt, tokens in zip(prompts, alone, strict=True)]
        together = [output.outputs[0].token_ids for output in llm.generate(prompts, GREEDY)]
        assert together == alone
        for prompt, tokens, scores in zip(prompts, alone, logits, strict=True):
            likeliest = scores.argmax(axis=1)[len(prompt) - 1 : -1]
            assert np.mean(likeliest == tokens) > 0.95


def test_the_bundled_model_loses_little():
    with LLM(device="cpu", max_num_seqs=1, max_model_len=320) as llm:
        token_ids = llm.tokenizer.encode(held_out_text()[4000:5000])[:300]
        plain = llm.perplexity(token_ids, 300, 150)
    with LLM(device="cpu", kv_cache_dtype="kivi_int4", kv_cache_residual_window=32, max_num_seqs=1, max_model_len=320) as llm:
        assert llm.perplexity(token_ids, 300, 150) == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize("name", ["kivi_int4", "int8"])
def test_the_cache_counts_its_own_bytes(name):
    with small(kv_cache_dtype=name, kv_cache_residual_window=64, max_num_batched_tokens=100) as llm:
        cache = llm.engine.cache
        arrays = [*cache.arrays, cache.rings, *cache.layers[0].recent.scratch]
        assert cache.num_bytes == sum(array.nbytes for array in arrays)
        assert cache.layers[0].recent.rings[0].shape[:2] == (4 * 3, 32)  # three sequences and a text that is scored


def test_defaults_follow_the_format():
    with small(kv_cache_dtype="kivi_int4", max_model_len=64) as llm:
        assert llm.engine.cache.shape.residual_window == 128 and llm.engine.cache.block_size == 32
    with small(kv_cache_dtype="int4", max_model_len=64) as llm:
        assert llm.engine.cache.shape.residual_window == 0 and llm.engine.cache.block_size == 16


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "kv_cache_residual_window=48 .* multiple of 32": dict(kv_cache_dtype="int8", kv_cache_residual_window=48),
        "kv_cache_residual_window=-32 ": dict(kv_cache_dtype="int8", kv_cache_residual_window=-32),
        "kv_cache_residual_window=True ": dict(kv_cache_dtype="int8", kv_cache_residual_window=True),
        "kv_cache_residual_window=64 .* keeps all as it is": dict(kv_cache_residual_window=64),
        "kv_cache_residual_window=0 .* at least 32 with kivi_int4": dict(kv_cache_dtype="kivi_int4", kv_cache_residual_window=0),
        "block_size=16 .* multiple of 32 with kv_cache_dtype='kivi_int4'": dict(kv_cache_dtype="kivi_int4", block_size=16),
        "enable_prefix_caching=True .* residual window": dict(kv_cache_dtype="kivi_int4", enable_prefix_caching=True),
        'kv_cache_dtype=.* with kv_cache_policy="virtual"': dict(kv_cache_dtype="kivi_int4", kv_cache_policy="virtual"),
        "reads codes alone": dict(
            kv_cache_dtype="int8", kv_cache_residual_window=32, kernel_variants={"attention": "flash_attention_2_quantized"}
        ),
    }.items(),
)  # fmt: skip
def test_what_does_not_go_together_is_refused(message, options):
    with pytest.raises(InvalidOptionError, match=message):
        small(**options)


def test_windows_that_take_all_memory_are_explained(monkeypatch):
    monkeypatch.setattr("minllm.engine.build.memory_budget.available_host_bytes", lambda: 10_000_000)
    with pytest.raises(OutOfMemoryError, match="residual windows of 4000 sequences take .* lower kv_cache_residual_window or max_num_seqs"):
        small(kv_cache_dtype="kivi_int4", max_num_seqs=4000)
