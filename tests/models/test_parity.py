"""The NumPy forward against transformers, one random model a family, and against itself however the tokens are fed."""

import numpy as np
import pytest

from minllm.models.decoder import forward
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import PagedSequences, logits_in_chunks, logits_of
from tests.models.parity import HALF_PRECISION_CASES, check_float32, check_greedy, check_half_precision, loaded
from tests.models.random_models import FAMILIES, prompt, random_model, reference_logits


@pytest.mark.parametrize("family", FAMILIES)
def test_float32_logits_equal_transformers(family):
    check_float32(NumpyOps("float32"), family)


@pytest.mark.parametrize(("family", "dtype"), HALF_PRECISION_CASES)
def test_half_precision_is_no_worse_than_transformers(family, dtype):
    check_half_precision(NumpyOps(dtype), family, dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_random_models_are_a_real_test(family):
    """Logits spread over units, and depend on tokens far back: otherwise parity would prove little."""
    model = random_model(family)
    tokens = prompt(17)
    logits = reference_logits(model, tokens)
    assert logits.std() > 0.5
    changed = reference_logits(model, [(tokens[0] + 1) % 1003, *tokens[1:]])
    assert np.abs(changed[8] - logits[8]).max() > 1e-3


@pytest.mark.parametrize("family", ["llama3", "mistral", "qwen2_window", "qwen3", "qwen2_moe", "qwen3_moe", "gemma2", "gemma3", "gpt2"])
def test_decoding_token_by_token_equals_one_forward(family):
    ops = NumpyOps("float32")
    model = loaded(ops, family)
    tokens = prompt(41)
    whole = logits_of(ops, model, tokens)
    for chunks in ([17] + [1] * 24, [7] * 5 + [6], [40, 1]):
        np.testing.assert_allclose(logits_in_chunks(ops, model, tokens, chunks), whole, rtol=0, atol=2e-5 * np.abs(whole).max())


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
def test_greedy_tokens_equal_transformers(family):
    check_greedy(NumpyOps("float32"), family)


@pytest.mark.parametrize("block_size", [1, 16, 256])
@pytest.mark.parametrize("family", ["llama2", "mistral"])
def test_block_size_changes_nothing(family, block_size):
    ops = NumpyOps("float32")
    model = loaded(ops, family)
    tokens = prompt(130)
    whole = logits_of(ops, model, tokens, block_size=7)
    ours = logits_in_chunks(ops, model, tokens, [64, 63, 1, 1, 1], block_size)
    np.testing.assert_allclose(ours, whole, rtol=0, atol=2e-5 * np.abs(whole).max())


@pytest.mark.parametrize("family", ["smollm", "mistral", "gpt2"])
def test_a_batch_of_many_equals_each_alone(family):
    ops = NumpyOps("float32")
    model = loaded(ops, family)
    prompts = [prompt(length, seed) for seed, length in enumerate((1, 16, 37, 5))]
    more = [prompt(length, seed + 10) for seed, length in enumerate((3, 1, 1, 8))]
    sequences = PagedSequences(ops, model.config, [len(a) + len(b) for a, b in zip(prompts, more, strict=True)])
    first = forward(ops, model, sequences.append(prompts), sequences.cache)
    second = forward(ops, model, sequences.append(more, last_row_only=True), sequences.cache)
    ends = np.cumsum([0] + [len(p) for p in prompts])
    for index, (a, b) in enumerate(zip(prompts, more, strict=True)):
        alone = logits_of(ops, model, a + b)
        tolerance = dict(rtol=0, atol=2e-5 * np.abs(alone).max())
        np.testing.assert_allclose(first[ends[index] : ends[index + 1]], alone[: len(a)], **tolerance)
        np.testing.assert_allclose(second[index], alone[-1], **tolerance)
