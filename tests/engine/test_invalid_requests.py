"""Requests and options that cannot be: each is refused with its reason before anything is computed, and leaves nothing behind."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import minllm
from minllm import LLM, SamplingParams, TextPrompt, TokensPrompt
from minllm.engine.options import EngineOptions
from minllm.engine.requests.prompts import checked_salts, parse_prompts
from minllm.errors import CheckpointError, EngineBusyError, InvalidOptionError, InvalidRequestError
from tests.engine.models import model_directory
from tests.models.random_models import prompt

BAD_PROMPTS = [
    ("", "empty"),
    ([], "empty"),
    ([[]], "empty"),
    (["ok", ""], "empty"),
    ([[1, 2], []], "empty"),
    ([-1], "from 0 to 1002"),
    ([1003], "from 0 to 1002"),
    ([[5], [2**31]], "from 0 to 1002"),
    ([1.0, 2.0], "1.0 is not a token id"),
    ([math.nan], "nan is not a token id"),
    ([True, 2], "True is not a token id"),
    ([1, [2]], "not a token id"),
    ([1, "a"], "not a token id"),
    ([[[1]]], "not a token id"),
    ([["a"]], "not a token id"),
    ([None], "not a prompt"),
    (None, "not a prompt"),
    (5, "not a prompt"),
    (b"bytes", "not a prompt"),
    ({}, "neither prompt nor prompt_token_ids"),
    ({"cache_salt": "a"}, "neither prompt nor prompt_token_ids"),
    ({"text": "a"}, "'text' is not a key of a prompt: the keys are prompt, prompt_token_ids, cache_salt"),
    ({"prompt": "a", "multi_modal_data": {}}, "'multi_modal_data' is not a key"),
    ({"prompt": ""}, "empty"),
    ({"prompt": ["a"]}, '"prompt" of a prompt is a string'),
    ({"prompt": b"a"}, '"prompt" of a prompt is a string'),
    ({"prompt_token_ids": []}, "empty"),
    ({"prompt_token_ids": "a"}, "not a prompt"),
    ({"prompt_token_ids": [1003]}, "from 0 to 1002"),
    ({"prompt_token_ids": prompt(256)}, "256 tokens"),
    ({"prompt": "a", "cache_salt": ""}, "cache_salt=''"),
    (["ok", {"prompt": 5}], '"prompt" of a prompt is a string, and 5'),
    pytest.param(10**5000, "<int> is not a prompt", id="a number of 5,000 digits"),
    pytest.param([10**5000], "Token id <int> is outside the vocabulary", id="an id of 5,000 digits"),
    (np.zeros((2, 0), np.int64), "empty"),
    (np.array([1.5]), "not a token id"),
    ("lone \ud800 surrogate", "Unicode"),
    (prompt(256), "256 tokens, and max_model_len=256 allows 255"),
    (prompt(300), "300 tokens"),
]


@pytest.mark.parametrize("bad,reason", BAD_PROMPTS)
def test_bad_prompts(llm, monkeypatch, bad, reason):
    monkeypatch.setattr(llm.engine.runner, "execute", lambda step: pytest.fail("it was computed"))
    with pytest.raises(InvalidRequestError, match=reason):
        llm.generate(bad)
    with pytest.raises(InvalidRequestError):
        llm.stream(bad)


@pytest.mark.parametrize(
    "prompts,params,reason",
    [
        ([prompt(5), prompt(300), prompt(9)], SamplingParams(), "Prompt 1 of 3, counted from 0: The prompt has 300 tokens, and max"),
        (["a", "b", [1003]], SamplingParams(), "Prompt 2 of 3, counted from 0: Token id 1003 .* Nothing was computed"),
        (["a", "b"], [SamplingParams(), SamplingParams(stop_token_ids=[1003])], "Prompt 1 of 2, counted from 0: stop_token_ids holds 1003"),
    ],
)
def test_a_bad_request_among_good_ones_is_named_and_the_next_call_is_served(llm, monkeypatch, prompts, params, reason):
    """The whole call is refused before anything is computed, and the engine is as it was: later requests even draw the same seeds."""
    before = llm.llm_engine._num_requests
    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.runner, "execute", lambda step: pytest.fail("it was computed"))
        with pytest.raises(InvalidRequestError, match=reason):
            llm.generate(prompts, params)
    assert llm.llm_engine._num_requests == before and llm.engine.cache_policy.usage().allocated == 0
    good = [prompt(5), prompt(9)]
    assert [len(output.outputs[0].token_ids) for output in llm.generate(good, SamplingParams(max_tokens=2, ignore_eos=True))] == [2, 2]


@pytest.mark.parametrize("good", [" ", "\n", "\x00", "a", [0], [1002], prompt(255)])
def test_the_smallest_and_largest_prompts_run(llm, good):
    assert len(llm.generate(good, SamplingParams(max_tokens=1, temperature=0))[0].outputs[0].token_ids) == 1


@pytest.mark.parametrize(
    "params,reason",
    [
        ([SamplingParams()], "1 SamplingParams were given for 2 prompts"),
        ([], "0 SamplingParams"),
        ({"temperature": 1}, "not a SamplingParams"),
        ([SamplingParams(), None], "not a SamplingParams"),
        (SamplingParams(stop_token_ids=[1003]), "stop_token_ids holds 1003"),
        (SamplingParams(stop_token_ids=[10**5000]), "stop_token_ids holds <int>"),
    ],
)
def test_bad_parameters(llm, params, reason):
    with pytest.raises(InvalidRequestError, match=reason):
        llm.generate(["a", "b"], params)


@pytest.mark.parametrize(
    "salt,reason",
    [
        ("", "cache_salt='' is not allowed: it is a text of at least one character"),
        (5, "cache_salt=5 is not allowed"),
        (b"salt", "cache_salt=b'salt' is not allowed"),
        (["one", ""], "cache_salt='' is not allowed"),
        ({"a": "b"}, "cache_salt={'a': 'b'} is not allowed"),
        (["one"], "1 cache salts were given for 2 prompts: give one for all, or one for each"),
        ([], "0 cache salts"),
        (["one", None, "two"], "3 cache salts"),
    ],
)
def test_bad_salts(llm, salt, reason):
    with pytest.raises(InvalidRequestError, match=re.escape(reason)):
        llm.generate(["a", "b"], cache_salt=salt)


def test_a_prompts_own_salt(llm):
    salted = {"prompt": "a", "cache_salt": "one"}
    with pytest.raises(InvalidRequestError, match="Prompt 1 of 2, counted from 0: The prompt's own cache_salt differs from the call's"):
        llm.generate(["a", salted], cache_salt="two")
    parsed = parse_prompts([salted, "a"], llm.tokenizer.encode, 1003, 256)
    assert [one.cache_salt for one in parsed] == ["one", ""]
    assert checked_salts("one", parsed) == ["one", "one"] and checked_salts([None, "two"], parsed) == ["one", "two"]


def test_prompts_as_dictionaries(llm):
    text, ids = "def f(x):", llm.tokenizer.encode("def f(x):")
    prompts = [text, ids, {"prompt": text}, TextPrompt(prompt=text), TokensPrompt(prompt_token_ids=ids, prompt="its text"), np.array(ids)]
    outputs = llm.generate(prompts)
    assert [output.prompt for output in outputs] == [text, None, text, text, "its text", None]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 1
    assert all(output.prompt_token_ids == ids for output in outputs)
    assert llm.stream({"prompt": text}).output.prompt_token_ids == ids


ODD = st.sampled_from([10**400, np.float32(1), np.zeros((2, 2)), np.array(["a"]), {5}])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | ODD
KEYS = st.sampled_from(["prompt", "prompt_token_ids", "cache_salt"]) | st.text()
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=6)


@given(prompts=ANYTHING, salt=ANYTHING)
def test_anything_is_a_prompt_or_refused(prompts, salt):
    def encode(text):
        return [byte % 100 for byte in text.encode(errors="replace")]

    try:
        parsed = parse_prompts(prompts, encode, 100, 50, 4)
        assert all(one.token_ids and all(type(i) is int and 0 <= i < 100 for i in one.token_ids) for one in parsed)
        assert all(isinstance(one, str) for one in checked_salts(salt, parsed))
    except InvalidRequestError as error:
        assert len(str(error)) < 1000


def test_truncated_prompts(llm):
    long = prompt(400)
    kept = llm.generate(long, SamplingParams(truncate_prompt_tokens=7, temperature=0))[0]
    assert kept.prompt_token_ids == long[-7:]
    assert kept.outputs == llm.generate(long[-7:], SamplingParams(temperature=0))[0].outputs
    assert llm.generate(long, SamplingParams(truncate_prompt_tokens=-1, max_tokens=5))[0].prompt_token_ids == long[-251:]
    assert llm.generate([5, 6], SamplingParams(truncate_prompt_tokens=100))[0].prompt_token_ids == [5, 6]
    with pytest.raises(InvalidRequestError, match="256 tokens, and max_model_len=256 allows 255"):
        llm.generate(long, SamplingParams(truncate_prompt_tokens=256))


def test_without_detokenization_there_is_no_text(llm):
    params = dict(temperature=0, max_tokens=5, ignore_eos=True)
    silent, plain = (llm.generate("a", SamplingParams(detokenize=flag, **params))[0].outputs[0] for flag in (False, True))
    assert silent.text == "" and plain.text and silent.token_ids == plain.token_ids


def test_a_salt_changes_nothing_where_nothing_is_shared(llm):
    assert llm.generate("a", cache_salt="one")[0].outputs == llm.generate("a")[0].outputs


BAD_SCORES = [[], [1003], [-1], "text", [1.0], [True], None]


@pytest.mark.parametrize("bad", BAD_SCORES)
def test_bad_tokens_to_score(llm, bad):
    with pytest.raises(InvalidRequestError):
        llm.logits(bad)
    with pytest.raises(InvalidRequestError):
        llm.perplexity(bad)


def test_bad_windows(llm):
    for window, stride in ((100, 0), (100, 100), (100, 101), (1, 1), (0, 1), (100, -5), (100, 2.5), (100.0, 5)):
        with pytest.raises(InvalidRequestError, match="stride|window"):
            llm.perplexity(prompt(50), window=window, stride=stride)
    with pytest.raises(InvalidRequestError, match="at least 2"):
        llm.perplexity([5])
    with pytest.raises(InvalidRequestError, match="257 tokens"):
        llm.logits(prompt(257))


BAD_OPTIONS = [
    ("device", "gpu"),
    ("device", None),
    ("dtype", "int8"),
    ("dtype", np.float32),
    ("kv_cache_dtype", "int3"),
    ("quantization", "awq"),
    ("max_num_seqs", 0),
    ("max_num_seqs", 2.0),
    ("max_num_batched_tokens", -1),
    ("max_num_batched_tokens", True),
    ("max_model_len", 0),
    ("max_model_len", 513),
    ("block_size", 0),
    ("block_size", "16"),
    ("gpu_memory_utilization", 0),
    ("gpu_memory_utilization", 1.5),
    ("gpu_memory_utilization", math.nan),
    ("kv_cache_memory_bytes", 0),
    ("kv_cache_memory_bytes", 1e9),
    ("kv_cache_policy", "vmm"),
    ("enable_prefix_caching", "trie"),
    ("enable_prefix_caching", None),
    ("enable_prefix_caching", 1),
    ("enable_prefix_caching", np.zeros(2)),
    ("kv_cache_dtype", np.float16),
    ("kv_cache_dtype", ["int8"]),
    ("kv_cache_policy", np.array(["paged", "virtual"])),
    ("allocation", np.array(["pool", "slab"])),
    ("enforce_eager", 1),
    ("kernel_variants", ["matmul"]),
    ("kernel_variants", {"matmul": 1}),
    ("load_format", "pickle"),
    ("allow_nonfinite_weights", 1),
    ("allocation", "slab"),
    ("pinned", 1),
    ("seed", -1),
    ("seed", 1.5),
    ("model", 5),
]


@pytest.mark.parametrize("name,value", BAD_OPTIONS)
def test_bad_options(name, value):
    with pytest.raises(InvalidOptionError) as error:
        LLM(**{"model": model_directory("small"), "device": "cpu", name: value})
    assert f"{name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "alias,dtype", [("half", "float16"), ("fp16", "float16"), ("float", "float32"), ("fp32", "float32"), ("bf16", "bfloat16")]
)
def test_other_names_of_dtypes(alias, dtype):
    assert EngineOptions(dtype=alias).dtype == EngineOptions(dtype=dtype).dtype == dtype


@pytest.mark.parametrize("policy", ["contiguous", "virtual"])
def test_prefixes_are_shared_in_blocks_only(policy):
    for index in (True, "radix"):
        with pytest.raises(InvalidOptionError, match=f'enable_prefix_caching={index!r} .* False with kv_cache_policy="{policy}".*"paged"'):
            LLM(model_directory("small"), device="cpu", enable_prefix_caching=index, kv_cache_policy=policy)


@pytest.mark.parametrize("option", [dict(allocation="synchronous"), dict(allocation="pool"), dict(pinned=False)])
def test_memory_modes_are_a_gpus(option):
    [(name, value)] = option.items()
    with pytest.raises(InvalidOptionError, match=f"{name}={value!r} is about the memory of a GPU, and this LLM runs on the CPU"):
        LLM(model_directory("small"), device="cpu", **option)


def test_the_virtual_cache_is_not_quantised():
    with pytest.raises(InvalidOptionError, match='kv_cache_dtype=.int8. .*kv_cache_policy="virtual"'):
        LLM(model_directory("small"), device="cpu", kv_cache_dtype="int8", kv_cache_policy="virtual")


def test_kernels_are_not_chosen_on_a_cpu():
    with pytest.raises(InvalidOptionError, match="kernel_variants"):
        LLM(model_directory("small"), device="cpu", kernel_variants={"matmul": "tiled"})


def test_a_directory_that_is_none(tmp_path):
    for path in (tmp_path / "absent", tmp_path, "meta-llama/Llama-3.2-1B"):
        with pytest.raises(CheckpointError):
            LLM(path, device="cpu")


def test_a_closed_llm():
    llm = LLM(model_directory("small"), device="cpu", max_model_len=64)
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("a"), lambda: llm.stream("a"), lambda: llm.logits([1]), lambda: llm.tokenizer):
        with pytest.raises(EngineBusyError, match="closed"):
            call()


def test_progress_is_reported():
    seen = []
    LLM(model_directory("small"), device="cpu", max_model_len=64, progress=lambda *args: seen.append(args)).close()
    tasks = {task for task, _, _ in seen}
    assert tasks == {"Loading weights"} and all(0 < done <= total for _, done, total in seen) and seen[-1][1] == seen[-1][2]


def test_the_public_names():
    assert {"LLM", "SamplingParams", "RequestOutput", "CompletionOutput", "errors", "held_out_text"} <= set(dir(minllm))
    assert minllm.errors.InvalidRequestError is InvalidRequestError
    with pytest.raises(AttributeError, match="no attribute 'LLMs'"):
        minllm.LLMs  # noqa: B018
