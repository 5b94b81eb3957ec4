"""Gemma 2 and 3 in the engine: greedy texts that leave their windows are transformers'."""

import pytest

from minllm import LLM, SamplingParams
from tests.engine.models import model_directory, transformers_greedy
from tests.models.random_models import FAMILIES, prompt

NEW_TOKENS = 30


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_greedy_texts_past_the_window_are_those_of_transformers(family):
    """Prompts shorter and longer than the window of 13, together, in chunks."""
    prompts = [prompt(length) for length in (3, 17, 41)]
    assert FAMILIES[family].options["sliding_window"] < 17
    with LLM(model_directory(family), device="cpu", max_model_len=96, max_num_seqs=3, max_num_batched_tokens=16, block_size=4) as llm:
        outs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True))
    for token_ids, out in zip(prompts, outs, strict=True):
        assert list(out.outputs[0].token_ids) == transformers_greedy(family, token_ids, NEW_TOKENS)
