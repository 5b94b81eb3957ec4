"""AsyncLLM: generation for many callers at a time, in event loops and threads. Its interface is vLLM's."""

import asyncio
import functools
import itertools
import time
import weakref
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from minllm.engine.engine_stats import EngineStats
from minllm.engine.llm import LLM
from minllm.engine.option_help import shows_options
from minllm.engine.pipeline.output_stream import OutputStream
from minllm.engine.pipeline.pipeline import Pipeline
from minllm.engine.pipeline.request import PipelineRequest
from minllm.engine.progress import Progress
from minllm.engine.requests.chat_prompts import ChatOptions, chat_prompt
from minllm.engine.requests.outputs import RequestOutput
from minllm.engine.requests.prompts import Prompt
from minllm.engine.requests.request_checks import check_request
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.turn import NotCopied
from minllm.errors import InvalidOptionError, shown


@shows_options
class AsyncLLM(NotCopied):
    """A language model on this machine, for many requests that come and go.

        async with AsyncLLM() as llm:
            async for output in llm.generate("def fibonacci(n):", SamplingParams(max_tokens=64)):
                print(output.outputs[0].text)

    Requests run in a pipeline of three threads; several event loops and threads may use it. Raises what LLM() raises.

    options: the fields of EngineOptions, as for LLM(). progress: True shows bars on standard error while loading; or a function of (task,
    done, total).
    """

    def __init__(self, model: str | Path | None = None, *, progress: bool | Progress = False, **options: Any):
        self._llm, self._owns_llm = LLM(model, progress=progress, **options), True
        self._start()

    @classmethod
    def of(cls, llm: LLM) -> "AsyncLLM":
        """An AsyncLLM on a loaded LLM.

        llm: while requests run, its own calls raise EngineBusyError; it stays open after shutdown(). EngineBusyError if it is closed.
        """
        if not isinstance(llm, LLM):
            raise InvalidOptionError(f"{shown(llm)} is not an LLM: write AsyncLLM.of(LLM(...)), or AsyncLLM(...) with the same options.")
        llm.engine  # noqa: B018 - raises if it was closed
        made = cls.__new__(cls)
        made._llm, made._owns_llm = llm, False
        made._start()
        return made

    def _start(self) -> None:
        if self._llm.options.is_launched:
            raise InvalidOptionError(
                'AsyncLLM does not take distributed_executor_backend="external_launcher": requests come to one process. Leave it out.'
            )
        self._pipeline = Pipeline(self._llm.llm_engine)
        self._numbers = itertools.count()
        self._shutdown = weakref.finalize(self, self._pipeline.shutdown)  # also at the interpreter's exit

    @property
    def tokenizer(self):
        """encode(text) -> list[int], decode(token_ids) -> str."""
        return self._llm.tokenizer

    @property
    def device(self) -> str:
        """ "cpu" or "cuda"."""
        return self._llm.device

    @property
    def max_model_len(self) -> int:
        """The maximum number of tokens of prompt and output together."""
        return self._llm.max_model_len

    def get_default_sampling_params(self) -> SamplingParams:
        """The parameters of requests that give none, as LLM.get_default_sampling_params()."""
        return self._llm.get_default_sampling_params()

    async def generate(
        self, prompt: Prompt | Callable[[], Prompt], sampling_params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, deadline: float | None = None, cache_salt: str | None = None, final_only: bool = False,
    ) -> AsyncIterator[RequestOutput]:  # fmt: skip
        """Continues one prompt, and yields its output so far whenever there are new tokens; the last output is `finished`.

        A reader that is slower than the model gets several tokens at a time. Leaving the loop or cancelling its task ends the request
        before the next step. The arguments are those of add_request, and so are the errors, raised when the iteration begins.
        """
        stream = await self.add_request(
            request_id, prompt, sampling_params, priority=priority, deadline=deadline, cache_salt=cache_salt, final_only=final_only
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    def chat(
        self, messages: list[dict[str, Any]], sampling_params: SamplingParams | None = None, *, request_id: str | None = None,
        chat_template: str | None = None, add_generation_prompt: bool = True, continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None, chat_template_kwargs: dict[str, Any] | None = None, **request: Any,
    ) -> AsyncIterator[RequestOutput]:  # fmt: skip
        """Like `generate`, for a conversation; the options of the template are those of LLM.chat.

        messages: a conversation, [{"role": "user", "content": "..."}, ...]. request: priority, deadline, cache_salt and final_only, as in
        generate().
        """
        options = ChatOptions(chat_template, add_generation_prompt, continue_final_message, tools, chat_template_kwargs)
        return self.generate(self.conversation(messages, options, sampling_params), sampling_params, request_id=request_id, **request)

    def conversation(
        self, messages: list[dict[str, Any]], options: ChatOptions, sampling_params: SamplingParams | None = None
    ) -> Callable[[], Prompt]:  # fmt: skip
        """A conversation as a prompt of add_request: the template runs when the request is tokenised."""

        def prompt() -> Prompt:
            longest = self._llm.llm_engine.longest_prompt([sampling_params or self.get_default_sampling_params()])
            return chat_prompt(messages, options, self.tokenizer, longest)

        return prompt

    async def add_request(
        self, request_id: str | None, prompt: Prompt | Callable[[], Prompt], sampling_params: SamplingParams | None = None, *,
        priority: int = 0, deadline: float | None = None, cache_salt: str | None = None, final_only: bool = False,
        on_output: Callable[[OutputStream], None] | None = None,
    ) -> OutputStream:  # fmt: skip
        """Queue a request and return its outputs, an asynchronous iterator. Waits while the engine's queues are full.

        request_id: a text that no running request has; None makes one. prompt: a string, a list of token ids, or a dictionary, as in
        LLM.generate(). sampling_params: one, or None for the model's defaults. priority: lower runs earlier. deadline: seconds from now
        after which the request ends with DeadlineError. cache_salt: only prompts of one salt share cached keys and values. final_only:
        yield only the last output, which costs less. on_output: called in this event loop whenever the stream has something to take(),
        for a reader of many streams.

        The iterator raises InvalidRequestError for an invalid prompt or parameter, OutOfMemoryError for a prompt that can never fit, and
        DeadlineError for a text that takes more than 10 s to tokenise. Raises EngineDeadError if the engine has ended, and EngineBusyError
        in a forked process.
        """
        pipeline, arrival_time = self._pipeline, time.perf_counter()
        request_id = self._new_id() if request_id is None else request_id
        check_request(request_id, sampling_params)
        stream = OutputStream(lambda: pipeline.moved.add([request]), lambda: pipeline.abort(request), on_output)
        request = PipelineRequest(
            request_id, prompt, sampling_params, stream, arrival_time, priority=priority,
            deadline=deadline, cache_salt=cache_salt, final_only=final_only,
        )  # fmt: skip
        has_room = asyncio.Event()
        if not pipeline.admit(request, functools.partial(_call_soon, stream.loop, has_room.set)):
            try:
                await has_room.wait()
            except asyncio.CancelledError:
                stream.close()
                raise
        return stream

    async def abort(self, request_id: str) -> None:
        """End a request before the next step; its reader gets a last output with finish_reason "abort".

        request_id: an unknown one is ignored.
        """
        request = self._pipeline.find(request_id)
        if request is not None:
            self._pipeline.abort(request)

    def stats(self) -> EngineStats:
        """The engine's current load, and its counts since it was made."""
        self._pipeline.check_alive()
        return self._llm.llm_engine.stats()

    def check_health(self) -> None:
        """Raises EngineDeadError if the engine cannot serve any more."""
        self._pipeline.check_alive()

    def shutdown(self) -> None:
        """End all requests, which get EngineDeadError, and free the model. Calling it again does nothing."""
        self._shutdown()
        if self._owns_llm:
            self._llm.close()

    async def __aenter__(self) -> "AsyncLLM":
        return self

    async def __aexit__(self, *_) -> None:
        await asyncio.to_thread(self.shutdown)

    def _new_id(self) -> str:
        return next(name for name in map(str, self._numbers) if self._pipeline.find(name) is None)


def _call_soon(loop: asyncio.AbstractEventLoop, function) -> None:
    """Call a function in an event loop, unless the loop is closed."""
    try:
        loop.call_soon_threadsafe(function)
    except RuntimeError:
        return
