"""Structured outputs with speculation: the text is that of decoding without drafts, and right drafts are accepted in any spelling."""

import json
import re
from functools import partial

import jsonschema
import pytest

from minllm import LLM, SamplingParams
from tests.engine.models import byte_level_tokenizer, ending_model_directory
from tests.engine.running.test_step_graphs import QueueMachine, steps_ended, with_graphs
from tests.engine.schemas import SCHEMAS, structured_params
from tests.engine.test_speculation import Hints, everything, ngrams, texts_of

pytest.importorskip("llguidance")
SIZES = dict(device="cpu", max_model_len=256, max_num_seqs=5, max_num_batched_tokens=64, dtype="float32")
FREE = SamplingParams(seed=4, max_tokens=9, ignore_eos=True)


params = partial(structured_params, max_tokens=60)


GREEDY = dict(temperature=0, logprobs=1)
MIX = [
    params(regex="(?:abc|d){9}", **GREEDY),
    FREE,
    params(json=SCHEMAS["a call of a tool"], disable_any_whitespace=True, seed=1),
    params(choice=["abcabcabc", "b"], seed=2),
    params(regex="[0-9]{25}", seed=3),
    params(regex="[0-9]{2}", ignore_eos=True, max_tokens=12, seed=7),
    params(regex="[a-c]{20}", repetition_penalty=1.3, min_tokens=4, seed=5),
    params(json_object=True, temperature=0),
]
PROMPTS = [[5], [6, 7, 6, 7], [8] * 20, [9], [3, 4] * 9, [2], [1], [12]]


@pytest.fixture(scope="module")
def plain():
    with LLM(ending_model_directory(), **SIZES) as llm:
        return llm.generate(PROMPTS, MIX)


@pytest.mark.parametrize("on_graphs", [False, True])
def test_the_text_is_that_of_plain_decoding(plain, on_graphs):
    """With n-grams, and with hints that know the texts, except for some mistakes."""
    with LLM(ending_model_directory(), **SIZES, speculative_config=ngrams()) as llm:
        if on_graphs:
            with_graphs(llm, QueueMachine(), 5, 256, 64)
        assert everything(llm.generate(PROMPTS, MIX)) == everything(plain)
        steps_ended(llm)
        llm.engine.runner.speculator.source = Hints(texts_of(plain))
        if on_graphs:
            llm.engine.runner.graphs._graphs.clear()  # they hold the source
        before = llm.llm_engine.stats().spec_decode_num_accepted_tokens
        assert everything(llm.generate(PROMPTS, MIX)) == everything(plain)
        steps_ended(llm)
        assert llm.llm_engine.stats().spec_decode_num_accepted_tokens - before > 50
        assert llm.engine.cache_policy.usage().allocated == 0


def test_drafts_in_another_spelling_are_accepted_where_the_grammar_forces_the_text():
    """A model that prefers single letters writes them, though the tokenizer would merge them; its drafts are right."""
    tokenizer = byte_level_tokenizer()
    letters = [tokenizer.encode(letter).ids[0] for letter in "self"]
    assert len(tokenizer.encode("self").ids) < 4
    forced = params(choice=["self" * 6], temperature=0, logit_bias={letter: 100.0 for letter in letters})
    with LLM(ending_model_directory(), **SIZES, speculative_config=ngrams()) as llm:
        [output] = llm.generate([[5]], forced)
        assert output.outputs[0].text == "self" * 6 and output.outputs[0].token_ids[:-1] == letters * 6
        assert llm.llm_engine.stats().spec_decode_num_accepted_tokens > 8


@pytest.mark.parametrize("method", ["a draft model that draws", "a tree", "accepted at random"])
def test_other_drafts(method):
    itself = {"model": str(ending_model_directory()), "num_speculative_tokens": 3}
    configs = {
        "a draft model that draws": itself | {"draft_sample_method": "probabilistic"},
        "a tree": itself | {"speculative_token_tree": "[(0,), (1,), (0, 0)]"},
        "accepted at random": ngrams() | {"synthetic_acceptance_rate": 0.5},
    }
    with LLM(ending_model_directory(), **SIZES, speculative_config=configs[method]) as llm:
        schema = SCHEMAS["a call of a tool"]
        for output in llm.generate([[5], [6], [7]] * 3, params(json=schema, disable_any_whitespace=True, max_tokens=150)):
            assert output.outputs[0].finish_reason == "stop"
            jsonschema.validate(json.loads(output.outputs[0].text), schema)
        accepted = llm.llm_engine.stats().spec_decode_num_accepted_tokens
        assert (accepted > 0) == (method == "a draft model that draws")
        [output] = llm.generate([[5]], params(regex="[ab]{12}"))
        assert re.fullmatch("[ab]{12}", output.outputs[0].text)


def test_drawn_drafts_change_no_frequency(request):
    """The chi-square statistic of two samples of three texts exceeds 13.8 with probability 0.001."""
    count = 400 if request.config.option.exhaustive else 80
    texts, counts = ["ab", "ba", "bb"], []
    itself = {"model": str(ending_model_directory()), "num_speculative_tokens": 3, "draft_sample_method": "probabilistic"}
    for config in (None, itself):
        with LLM(ending_model_directory(), **SIZES | dict(max_num_seqs=64), speculative_config=config, seed=11) as llm:
            found = [output.outputs[0].text for output in llm.generate([[5]] * count, params(choice=texts, temperature=2.0))]
            counts.append([found.count(text) for text in texts])
    assert min(map(min, counts)) > count / 16
    assert sum((one - other) ** 2 / (one + other) for one, other in zip(*counts, strict=True)) < 13.8
