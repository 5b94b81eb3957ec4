"""AsyncLLM: the same texts as LLM, whoever comes, goes, throws or reads slowly; and nothing ever hangs."""

import asyncio
import gc
import random
import subprocess
import sys
import threading
import time
import weakref

import pytest

from minllm import LLM, AsyncLLM, SamplingParams
from minllm.engine.pipeline import tokenise
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.errors import (
    Contained,
    DeadlineError,
    EngineBusyError,
    EngineDeadError,
    ForeignError,
    InvalidOptionError,
    InvalidRequestError,
    OutOfMemoryError,
)
from tests.engine.models import model_directory

TIMEOUT = 60  # seconds; a test takes less than one
GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
LONG = SamplingParams(temperature=0.0, max_tokens=240)
PROMPTS = ["def f(x):", "import functools\n\ndef", "class A", [5, 6, 7], {"prompt": "return"}, {"prompt_token_ids": [1, 2]}]


def run(coroutine):
    """Run a coroutine; a hang is an error."""
    return asyncio.run(asyncio.wait_for(coroutine, TIMEOUT))


@pytest.fixture
def engine():
    """An AsyncLLM that leaves nothing behind: no thread, no block."""
    llm = AsyncLLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=4)
    policy, threads = llm._llm.engine.cache_policy, llm._pipeline._threads
    yield llm
    llm.shutdown()
    assert not any(thread.is_alive() for thread in threads) and policy.usage().allocated == 0


async def last(outputs):
    """The last output, after checks of those before it."""
    before = None
    async for output in outputs:
        if before is not None:
            assert not before.finished and output.outputs[0].token_ids[: len(before.outputs[0].token_ids)] == before.outputs[0].token_ids
            assert output.outputs[0].text.startswith(before.outputs[0].text)
        before = output
    assert before.finished
    return before


def completions(output):
    """What does not depend on what else is in the batch, as the last bits of log-probabilities do."""
    return [(one.index, one.text, one.token_ids, one.finish_reason, one.stop_reason) for one in output.outputs]


async def is_idle(engine):
    """Wait until nothing runs."""
    while engine.stats().num_running or engine.stats().num_waiting or engine._pipeline._requests:
        await asyncio.sleep(0.001)


def slow_down(engine, seconds=0.01):
    """Let every step take this long at least."""
    core = engine._llm.llm_engine.core
    step = core.step
    core.step = lambda: (time.sleep(seconds), step())[1]


def test_one_reader_of_many_streams(engine):
    """add_request(on_output=...): no task per request, and the outputs of those who iterate."""

    async def main():
        news, texts, ended = asyncio.Queue(), {}, []
        streams = [await engine.add_request(None, prompt, GREEDY, on_output=news.put_nowait) for prompt in PROMPTS]
        while len(ended) < len(streams):
            stream = await news.get()
            try:
                while (output := stream.take()) is not None:
                    texts[stream] = output.outputs[0].text
            except StopAsyncIteration:
                ended.append(stream)
        alone = [(await last(engine.generate(prompt, GREEDY))).outputs[0].text for prompt in PROMPTS]
        assert [texts[stream] for stream in streams] == alone

    run(main())


def test_texts_are_those_of_llm(engine, llm):
    sampled = SamplingParams(temperature=1.0, seed=3, max_tokens=20, n=2, logprobs=2)
    stopped = SamplingParams(temperature=1.0, seed=5, max_tokens=40, stop=["e", " ("], prompt_logprobs=1)

    async def texts(params):
        return await asyncio.gather(*[last(engine.generate(prompt, params)) for prompt in PROMPTS])

    for params in (GREEDY, sampled, stopped, None):
        for found, expected in zip(run(texts(params)), llm.generate(PROMPTS, params), strict=True):
            assert completions(found) == completions(expected) and found.prompt == expected.prompt
            assert found.prompt_token_ids == expected.prompt_token_ids
            assert [len(one.logprobs or ()) for one in found.outputs] == [len(one.logprobs or ()) for one in expected.outputs]
            assert len(found.prompt_logprobs or ()) == len(expected.prompt_logprobs or ())


def test_unseeded_requests_are_reproducible(engine, llm):
    """Requests are numbered in their order, as in LLM, although stages overlap."""
    params = SamplingParams(temperature=1.0, max_tokens=8)

    async def texts():
        streams = [await engine.add_request(None, prompt, params) for prompt in PROMPTS]
        return [await last(stream) for stream in streams]

    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=4) as fresh:
        assert [completions(output) for output in run(texts())] == [completions(output) for output in fresh.generate(PROMPTS, params)]


def test_final_only(engine):
    async def outputs():
        return [output async for output in engine.generate("def", GREEDY, final_only=True)]

    [output] = run(outputs())
    assert output.finished and len(output.outputs[0].token_ids) == 12


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ("", GREEDY, InvalidRequestError, "empty string"),
        ([10**9], GREEDY, InvalidRequestError, "outside the vocabulary"),
        ("def", SamplingParams(stop_token_ids=[10**9]), InvalidRequestError, "stop_token_ids"),
        ("def", "greedy", InvalidRequestError, "is not a SamplingParams"),
        ([5] * 300, GREEDY, InvalidRequestError, "max_model_len"),
    ],
)
def test_an_invalid_request_is_told_its_caller_alone(engine, prompt, params, error, message):
    async def both():
        good = asyncio.create_task(last(engine.generate("def", GREEDY)))
        with pytest.raises(error, match=message):
            await last(engine.generate(prompt, params))
        return await good

    assert run(both()).outputs[0].finish_reason == "length"


@pytest.mark.parametrize(
    "options", [dict(priority="high"), dict(deadline=-1), dict(deadline="soon"), dict(request_id=7), dict(cache_salt=1)]
)
def test_invalid_options(engine, options):
    async def generate():
        with pytest.raises(InvalidRequestError, match=next(iter(options))):
            await last(engine.generate("def", GREEDY, **options))
        await is_idle(engine)
        await last(engine.generate("def", GREEDY))

    run(generate())


def test_a_request_that_the_scheduler_refuses(engine):
    core = engine._llm.llm_engine.core
    add = core.add

    def refuse(sequence):
        core.add = add
        raise OutOfMemoryError("it can never fit")

    async def generate():
        core.add = refuse
        with pytest.raises(OutOfMemoryError, match="never fit"):
            await last(engine.generate("def", GREEDY))
        await last(engine.generate("def", GREEDY))

    run(generate())


def test_request_ids(engine):
    async def generate():
        stream = await engine.add_request("a", "def", LONG)
        with pytest.raises(InvalidRequestError, match="request_id='a' is running already"):
            await engine.add_request("a", "def", LONG)
        assert (await anext(stream)).request_id == "a"
        await engine.abort("a")
        assert (await last(stream)).outputs[0].finish_reason == "abort"
        await engine.abort("a")  # unknown ids are ignored
        for name in ("a", ""):
            assert (await last(engine.generate("def", GREEDY, request_id=name))).request_id == name

    run(generate())


def test_cancelling_ends_the_request_within_a_step(engine):
    async def generate():
        task = asyncio.create_task(last(engine.generate("def", LONG)))
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        steps = engine.stats().num_steps
        await is_idle(engine)
        assert engine.stats().num_steps <= steps + 2  # one may be under way, and one launched ahead
        async for _ in engine.generate("def", LONG):
            break
        await is_idle(engine)

    run(generate())


def test_abort_anywhere(engine):
    """Requests are aborted while their prompts wait, are tokenised, wait for the scheduler, and run."""
    slow_down(engine)

    async def generate():
        streams = [await engine.add_request(str(i), "def " * 20, LONG) for i in range(12)]
        for delay in (0, 0, 0.01, 0.03):
            await asyncio.sleep(delay)
            for i in range(int(delay * 100), 12, 4):
                await engine.abort(str(i))
        outputs = await asyncio.gather(*[last(stream) for stream in streams[:2]])
        assert all(output.outputs[0].finish_reason == "abort" for output in outputs)
        for i in range(12):
            await engine.abort(str(i))
        await is_idle(engine)

    run(generate())


def test_a_deadline(engine):
    slow_down(engine, 0.02)

    async def generate():
        outputs = []
        with pytest.raises(DeadlineError):
            async for output in engine.generate("def", LONG, deadline=0.1):
                outputs.append(output)
        assert outputs[-1].finished and outputs[-1].outputs[0].finish_reason == "error"

    run(generate())


def test_priorities(engine):
    slow_down(engine)

    async def generate():
        ended = []

        async def one(name, **options):
            await last(engine.generate("def", GREEDY, **options))
            ended.append(name)

        before = [asyncio.create_task(one("before")) for _ in range(4)]
        while engine.stats().num_running < 4:
            await asyncio.sleep(0.001)
        await asyncio.gather(*before, *[one("low") for _ in range(8)], *[one("high", priority=-1) for _ in range(4)])
        assert ended[4:8] == ["high"] * 4

    run(generate())


def test_a_slow_reader_gets_several_tokens_at_a_time_and_stalls_nobody(engine):
    slow_down(engine, seconds=0.001)

    async def generate():
        slow = await engine.add_request("slow", "def", LONG)
        first = await anext(slow)
        quick = [output async for output in engine.generate("class", LONG)]
        assert len(quick) > 20
        while engine.stats().num_running:
            await asyncio.sleep(0.001)
        rest = [output async for output in slow]
        assert len(rest) <= 2 and len(first.outputs[0].token_ids) < 240 == len(rest[-1].outputs[0].token_ids)

    run(generate())


def test_a_full_queue_makes_callers_wait(engine):
    """Callers beyond the queues' limits wait, keep their order, and may give up."""
    slow_down(engine)
    engine._pipeline.prompts.limit = 2
    engine._pipeline.compute.inbox.limit = 1

    async def generate():
        tasks = [asyncio.create_task(last(engine.generate("def", GREEDY, request_id=str(i), final_only=True))) for i in range(40)]
        await asyncio.sleep(0.05)
        for task in tasks[::3]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) == (i % 3 == 0) for i, one in enumerate(found))
        await is_idle(engine)

    run(generate())


class Panic(BaseException):
    """A class that is no Exception, as pyo3's PanicException."""


class BadTokenizer:
    """Fails for one prompt, for one request's text and for one token's, with an error of this kind."""

    def __init__(self, tokenizer, kind):
        self._tokenizer, self.kind = tokenizer, kind

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, add_special_tokens=True):
        if text == "bad":
            raise self.kind("no tokens")
        return self._tokenizer.encode(text, add_special_tokens)

    def decode(self, token_ids, skip_special_tokens=True):
        if 8 in token_ids:
            raise self.kind("no text")
        return self._tokenizer.decode(token_ids, skip_special_tokens)

    def text_of(self, token_id):
        return self.decode([token_id], skip_special_tokens=False)

    def incremental_decoder(self, prompt_token_ids=(), skip_special_tokens=True):
        if list(prompt_token_ids) == [7, 7]:
            return BadDecoder(self.kind)
        return self._tokenizer.incremental_decoder(prompt_token_ids, skip_special_tokens)


class BadDecoder:
    """Decodes nothing."""

    def __init__(self, kind):
        self.kind = kind

    def push(self, token_id):
        raise self.kind("no text")

    def push_all(self, token_ids):
        raise self.kind("no text")

    def finish(self):
        return ""


def raising(kind):
    """A logits processor that fails at its third token."""

    def processor(output_token_ids, logits):
        if len(output_token_ids) == 2:
            raise kind("a processor of the caller's")
        return logits

    return processor


def faulty(kind):
    """{what fails: (prompt, parameters)} on the engine's model with a BadTokenizer."""
    greedy = dict(temperature=0.0, max_tokens=12, ignore_eos=True)
    return {
        "encode": ("bad", GREEDY),
        "chat": ({"prompt": "bad"}, GREEDY),
        "decode": ([7, 7], GREEDY),
        "stop": ([7, 7], SamplingParams(stop="xyz", **greedy)),
        "logprobs": ("def", SamplingParams(logprobs=2, logit_bias={8: 100.0}, **greedy)),
        "prompt_logprobs": ([5, 8, 6], SamplingParams(prompt_logprobs=0, **greedy)),
        "scored": ([5, 8, 6], SamplingParams(prompt_logprobs=0, max_tokens=0)),
        "processor": ("def", SamplingParams(logits_processors=[raising(kind)], **greedy)),
        "one of two": ("def", SamplingParams(logits_processors=[raising(kind)], n=2, max_tokens=9)),
    }


@pytest.fixture
def bad_tokenizer(request, engine):
    inner = engine._llm.engine
    kind = request.param
    inner.tokenizer = engine._llm.llm_engine.core.tokenizer = BadTokenizer(inner.tokenizer, kind)
    return kind


@pytest.mark.parametrize("bad_tokenizer", [Panic, UnicodeError], indirect=True)
def test_an_error_of_the_tokenizer_ends_its_request_alone(engine, bad_tokenizer):
    error = ForeignError if bad_tokenizer is Panic else UnicodeError
    slow_down(engine, 0.001)

    async def both(prompt, params):
        good = asyncio.create_task(last(engine.generate("def", GREEDY)))
        with pytest.raises(error, match=f"{'Panic.*' if error is ForeignError else ''}(no tokens|no text|of the caller's)"):
            await last(engine.generate(prompt, params))
        await is_idle(engine)
        return completions(await good)

    alone = completions(run(last(engine.generate("def", GREEDY))))
    for what, (prompt, params) in faulty(bad_tokenizer).items():
        assert run(both(prompt, params)) == alone, what


@pytest.mark.parametrize("bad_tokenizer", [Panic, UnicodeError], indirect=True)
def test_the_same_in_one_call_of_generate(engine, bad_tokenizer):
    """What fails while the call is checked refuses it; what fails later ends its own request, and the error holds all outputs."""
    engine.shutdown, end = lambda: None, engine.shutdown
    engine._pipeline.shutdown()
    llm, error = engine._llm, ForeignError if bad_tokenizer is Panic else UnicodeError
    alone = completions(llm.generate("def", GREEDY)[0])
    for what, (prompt, params) in faulty(bad_tokenizer).items():
        with pytest.raises(error) as raised:
            llm.generate(["def", prompt, "def"], [GREEDY, params, GREEDY])
        assert llm.engine.cache_policy.usage().allocated == 0, what
        if what in ("encode", "chat"):
            assert "Prompt 1 of 3" in str(raised.value) or bad_tokenizer is UnicodeError
        else:
            first, failed, third = raised.value.outputs
            assert completions(first) == completions(third) == alone and failed.error is raised.value, what
            assert "error" in [one.finish_reason for one in failed.outputs]
            assert "Prompt 1 of 3, counted from 0, failed" in raised.value.__notes__[-1]
        assert completions(llm.generate("def", GREEDY)[0]) == alone
    with pytest.raises(error) as raised:
        llm.beam_search([[5], [6, 8]], BeamSearchParams(beam_width=1, max_tokens=2))
    assert raised.value.outputs[0].sequences and raised.value.outputs[1] is None
    end()


class SlowTokenizer:
    """Encodes texts with "slow" in them only once `go` is set."""

    def __init__(self, tokenizer):
        self._tokenizer, self.go = tokenizer, threading.Event()

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def encode(self, text, add_special_tokens=True):
        if "slow" in text:
            self.go.wait(TIMEOUT)
        return self._tokenizer.encode(text, add_special_tokens)


@pytest.mark.parametrize("ending", ["encoded", "deadline", "own deadline", "abort"])
def test_a_slow_text_holds_nobody_else_up(engine, llm, monkeypatch, ending):
    """Three slow texts; each ends in time or by a deadline, and late results are dropped. Seeds follow the order of arrival."""
    slow = engine._llm.engine.tokenizer = SlowTokenizer(engine._llm.engine.tokenizer)
    monkeypatch.setattr(tokenise, "PATIENCE", 0.02)
    if ending == "deadline":
        monkeypatch.setattr(tokenise, "ENCODING_SECONDS", 0.1)
    sampled = SamplingParams(temperature=1.0, max_tokens=6, ignore_eos=True)

    async def generate():
        own = dict(deadline=0.05) if ending == "own deadline" else {}
        streams = [await engine.add_request(f"slow {i}", f"slow {i}", sampled, **own) for i in range(3)]
        quick = [await last(engine.generate(prompt, GREEDY)) for prompt in PROMPTS]
        if ending == "abort":
            for i in range(3):
                await engine.abort(f"slow {i}")
        if ending == "encoded":
            slow.go.set()
        ends = await asyncio.gather(*map(last, streams), return_exceptions=True)
        await is_idle(engine)
        slow.go.set()
        return quick, ends, await last(engine.generate("def", GREEDY))

    quick, ends, after = run(generate())
    expected = llm.generate([*PROMPTS, "def"], GREEDY)
    assert [completions(output) for output in (*quick, after)] == [completions(output) for output in expected]
    if ending == "encoded":
        with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=4) as fresh:
            alone = fresh.generate([f"slow {i}" for i in range(3)], sampled)
        assert [completions(end) for end in ends] == [completions(output) for output in alone]
    elif ending == "abort":
        assert [end.outputs[0].finish_reason for end in ends] == ["abort"] * 3
    else:
        assert all(isinstance(end, DeadlineError) and "was not tokenised before its deadline" in str(end) for end in ends)


def test_a_long_text_is_encoded_without_the_gil(llm):
    """Another thread computes while one encodes; the ids are those of the text in one piece."""
    text, found = "def f(x):\n    return x + 1\n" * 4000, []

    def encode():
        start = time.thread_time()
        found.extend([llm.tokenizer.encode(text), time.thread_time() - start])

    thread, start = threading.Thread(target=encode), time.thread_time()
    thread.start()
    while thread.is_alive():
        pass
    assert time.thread_time() - start > found[1] / 10
    assert found[0] == llm.tokenizer.backend.encode(text).ids


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_everything(engine, kind):
    """Also where it comes out of foreign code; an LLM is then free for the next call."""
    poison = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logits_processors=[raising(kind)])

    async def both():
        streams = [await engine.add_request(None, "def", params) for params in (LONG, poison)]
        return await asyncio.gather(*map(last, streams), return_exceptions=True)

    for found in run(both()):
        assert isinstance(found, EngineDeadError) and isinstance(found.__cause__, kind)
    engine._llm.llm_engine.abort_all()
    with pytest.raises(kind):
        engine._llm.generate(["def", "def"], [GREEDY, poison])
    assert engine._llm.engine.cache_policy.usage().allocated == 0
    assert len(engine._llm.generate("def", GREEDY)[0].outputs[0].token_ids) == 12


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_errors_that_are_to_end_the_program_are_not_contained(kind):
    with pytest.raises(kind), Contained():
        raise kind


@pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError])
def test_errors_that_loops_and_tasks_take_for_their_end_are_reported(llm, kind):
    """As of next() in a processor: raised as they are, they would cut a stream short in silence, or end the engine's thread."""
    poison = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logits_processors=[raising(kind)])
    alone, engine = completions(llm.generate("def", GREEDY)[0]), AsyncLLM.of(llm)

    async def both():
        return await asyncio.gather(*[last(engine.generate("def", one)) for one in (poison, GREEDY)], return_exceptions=True)

    try:
        failed, good = run(both())
    finally:
        engine.shutdown()
    assert isinstance(failed, ForeignError) and isinstance(failed.__cause__, kind)
    assert completions(good) == alone
    with pytest.raises(ForeignError, match=kind.__name__):
        list(llm.stream("def", poison))
    with pytest.raises(ForeignError, match=kind.__name__), Contained():
        raise kind


def test_a_step_that_throws_ends_its_requests(engine):
    runner = engine._llm.engine.runner
    execute = runner.execute

    async def generate():
        task = asyncio.create_task(last(engine.generate("def", LONG)))
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)

        def fail(step):
            runner.execute = execute
            raise RuntimeError("the step failed")

        runner.execute = fail
        with pytest.raises(RuntimeError, match="the step failed"):
            await task
        await last(engine.generate("def", GREEDY))

    run(generate())


@pytest.mark.parametrize("stage", ["tokenise", "compute", "detokenise"])
def test_a_thread_that_dies_tells_everybody(engine, stage, monkeypatch):
    slow_down(engine)

    async def generate():
        tasks = [asyncio.create_task(last(engine.generate("def", LONG))) for _ in range(8)]
        while not engine.stats().num_running:
            await asyncio.sleep(0.001)

        def die(*_):
            raise MemoryError("the thread died")

        pipeline = engine._pipeline
        requests, close = list(pipeline._requests.values()), pipeline.compute.close
        # detokenise still sees the requests that compute aborts when it ends
        pipeline.compute.close = lambda: (close(), time.sleep(0.05), pipeline.moved.add(requests), time.sleep(0.05))
        name = {"tokenise": "_tokenise", "compute": "_report", "detokenise": "_forget"}[stage]
        setattr(getattr(pipeline, stage), name, die)
        tasks.append(asyncio.create_task(last(engine.generate("def", SamplingParams(max_tokens=1)))))
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, EngineDeadError) and isinstance(found.__cause__, MemoryError)
        with pytest.raises(EngineDeadError, match="MemoryError: the thread died"):
            await last(engine.generate("def", GREEDY))
        with pytest.raises(EngineDeadError):
            engine.stats()

    run(generate())


def test_shutdown_ends_everybody(engine):
    slow_down(engine)

    async def generate():
        engine._pipeline.prompts.limit = 2
        tasks = [asyncio.create_task(last(engine.generate("def", LONG))) for _ in range(12)]
        await asyncio.sleep(0.05)
        await asyncio.to_thread(engine.shutdown)
        for found in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(found, EngineDeadError)
        with pytest.raises(EngineDeadError, match="shut down"):
            await last(engine.generate("def", GREEDY))
        with pytest.raises(EngineDeadError, match="shut down"):
            await last(engine.chat([{"role": "user", "content": "def"}], GREEDY))

    run(generate())
    engine.shutdown()
    for wrong, error in ((engine._llm, EngineBusyError), ("a path", InvalidOptionError)):
        with pytest.raises(error, match="This LLM was closed|'a path' is not an LLM"):
            AsyncLLM.of(wrong)


@pytest.mark.parametrize("failing", [False, True])
def test_who_has_read_the_last_output_may_use_the_llm_at_once(llm, monkeypatch, failing):
    """The engine's thread looks for new requests behind the last step; however long that takes, nobody has to wait for it."""
    engine = AsyncLLM.of(llm)
    stage, long = engine._pipeline.compute, SamplingParams(temperature=0.0, max_tokens=13)
    arrived, add = stage._arrived, stage.core.add

    def slowly(wait):
        time.sleep(0 if wait else 0.03)
        return arrived(wait)

    def refuse_long(sequence):
        if sequence.params.max_tokens == 13:
            raise OutOfMemoryError("too long")
        add(sequence)

    monkeypatch.setattr(stage, "_arrived", slowly)
    monkeypatch.setattr(stage.core, "add", refuse_long)
    try:
        if failing:
            with pytest.raises(OutOfMemoryError, match="too long"):
                run(last(engine.generate("def", long)))
        else:
            run(last(engine.generate("def", GREEDY)))
        monkeypatch.undo()
        assert llm.generate("def", GREEDY)[0].finished
    finally:
        engine.shutdown()


def test_chat(tmp_path):
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    messages = [{"role": "user", "content": "write a loop"}]

    async def chat():
        async with AsyncLLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=2) as engine:
            output = await last(engine.chat(messages, GREEDY, chat_template=template, request_id="chat"))
            assert output.prompt == "<user>write a loop" and output.request_id == "chat"
            with pytest.raises(InvalidRequestError, match="no chat template"):
                await last(engine.chat(messages, GREEDY))
            plain = await last(engine.generate({"prompt_token_ids": output.prompt_token_ids}, GREEDY))
            assert completions(plain) == completions(output)

    run(chat())


def test_several_event_loops(engine, llm):
    """Each loop in a thread of its own; one is closed with requests under way."""
    expected = completions(llm.generate("def f(x):", GREEDY)[0])
    found = []

    def in_thread(leaves):
        async def generate():
            if leaves:
                await engine.add_request(None, "def f(x):", LONG)
            else:
                outputs = await asyncio.gather(*[last(engine.generate("def f(x):", GREEDY)) for _ in range(6)])
                found.extend(completions(output) for output in outputs)

        run(generate())

    threads = [threading.Thread(target=in_thread, args=(leaves,), daemon=True) for leaves in (False, True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert found == [expected] * 12
    run(is_idle(engine))


SOAKED = [GREEDY, SamplingParams(temperature=1.0, seed=1, max_tokens=30, n=2), SamplingParams(seed=2, stop="e", max_tokens=40), None]


@pytest.fixture(scope="module")
def alone(llm):
    """{(number of a prompt, of its parameters): what it gets alone}."""
    return {(i, j): completions(llm.generate(prompt, params)[0]) for i, prompt in enumerate(PROMPTS) for j, params in enumerate(SOAKED)}


@pytest.mark.parametrize("seed", range(3))
def test_soak(engine, alone, seed):
    """Many requests that are cancelled, aborted or left at random; those that are not get the text that they get alone."""
    generator = random.Random(seed)
    slow_down(engine, seconds=0.001)  # so that nobody's LONG text ends before it is aborted

    async def client(number):
        await asyncio.sleep(generator.random() * 0.2)
        i, j, fate = generator.randrange(len(PROMPTS)), generator.randrange(len(SOAKED)), generator.random()
        options = dict(request_id=f"client {number}", priority=generator.randrange(3), final_only=generator.random() < 0.3)
        if fate < 0.15:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(last(engine.generate(PROMPTS[i], LONG, **options)), generator.random() * 0.05)
        elif fate < 0.3:
            async for _ in engine.generate(PROMPTS[i], LONG, **options):
                if generator.random() < 0.2:
                    break
        elif fate < 0.4:
            stream = await engine.add_request(prompt=PROMPTS[i], sampling_params=LONG, **options)
            await asyncio.sleep(generator.random() * 0.02)
            await engine.abort(options["request_id"])
            assert (await last(stream)).outputs[0].finish_reason == "abort"
        elif fate < 0.5:
            with pytest.raises(InvalidRequestError):
                await last(engine.generate([-1], SOAKED[j], **options))
        else:
            assert completions(await last(engine.generate(PROMPTS[i], SOAKED[j], **options))) == alone[i, j]

    async def generate():
        await asyncio.gather(*[client(number) for number in range(60)])
        await is_idle(engine)

    run(generate())


def test_threads_switch_often_while_a_pipeline_runs(engine):
    short = sys.getswitchinterval()
    with LLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=2) as other:
        second = AsyncLLM.of(other)
        engine.shutdown()
        assert sys.getswitchinterval() == short < 1e-3
        second.shutdown()
        assert sys.getswitchinterval() == pytest.approx(5e-3) and other.generate("def", GREEDY)[0].finished


def test_a_dropped_engine_ends_its_threads(only_new_objects):
    engine = AsyncLLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=2)
    threads, alive = engine._pipeline._threads, weakref.ref(engine)
    del engine
    gc.collect()
    for thread in threads:
        thread.join(TIMEOUT)
    assert alive() is None and not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("forked_python")
@pytest.mark.parametrize("ending", ["", "raise KeyboardInterrupt"])
def test_the_interpreter_ends_with_requests_under_way(ending):
    script = f"""
import asyncio
from minllm import AsyncLLM, SamplingParams
llm = AsyncLLM({str(model_directory("small"))!r}, device="cpu", max_model_len=256, max_num_seqs=2)
async def main():
    stream = await llm.add_request("a", "def", SamplingParams(max_tokens=250, ignore_eos=True))
    await anext(stream)
    {ending}
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert (ended.returncode == 0) == (not ending) and ("Traceback" not in ended.stderr or "KeyboardInterrupt" in ended.stderr)
