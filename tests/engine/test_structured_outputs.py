"""Structured outputs of an engine: whatever a random model prefers, each text parses; alone, in company, and beside other options.

With --exhaustive the forty schemas alone give 10,000 texts at temperature 1.
"""

import asyncio
import dataclasses
import json
import re
import types
import unicodedata
from functools import partial

import jsonschema
import pytest
from hypothesis import given, settings

from minllm import LLM, AsyncLLM, SamplingParams
from minllm.errors import InvalidRequestError, SamplingError
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import EOS, byte_level_tokenizer, ending_model_directory
from tests.engine.schemas import SCHEMAS, random_schemas, structured_params

pytest.importorskip("llguidance")
SMALL = dict(max_num_seqs=6, max_model_len=96, kv_cache_memory_bytes=12 * BLOCK_BYTES)
SIZES = dict(device="cpu", max_model_len=256, max_num_seqs=48, max_num_batched_tokens=512)
REGEXES = [r"\d{3}-[a-f]{2}/x", "(?:ab|c)+!", "[^a-z]{1,6}", "é*ü?[\\n\\t]"]


@pytest.fixture(scope="module")
def directory():
    return ending_model_directory()


@pytest.fixture(scope="module")
def structured(directory):
    with LLM(directory, **SIZES) as llm:
        yield llm


params = partial(structured_params, max_tokens=160)


def texts(llm, params, count=1):
    """The texts of `count` requests that ended by themselves; the others ran into max_tokens."""
    outputs = llm.generate([[5 + i, 7] for i in range(count)], params)
    assert {output.outputs[0].finish_reason for output in outputs} <= {"stop", "length"}
    return [output.outputs[0].text for output in outputs if output.outputs[0].finish_reason == "stop"]


def check_schema(llm, schema, count):
    """Whether all texts that ended are JSON that the schema allows, by another validator; returns their number."""
    found = texts(llm, params(json=schema, disable_any_whitespace=True), count)
    for text in found:
        jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    return len(found)


@pytest.mark.parametrize("name", SCHEMAS)
def test_outputs_are_json_of_the_schema(request, structured, name):
    count = 300 if request.config.option.exhaustive else 4
    ends = 0.5 if name == "an object of booleans" else 0.9  # its names may be long
    assert check_schema(structured, SCHEMAS[name], count) >= count * ends


def test_random_schemas(request, structured):
    count = 12 if request.config.option.exhaustive else 3

    @settings(max_examples=250 if request.config.option.exhaustive else 12, deadline=None)
    @given(random_schemas())
    def check(schema):
        check_schema(structured, schema, count)

    check()


@pytest.mark.parametrize("regex", REGEXES)
def test_outputs_match_the_expression(structured, regex):
    found = texts(structured, params(regex=regex), 6)
    assert found and all(re.fullmatch(regex, in_this_unicode(text)) for text in found)


def in_this_unicode(text):
    """The text with a zero for each character that a later Unicode than this Python's has: to the engine of grammars it may be a digit."""
    return "".join("0" if unicodedata.category(one) == "Cn" else one for one in text)


def test_outputs_are_choices_or_texts_of_the_grammar(structured):
    choices = ['"quoted"', "new\nline", "\\", "yes", "yes!"]
    found = texts(structured, params(choice=choices), 24)
    assert len(found) == 24 and set(found) <= set(choices) and len(set(found)) > 2
    balanced = 'root ::= "(" root ")" | "x"'
    for text in texts(structured, params(grammar=balanced), 8):
        assert re.fullmatch(r"\(*x\)*", text) and text.count("(") == text.count(")")
    for text in texts(structured, params(json_object=True), 8):
        assert isinstance(json.loads(text), dict)


def test_the_bundled_model_writes_json():
    with LLM(device="cpu", max_model_len=256, max_num_seqs=4) as llm:
        schema = SCHEMAS["a list of people"]
        outputs = llm.generate("def f():\n    return ", params(json=schema, whitespace_pattern=" ?", n=4, seed=3))
        for completion in outputs[0].outputs:
            assert completion.finish_reason == "stop"
            jsonschema.validate(json.loads(completion.text), schema)


OPTIONS = {
    "greedy": dict(temperature=0),
    "penalties": dict(repetition_penalty=1.5, frequency_penalty=1.0, presence_penalty=0.5),
    "top_k and top_p": dict(top_k=3, top_p=0.5, min_p=0.1),
    "min_tokens": dict(min_tokens=3),
    "bias": dict(logit_bias={5: 50.0}),
    "log-probabilities": dict(logprobs=3),
    "bad_words": dict(bad_words=["ab"]),
    "a processor": dict(logits_processors=[lambda ids, logits: -logits]),
    "best_of": dict(best_of=3),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_other_options_apply_beside_the_grammar(structured, options):
    regex = "[a-c]{4,9}"
    outputs = structured.generate([[5, 7], [6]], params(regex=regex, seed=1, **options))
    for output in outputs:
        text = output.outputs[0].text
        assert re.fullmatch(regex, text) and "ab" not in (text if "bad_words" in options else "")
        if "logprobs" in options:  # those of the model, before the mask
            assert any(len(one) == 4 for one in output.outputs[0].logprobs)  # the chosen token is not among its three likeliest


def test_company_changes_no_text(structured):
    """Requests with and without a grammar in one batch, which is larger than the engine."""
    free = SamplingParams(seed=5, max_tokens=12, ignore_eos=True)
    kinds = [dict(choice=["a", "bcd"]), None, dict(regex="[a-z]{3,8}"), None, dict(json={"type": "boolean"})]
    mixed = [free if kind is None else params(seed=1, **kind) for kind in kinds] * 12
    prompts = [[1 + i % 5, 2] for i in range(len(mixed))]
    together = [output.outputs[0].token_ids for output in structured.generate(prompts, mixed)]
    for index in range(5):
        alone = structured.generate([prompts[index]], [mixed[index]])[0].outputs[0].token_ids
        assert all(found == alone for found in together[index::5])


def test_a_stop_string_or_max_tokens_may_end_it_early(structured):
    [output] = structured.generate([[5]], params(regex="[ab]{30}", stop="b", seed=1))
    assert re.fullmatch("a*", output.outputs[0].text) and output.outputs[0].finish_reason == "stop"
    [output] = structured.generate([[5]], params(regex="[ab]{300}", max_tokens=5))
    assert output.outputs[0].finish_reason == "length" and re.fullmatch("[ab]+", output.outputs[0].text)


def test_behind_the_grammars_end_only_the_end_follows(structured):
    [output] = structured.generate([[5]], params(choice=["abc"], ignore_eos=True, max_tokens=9))
    assert output.outputs[0].text == "abc" and output.outputs[0].finish_reason == "length"
    assert output.outputs[0].token_ids[-1] == byte_level_tokenizer().token_to_id(EOS)


def test_a_mask_that_allows_nothing_ends_its_request_alone(structured):
    stuck = params(choice=["a"], allowed_token_ids=[700])
    with pytest.raises(SamplingError, match=r"allowed_token_ids=\[700\].*choice=\('a',\) leave none") as error:
        structured.generate([[5], [6]], [stuck, params(choice=["b"])])
    outputs = error.value.outputs
    assert [output.outputs[0].finish_reason for output in outputs] == ["error", "stop"] and outputs[1].outputs[0].text == "b"
    with pytest.raises(SamplingError, match=r"choice=\('a',\) and min_tokens=9, which bans the ids that end the text, leave none"):
        structured.generate([[5]], params(choice=["a"], min_tokens=9, repetition_penalty=1.2))  # a penalty that excludes nothing


def test_a_vocabulary_that_cannot_spell_the_text_ends_the_request(structured, monkeypatch):
    """llguidance then allows the end of the sequence, and takes it for accepted: the text must not pass for complete."""
    texts = list(structured.tokenizer.token_texts.texts)
    without = types.SimpleNamespace(texts=[b"" if b"q" in text else text for text in texts])
    monkeypatch.setitem(structured.tokenizer.__dict__, "token_texts", without)
    monkeypatch.delitem(structured.engine.__dict__, "grammars", raising=False)
    with pytest.raises(SamplingError, match="no token of the vocabulary continues the text") as error:
        structured.generate([[5], [6]], [params(choice=["aqa"]), params(choice=["b"])])
    structured.engine.__dict__.pop("grammars")
    assert [output.outputs[0].finish_reason for output in error.value.outputs] == ["error", "stop"]


def test_what_cannot_be_compiled_is_refused_before_anything_runs(structured):
    before = structured.llm_engine.stats()
    with pytest.raises(InvalidRequestError, match="Prompt 1.*Invalid type"):
        structured.generate([[5], [6]], [params(regex="a"), params(json={"type": "no type"})])
    assert structured.llm_engine.stats() == before


LIMITED = [({"minimum": -1e30}, "it holds -1e+30"), ({"allOf": [{"multipleOf": 1.1}, {"multipleOf": 9973}]}, "100,000 times")]


@pytest.mark.parametrize(("schema", "said"), LIMITED)
def test_schemas_have_no_numbers_beyond_the_limits(structured, schema, said):
    for wrong in (params(json={"anyOf": [schema]}), params(grammar=f'start: "x" %json\n{json.dumps(schema)}')):
        with pytest.raises(InvalidRequestError, match=re.escape(said)):
            structured.generate([[1]], wrong)


def test_other_numbers_are_followed(structured):
    schema = {"enum": [-(2**62), "-1e30"], "description": '"multipleOf": 109703', "multipleOf": 0.5}
    assert set(map(json.loads, texts(structured, params(json=schema), 4))) <= set(schema["enum"])


def test_a_grammar_that_gives_up_ends_its_request_alone(structured, monkeypatch):
    """As if llguidance reached a limit of its own at the second token."""
    from minllm.engine.requests.grammar import Grammar

    accept = Grammar.accept

    def limited(self, token_id):
        if self.description.kind == "regex":
            raise SamplingError("llguidance says enough")
        accept(self, token_id)

    monkeypatch.setattr(Grammar, "accept", limited)
    with pytest.raises(SamplingError, match="enough") as error:
        structured.generate([[5], [6]], [params(regex="[a-z]{9}"), params(choice=["yes"])])
    assert error.value.outputs[1].outputs[0].text == "yes"


def test_preempted_sequences_go_on_in_their_grammar(directory):
    with LLM(directory, **SIZES | SMALL) as small:
        found = texts(small, params(regex="[ab]{60}", seed=1), 6)
        assert small.llm_engine.stats().num_preemptions > 0
        assert len(found) == 6 and all(re.fullmatch("[ab]{60}", text) for text in found)


def test_streams(directory):
    async def run():
        llm = AsyncLLM(directory, **SIZES)
        try:
            return await asyncio.gather(*(one(llm, index) for index in range(4)))
        finally:
            llm.shutdown()

    async def one(llm, index):
        async for output in llm.generate([5 + index], params(json=SCHEMAS["a person"], disable_any_whitespace=True)):
            last = output
        return last

    for output in asyncio.run(run()):
        if output.outputs[0].finish_reason == "stop":
            jsonschema.validate(json.loads(output.outputs[0].text), SCHEMAS["a person"])


def test_parameters_with_a_grammar_can_be_copied_and_hashed():
    one = params(json={"type": "object"})
    assert hash(one) == hash(dataclasses.replace(one)) and one == dataclasses.replace(one)
    with pytest.raises(InvalidRequestError, match="structured_outputs="):
        SamplingParams(structured_outputs={"regex": "a"})
