"""Who may use an engine: one thread at a time, in the process that made it; everybody else gets an error, and nobody wrong tokens."""

import asyncio
import copy
import gc
import os
import pickle
import threading

import pytest

from minllm import LLM, AsyncLLM, SamplingParams
from minllm.engine.contrastive_search import ContrastiveSearchParams
from minllm.engine.requests.beam_search_params import BeamSearchParams
from minllm.errors import EngineBusyError
from tests.engine.models import model_directory

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
MESSAGES = [{"role": "user", "content": "a"}]
TEMPLATE = "{{ messages[0].content }}"
CALLS = {
    "generate": lambda llm: llm.generate("a", PARAMS),
    "stream": lambda llm: llm.stream("a", PARAMS),
    "chat": lambda llm: llm.chat(MESSAGES, PARAMS, chat_template=TEMPLATE),
    "stream_chat": lambda llm: llm.stream_chat(MESSAGES, PARAMS, chat_template=TEMPLATE),
    "beam_search": lambda llm: llm.beam_search("a", BeamSearchParams(2, max_tokens=2)),
    "contrastive_search": lambda llm: llm.contrastive_search("a", ContrastiveSearchParams(max_tokens=2)),
    "logits": lambda llm: llm.logits([1, 2]),
    "perplexity": lambda llm: llm.perplexity([1, 2, 3]),
    "add_request": lambda llm: llm.llm_engine.add_request("one", "a", PARAMS),
    "step": lambda llm: llm.llm_engine.step(),
    "abort_request": lambda llm: llm.llm_engine.abort_request("one"),
    "close": lambda llm: llm.close(),
}
ENTRIES = [name for name in CALLS if name not in ("add_request", "step", "abort_request", "close")]


def in_thread(work):
    """What `work` raises in another thread, None if nothing."""
    raised = []

    def run():
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, name="other")
    thread.start()
    thread.join()
    return raised[0] if raised else None


def test_a_second_thread_is_told_that_the_engine_is_busy(llm):
    """While the first is within a call: its logits processor lets the second one try everything."""
    found = {}

    def processor(output_token_ids, logits):
        if len(output_token_ids) == 2:
            found.update((name, in_thread(lambda call=call: call(llm))) for name, call in CALLS.items())
        return logits

    expected = llm.generate("def", PARAMS)[0].outputs
    watched = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logits_processors=[processor])
    assert llm.generate("def", watched)[0].outputs == expected
    for name in CALLS:
        assert isinstance(found[name], EngineBusyError) and "Thread 'MainThread' is using this engine" in str(found[name]), name
    assert in_thread(lambda: llm.generate("def", PARAMS)) is None, "afterwards it is free"


def test_a_processor_cannot_use_its_own_engine(llm):
    def processor(output_token_ids, logits):
        llm.logits([1, 2])

    with pytest.raises(EngineBusyError, match="cannot use the engine of this step"):
        llm.generate("def", SamplingParams(max_tokens=2, logits_processors=[processor]))


def test_while_another_thread_reads_a_stream(llm):
    """Its thread goes on as before; a stream may pass from thread to thread, and the thread that ended reads no more."""
    alone = "".join(llm.stream("def", PARAMS))
    stream, other = llm.stream("def", PARAMS), llm.stream("class", PARAMS)
    pieces = [next(stream)]
    for name in ENTRIES:
        error = in_thread(lambda name=name: CALLS[name](llm))
        assert isinstance(error, EngineBusyError) and "is reading a stream" in str(error), name
    assert isinstance(in_thread(lambda: next(other)), EngineBusyError)
    assert llm.generate("a", PARAMS) and next(other), "this thread may do both"
    other.close()
    assert in_thread(lambda: pieces.append(next(stream))) is None
    assert llm.generate("a", PARAMS) and "".join([*pieces, *stream]) == alone
    assert in_thread(lambda: CALLS["generate"](llm)) is None


def test_another_thread_may_close_or_drop_a_stream(only_new_objects, llm):
    stream = llm.stream("def", PARAMS)
    next(stream)
    assert in_thread(stream.close) is None
    assert llm.engine.cache_policy.usage().allocated == 0 and stream.output.outputs[0].finish_reason == "abort"
    cycle = [llm.stream("def", PARAMS)]
    cycle.append(cycle)
    next(cycle[0])
    del cycle

    def processor(output_token_ids, logits):
        gc.collect()  # the finaliser runs within a step
        return logits

    llm.generate("def", SamplingParams(temperature=0, max_tokens=3, logits_processors=[processor]))
    assert llm.engine.scheduler.queues.num_unfinished == 0


def test_eight_threads_on_one_llm_get_their_tokens_or_an_error(llm):
    expected = llm.generate("def", PARAMS)[0].outputs
    found = []

    def work():
        for _ in range(5):
            try:
                found.append(llm.generate("def", PARAMS)[0].outputs == expected)
            except EngineBusyError:
                found.append(None)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and False not in found and True in found


def test_eight_threads_on_one_async_llm(llm):
    prompts = [f"def f{number}(" for number in range(8)]
    expected, found = [output.outputs for output in llm.generate(prompts, PARAMS)], {}
    engine = AsyncLLM.of(llm)

    async def read(number):
        async for output in engine.generate(prompts[number], PARAMS):
            found[number] = output.outputs

    threads = [threading.Thread(target=lambda number=number: asyncio.run(read(number))) for number in range(8)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        engine.shutdown()
    assert [found[number] for number in range(8)] == expected


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(llm, copied):
    for one in (llm, llm.llm_engine, llm.stream("a", PARAMS), {"model": llm}):
        if isinstance(one, dict) and copied is copy.copy:
            continue
        with pytest.raises(EngineBusyError, match="cannot be copied or pickled"):
            copied(one)


def test_a_forked_process_is_told_so(llm):
    """Also of an AsyncLLM; closing there leaves the parent's engine alone."""
    engine = AsyncLLM.of(llm)
    stream = llm.stream("def", PARAMS)
    next(stream)

    async def generate():
        async for _ in engine.generate("a"):
            pass

    calls = {name: CALLS[name] for name in ENTRIES} | {
        "next": lambda llm: next(stream), "AsyncLLM": lambda llm: asyncio.run(generate()), "stats": lambda llm: engine.stats()
    }  # fmt: skip
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        wrong = []
        for name, call in calls.items():
            try:
                call(llm)
                wrong.append(name)
            except EngineBusyError as error:
                if "was forked from it" not in str(error):
                    wrong.append(f"{name}: {error}")
        engine.shutdown()
        llm.close()
        os.write(write, f"{wrong}".encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        assert answer.read() == "[]"
    os.waitpid(child, 0)
    assert len("".join([stream.output.outputs[0].text, *stream])) > 0
    engine.shutdown()
    assert len(llm.generate("def", PARAMS)[0].outputs[0].token_ids) == 6


def test_a_closed_llm_refuses_its_engine():
    llm = LLM(model_directory("small"), device="cpu", max_model_len=64)
    engine = llm.llm_engine
    llm.close()
    with pytest.raises(EngineBusyError, match="This LLM was closed"):
        engine.add_request("one", "a", PARAMS)
