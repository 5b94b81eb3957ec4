"""Requests that go wrong in every way, among others: each ends with its own error, and every other answer equals its answer alone."""

import asyncio
import copy
import pickle
import random

import numpy as np
import pytest

from minllm import LLM, AsyncLLM, SamplingParams
from minllm.errors import (
    CheckpointError,
    DeadlineError,
    ForeignError,
    InvalidOptionError,
    InvalidRequestError,
    MinLLMError,
    OutOfMemoryError,
    SamplingError,
)
from tests.engine.checks import BLOCK_BYTES
from tests.engine.models import model_directory
from tests.engine.test_async_llm import BadTokenizer, Panic, completions, last, raising

GREEDY = dict(temperature=0.0, max_tokens=8, ignore_eos=True)
GOOD = [
    dict(temperature=0.0), dict(temperature=1.0, seed=3, n=2), dict(temperature=0.9, seed=4, top_p=0.8, logprobs=2),
    dict(temperature=0.0, stop=["e"]), dict(temperature=0.0, repetition_penalty=1.3), dict(temperature=1.0, seed=5, bad_words=["def x"]),
]  # fmt: skip
PROMPTS = ["def f(x):", "import os", [5, 6, 9], "class A:\n    " * 6, [11] * 40]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def reshaped(output_token_ids, logits):
    return logits[:-1]


def poison(which):
    """(prompt or messages, parameters, options, error or what its reader does) of a poisonous request."""
    params = SamplingParams(**GREEDY)
    processed = SamplingParams(**GREEDY, logits_processors=[raising(Panic if which % 2 else ZeroDivisionError)])
    kinds = [
        ("bad", params, {}, ForeignError),
        ({"prompt": "bad"}, SamplingParams(**GREEDY, truncate_prompt_tokens=3), {}, ForeignError),
        ([7, 7], params, {}, ForeignError),
        ([7, 7], SamplingParams(**GREEDY, stop="xyz"), {}, ForeignError),
        ("def", SamplingParams(**GREEDY, logprobs=1, logit_bias={8: 100.0}), {}, ForeignError),
        ([5, 8, 6], SamplingParams(**GREEDY, prompt_logprobs=0), {}, ForeignError),
        ("def", processed, {}, ForeignError if which % 2 else ZeroDivisionError),
        ("def", SamplingParams(**GREEDY, logits_processors=[reshaped]), {}, SamplingError),
        ("def", SamplingParams(**GREEDY, logits_processors=[lambda ids, logits: "text"]), {}, SamplingError),
        ([{"role": "user", "content": "a"}], params, dict(chat_template="{{ raise_exception('no') }}"), InvalidRequestError),
        ([{"role": "user", "content": "a"}], params, dict(chat_template="{{ messages[0].content.nothing.at_all }}"), InvalidRequestError),
        ([{"role": "user", "content": "bad"}], params, dict(chat_template=TEMPLATE), ForeignError),
        ([10**9], params, {}, InvalidRequestError),
        ("def", SamplingParams(**GREEDY, stop_token_ids=[10**9]), {}, InvalidRequestError),
        ("def", params, dict(deadline=0.0), DeadlineError),
        ("def", params, dict(deadline="soon"), InvalidRequestError),
        ("", params, {}, InvalidRequestError),
        ([5] * 5000, params, {}, InvalidRequestError),
        ("def", params, {}, "cancelled"),
        ("def", params, {}, "unread"),
        ("def", params, {}, "left"),
    ]
    return kinds[which % len(kinds)]


@pytest.mark.soak
def test_one_poisonous_request_in_fifty(request):
    """In `make test` one in ten, so that each kind comes once."""
    count, every = (5000, 50) if request.config.option.exhaustive else (210, 10)
    sizes = dict(max_model_len=128, max_num_seqs=12, max_num_batched_tokens=64, kv_cache_memory_bytes=30 * BLOCK_BYTES)
    chance, kept = random.Random(1), []
    with LLM(model_directory("small"), device="cpu", **sizes, enable_prefix_caching=True) as llm:
        good = [SamplingParams(**dict(max_tokens=8, ignore_eos=True) | one) for one in GOOD]
        alone = {(i, j): completions(llm.generate(PROMPTS[i], good[j])[0]) for i in range(len(PROMPTS)) for j in range(len(good))}
        llm.engine.tokenizer = llm.llm_engine.core.tokenizer = BadTokenizer(llm.engine.tokenizer, Panic)
        engine = AsyncLLM.of(llm)

        async def poisonous(which):
            prompt, params, options, error = poison(which)
            call = engine.chat if "chat_template" in options else engine.generate
            if error == "cancelled":
                task = asyncio.create_task(last(call(prompt, params)))
                await asyncio.sleep(0.01 * chance.random())
                task.cancel()
            elif error == "unread":
                kept.append(await engine.add_request(None, prompt, params))
            elif error == "left":
                async for _ in call(prompt, params):
                    break
            else:
                with pytest.raises(error):
                    await last(call(prompt, params, **options))

        async def client(number):
            await asyncio.sleep(number * 0.002)
            if number % every == every - 1:
                return await poisonous(number // every)
            i, j = chance.randrange(len(PROMPTS)), chance.randrange(len(good))
            assert completions(await last(engine.generate(PROMPTS[i], good[j], final_only=chance.random() < 0.7))) == alone[i, j]

        async def generate():
            await asyncio.gather(*[client(number) for number in range(count)])
            while engine.stats().num_running or engine.stats().num_waiting:
                await asyncio.sleep(0.001)

        try:
            asyncio.run(asyncio.wait_for(generate(), count))  # seconds: a hang is an error
        finally:
            engine.shutdown()
        assert llm.engine.scheduler.queues.num_unfinished == 0 and llm.engine.cache_policy.usage().allocated == 0


HUGE = 10**18
BAD_OPTIONS = [
    (dict(max_num_seqs=10**9), OutOfMemoryError, "max_num_seqs=1000000000 takes .* lower it to"),
    (dict(max_num_seqs=HUGE, kv_cache_policy="contiguous"), OutOfMemoryError, "max_num_seqs=10+ takes .* lower it to"),
    (dict(max_num_seqs=HUGE, kv_cache_policy="virtual"), OutOfMemoryError, "max_num_seqs=10+ takes .* lower it to"),
    (dict(max_num_seqs=10**7, max_num_batched_tokens=HUGE), OutOfMemoryError, "max_num_batched_tokens=10+ allows steps of .* lower it to"),
    (dict(max_model_len=10**9), InvalidOptionError, "max_model_len=1000000000 is more than this model's"),
    (dict(block_size=HUGE), OutOfMemoryError, "take block_size=[0-9]+ or less"),
    (dict(kv_cache_memory_bytes=HUGE), OutOfMemoryError, "kv_cache_memory_bytes=1,0.* lower it"),
    (dict(kv_cache_residual_window=32 * 10**9, kv_cache_dtype="int8"), OutOfMemoryError, "lower kv_cache_residual_window or max_num_seqs"),
    (dict(swap_space_bytes=HUGE, preemption="swap"), OutOfMemoryError, "swap_space_bytes=1,0.* lower it"),
    (dict(tensor_parallel_size=10**9), InvalidOptionError, "tensor-parallel degree of 1000000000 does not divide"),
    (dict(pipeline_parallel_size=10**9), InvalidOptionError, "pipeline_parallel_size=1000000000 does not divide"),
    (dict(seed=2**64), InvalidOptionError, "seed=18446744073709551616 is not allowed"),
    (dict(model="a" * 300), CheckpointError, "'a{190,}.* cannot be opened: File name too long"),
    (dict(model="a/" * 5000), CheckpointError, "cannot be opened: File name too long"),
    (dict(model="a\0b"), CheckpointError, "There is no directory 'a.x00b'"),
    (dict(model=__file__ + "/below"), CheckpointError, "There is no directory .*below"),
    (dict(model=__file__), CheckpointError, "is not a directory"),
]


@pytest.mark.parametrize(("options", "error", "words"), BAD_OPTIONS, ids=[f"{i} {next(iter(one[0]))}" for i, one in enumerate(BAD_OPTIONS)])
def test_options_too_large_for_the_machine_are_refused_by_name(options, error, words):
    with pytest.raises(error, match=words):
        LLM(**dict(model=model_directory("small"), device="cpu") | options)


def test_a_directory_that_may_not_be_read(monkeypatch, tmp_path):
    def is_dir(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "is_dir", is_dir)
    with pytest.raises(CheckpointError, match="cannot be opened: Permission denied"):
        LLM(tmp_path, device="cpu")


def test_memory_that_the_system_refuses_is_an_error_of_this_package(monkeypatch):
    def refuse(*_, **__):
        raise MemoryError("Unable to allocate 5 GiB")

    monkeypatch.setattr("minllm.engine.build.engine.make_cache", refuse)
    with pytest.raises(OutOfMemoryError, match="Unable to allocate 5 GiB.*max_num_seqs=256"):
        LLM(model_directory("small"), device="cpu")


USER = {"role": "user", "content": "a"}
BAD_REQUESTS = [
    (lambda llm: llm.generate({"a"}), "is not a prompt"),
    (lambda llm: llm.generate(iter(["a"])), "is not a prompt"),
    (lambda llm: llm.generate(np.array([2**64 - 1], np.uint64)), "outside the vocabulary"),
    (lambda llm: llm.generate("a " * 500, SamplingParams(truncate_prompt_tokens=10**9)), "max_model_len=256 allows 255"),
    (lambda llm: llm.generate("a", SamplingParams(logits_processors=[lambda ids, x: x.resize(5, refcheck=False)])), "returned None"),
    (lambda llm: llm.generate("a", SamplingParams(logits_processors=[lambda ids, logits: logits.astype(object)])), "returned object"),
    (lambda llm: llm.generate(["a"], [None]), "None is not a SamplingParams"),
    (lambda llm: llm.generate("a", use_tqdm=None), "use_tqdm=None is not allowed"),
    (lambda llm: llm.chat([USER], chat_template="{# #}"), "empty"),
    (lambda llm: llm.chat([USER], chat_template="{{ nothing() }}"), "does not take these messages: 'nothing' is undefined"),
    (lambda llm: llm.chat([{"role": "user", "content": "\ud800"}], chat_template=TEMPLATE), "not valid Unicode"),
    (lambda llm: llm.chat([{"role": "user", "content": 5}], chat_template=TEMPLATE), "content=5 of a message"),
    (lambda llm: llm.chat([raising(StopIteration)], chat_template=TEMPLATE), "is not a message"),
    (lambda llm: llm.logits("abc"), "'abc' is not a prompt"),
    (lambda llm: llm.generate("a", SamplingParams(logits_processors=[lambda ids, logits: logits[None]])), "shape"),
    (lambda llm: llm.generate("a", SamplingParams(logits_processors=[lambda ids, logits: np.float32(1)])), "shape"),
    (lambda llm: llm.generate("a", SamplingParams(logits_processors=[raising(Panic)], max_tokens=5)), "failed with Panic"),
    (lambda llm: llm.generate(["a", "b", {"prompt": "c", "cache_salt": ""}]), "Prompt 2 of 3|cache_salt"),
    (lambda llm: llm.generate("a" * 10**7), "characters"),
    (lambda llm: llm.stream(["a", "b"]), "one prompt"),
    (lambda llm: llm.logits(list(range(300))), "max_model_len"),
    (lambda llm: llm.beam_search("a", SamplingParams()), "is not a BeamSearchParams"),
]


@pytest.mark.parametrize(("call", "words"), BAD_REQUESTS, ids=range(len(BAD_REQUESTS)))
def test_bad_requests_end_alone(llm, call, words):
    expected = completions(llm.generate("def", SamplingParams(**GREEDY))[0])
    stream = llm.stream("def", SamplingParams(**GREEDY))
    first = next(stream)
    with pytest.raises(MinLLMError, match=words):
        call(llm)
    rest = "".join(stream)
    assert first + rest == expected[0][1], "an open stream goes on"
    assert completions(llm.generate("def", SamplingParams(**GREEDY))[0]) == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_parameters_outputs_and_errors_can_be_copied(llm, copied):
    """Though an LLM cannot: multiprocessing and caches of results need it."""
    params = SamplingParams(**GREEDY, logprobs=1, stop=["xyz"], logit_bias={3: 1.0}, allowed_token_ids=[3, 4], bad_words=["é"])
    assert copied(params) == params and llm.generate("def", copied(params))[0].outputs == llm.generate("def", params)[0].outputs
    with pytest.raises(ForeignError) as raised:
        llm.generate(["def", "def"], [params, SamplingParams(logits_processors=[raising(Panic)])])
    first, failed = copied(raised.value).outputs
    assert first.outputs == raised.value.outputs[0].outputs and str(failed.error) == str(raised.value)


def test_a_budget_of_tokens_that_no_step_can_reach_is_taken():
    with LLM(model_directory("small"), device="cpu", max_num_seqs=4, max_model_len=64, max_num_batched_tokens=10**18) as llm:
        assert llm.generate([1, 2])
