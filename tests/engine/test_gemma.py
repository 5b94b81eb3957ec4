"""Gemma 2 and 3 in the engine: greedy texts that leave their windows are transformers', and blocks that left a window are freed."""

import functools

import numpy as np
import pytest

from minllm import LLM, SamplingParams
from tests.engine.models import model_directory, transformers_greedy
from tests.models.random_models import FAMILIES, prompt

NEW_TOKENS = 30
GREEDY = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
PROMPTS = [prompt(length) for length in (3, 17, 41)]  # shorter and longer than the window
WINDOW = FAMILIES["gemma3"].options["sliding_window"]

pytestmark = pytest.mark.filterwarnings("ignore:The tokenizer of")  # the class is another than GemmaTokenizer


@functools.cache
def expected(family="gemma3"):
    return [transformers_greedy(family, token_ids, NEW_TOKENS) for token_ids in PROMPTS]


def engine(family="gemma3", **options):
    sizes = dict(max_model_len=96, max_num_seqs=3, max_num_batched_tokens=16, block_size=4)
    return LLM(model_directory(family), device="cpu", **{**sizes, **options})


def texts(llm, prompts=PROMPTS, params=GREEDY):
    return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]


@pytest.fixture
def gemma():
    """An engine whose local blocks are few; all are free again afterwards."""
    with engine() as gemma:
        yield gemma
        gemma.engine.cache_policy.check()
        assert gemma.engine.cache_policy.windows.num_used == 0


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_greedy_texts_past_the_window_are_those_of_transformers(family):
    """Prompts together, in chunks; only windows keep their local blocks."""
    with engine(family) as llm:
        assert texts(llm) == expected(family)
        windows = llm.engine.cache_policy.windows
        left = sum(len(one) + NEW_TOKENS - 1 - WINDOW for one in PROMPTS)  # tokens that left their windows
        assert llm.llm_engine.stats().num_window_blocks_freed >= left // 4 - len(PROMPTS)
        each = -(-WINDOW // 4) + 2
        assert windows.room.num_blocks == 3 * each + windows.room.blocks_of_a_step < llm.engine.cache.num_blocks


@pytest.mark.parametrize("options", [dict(enable_prefix_caching=True), dict(enable_prefix_caching="radix")], ids=["hash", "radix"])
def test_prefixes_are_reused_where_a_window_is_left(options):
    """Again, with other endings, and after another text has taken local blocks: never a block without its window."""
    with engine(**options) as llm:
        for _ in range(2):
            for prompts in ([PROMPTS[2]], PROMPTS, [prompt(60, seed=1)], PROMPTS[::-1]):
                found = texts(llm, prompts)
                llm.engine.cache_policy.check()
                assert found == [expected()[PROMPTS.index(one)] if one in PROMPTS else found[0] for one in prompts]
        hits = llm.engine.cache_policy.prefix_hits
        assert 0 < hits.tokens_hit < hits.tokens_asked


def test_preempted_sequences_are_recomputed():
    with engine(kv_cache_memory_bytes=230_000, max_num_seqs=3) as small:
        assert small.engine.cache.num_bytes <= 230_000
        assert texts(small, PROMPTS[1:] * 3) == expected()[1:] * 3
        assert small.llm_engine.stats().num_preemptions > 0


def test_completions_of_a_prompt_share_its_local_blocks(gemma):
    params = SamplingParams(temperature=1.5, max_tokens=NEW_TOKENS, ignore_eos=True, n=3, seed=5)
    with engine(preemption="swap") as whole:  # keeps the whole context in all layers
        assert whole.engine.cache_policy.windows is None
        same = [[one.token_ids for one in output.outputs] for output in whole.generate(PROMPTS, params)]
    assert [[one.token_ids for one in output.outputs] for output in gemma.generate(PROMPTS, params)] == same


def test_a_text_is_scored_in_chunks(gemma):
    with engine(preemption="swap") as whole:
        np.testing.assert_allclose(gemma.logits(PROMPTS[2]), whole.logits(PROMPTS[2]), rtol=0, atol=1e-3)
