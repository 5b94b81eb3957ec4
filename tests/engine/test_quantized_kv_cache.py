"""The engine with a quantised KV cache, on a CPU: quality, bytes, and what it refuses."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from minllm import LLM, SamplingParams, held_out_text
from minllm.cache.kv_cache import CacheShape
from minllm.engine.build.cache_format import cache_shape, check_cache_dtype, check_shape
from minllm.engine.build.calibration import calibrate
from minllm.engine.options import EngineOptions
from minllm.errors import InvalidOptionError, OutOfMemoryError, UnsupportedModelError
from minllm.kernels.quantization.formats import TOKEN_FORMATS
from minllm.runtime import device
from tests.engine.models import model_directory

# The most that a format may add to the perplexity of so short a text, and bytes of a head of 64 of one token.
ALLOWED, BYTES = {"int8": 0.01, "int4": 0.12, "fp8_e4m3": 0.05, "fp8_e5m2": 0.08}, {"int8": 68, "int4": 40, "fp8_e4m3": 64, "fp8_e5m2": 64}


@pytest.fixture(scope="module")
def plain():
    """The bundled model with a plain cache: its tokens of some text, and their logits."""
    with LLM(device="cpu", max_num_seqs=1, max_model_len=320) as llm:
        token_ids = llm.tokenizer.encode(held_out_text()[4000:5000])[:300]
        return token_ids, llm.logits(token_ids), llm.perplexity(token_ids, 300, 150)


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_the_bundled_model_loses_little(name, plain):
    token_ids, expected, perplexity = plain
    with LLM(device="cpu", kv_cache_dtype=name, max_num_seqs=1, max_model_len=320) as llm:
        cache = llm.engine.cache
        assert cache.num_bytes == 2 * 6 * cache.num_tokens * BYTES[name]
        assert llm.perplexity(token_ids, 300, 150) == pytest.approx(perplexity, rel=ALLOWED[name])
        assert np.abs(llm.logits(token_ids) - expected).max() > 0.01  # it was quantised
        assert len(llm.generate([token_ids[:9]], SamplingParams(temperature=0.0, max_tokens=3))[0].outputs[0].token_ids) == 3


@pytest.mark.parametrize("name", TOKEN_FORMATS)
def test_chunks_see_what_the_whole_sees(name):
    """A chunk reads what earlier ones left in the cache just as it reads its own tokens. Where float32 sums differ, a code may too."""
    token_ids, found = [7 * i % 1003 for i in range(150)], []
    for budget in (2048, 41):
        options = dict(kv_cache_dtype=name, max_num_seqs=1, max_model_len=160, max_num_batched_tokens=budget)
        with LLM(model_directory("small"), device="cpu", dtype="float32", **options) as llm:
            found.append(llm.logits(token_ids))
    assert np.linalg.norm(found[1] - found[0]) < 0.01 * np.linalg.norm(found[0])


def test_the_cache_counts_its_own_bytes():
    with LLM(model_directory("small"), device="cpu", kv_cache_dtype="int8", max_num_seqs=2, max_model_len=64) as llm:
        cache = llm.engine.cache
        arrays = [array for layer in cache.layers for half in (layer.key, layer.value) for array in (half.codes, half.scales)]
        assert cache.num_bytes == sum(array.nbytes for array in arrays)


def test_keys_are_smoothed_and_scales_leave_room():
    with LLM(device="cpu", max_num_seqs=1, max_model_len=200) as llm:
        engine = llm.engine
        shape = cache_shape(engine.model.config, engine.ops.dtype, 16, "fp8")
        found = calibrate(engine.ops, engine.model, shape, engine.tokenizer, 200)
    assert found.smoothing.shape == (6, 3, 1, 64) and found.scales.shape == (6, 2, 1)
    assert np.abs(found.smoothing[:, 0]).max() > 1 and (found.scales > 0).all() and (found.scales * 448 < 100).all()
    np.testing.assert_allclose(found.smoothing[:, 1] * found.smoothing[:, 2], 1, rtol=1e-6)
    assert 1.2 < found.smoothing[:, 2].max() < 4


def test_a_head_that_does_not_fit_the_format_is_refused():
    with pytest.raises(InvalidOptionError, match="kv_cache_dtype='int4' is not allowed with this model: head_dim"):
        LLM(model_directory("gpt2"), device="cpu", kv_cache_dtype="int4")


def test_a_block_may_be_longer_than_any_text():
    """What the model is looked at with is a small cache of its own, whatever the blocks of the real one are."""
    with pytest.raises(OutOfMemoryError, match="a block of 1099511627776 tokens takes"):
        LLM(device="cpu", kv_cache_dtype="int8", block_size=2**40)


def test_an_attention_of_ones_own_reads_plain_caches():
    class Own:
        attention, workspace_shapes = staticmethod(lambda *_: None), staticmethod(lambda *_: {})

    with pytest.raises(InvalidOptionError, match="reads a plain cache"):
        LLM(device="cpu", kv_cache_dtype="int8", kernel_variants={"attention": Own})


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_fp8_on_a_gpu_without_it_is_refused(monkeypatch, name):
    ampere, ada = (SimpleNamespace(compute_capability=capability) for capability in ((8, 6), (8, 9)))
    monkeypatch.setattr(device, "current_device", lambda: ampere)
    with pytest.raises(InvalidOptionError, match=f"kv_cache_dtype='{name}' needs .* 8.9 or more, and this one has 8.6: take int8 or int4"):
        check_cache_dtype("cuda", "bfloat16", EngineOptions(kv_cache_dtype=name))
    check_cache_dtype("cuda", "bfloat16", EngineOptions(kv_cache_dtype="int8"))
    monkeypatch.setattr(device, "current_device", lambda: ada)
    check_cache_dtype("cuda", "bfloat16", EngineOptions(kv_cache_dtype=name))


def test_a_quantised_cache_takes_16_bits_on_a_gpu():
    with pytest.raises(InvalidOptionError, match="goes with the dtypes float16 and bfloat16 on a GPU, and dtype is float32"):
        check_cache_dtype("cuda", "float32", EngineOptions(kv_cache_dtype="int8"))


def test_a_kernel_of_quantised_caches_needs_one():
    wanted = dict(kernel_variants={"attention": "split_quantized"})
    with pytest.raises(InvalidOptionError, match="'split_quantized' in kernel_variants reads a quantised cache: choose a kv_cache_dtype"):
        check_cache_dtype("cuda", "bfloat16", EngineOptions(**wanted))


@pytest.mark.parametrize("head_dim", [4, 12, 264, 512])
def test_heads_that_no_kernel_takes_are_refused_on_a_gpu(head_dim):
    shape = CacheShape(2, 16, 2, head_dim, np.dtype(np.float16))
    with pytest.raises(UnsupportedModelError, match=f"have {head_dim} components, and attention on a GPU takes multiples of 8 up to 256"):
        check_shape("cuda", shape)
    check_shape("cpu", shape)
    check_shape("cuda", replace(shape, head_dim=256))


def test_blocks_that_no_kernel_addresses_are_refused_on_a_gpu():
    largest = CacheShape(2, 2**21 - 1, 8, 128, np.dtype(np.float16))
    check_shape("cuda", largest)
    too_large = replace(largest, block_size=2**21)
    with pytest.raises(InvalidOptionError, match="block_size=2097152 is not allowed .* take 2097151 or less"):
        check_shape("cuda", too_large)
    check_shape("cpu", too_large)
