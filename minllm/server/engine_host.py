"""The engine's side of the socket: takes requests to an AsyncLLM, and writes one frame of updates per step.

A request costs no task: the streams that have something new are collected, and taken once per turn of the event loop. While the server
does not read, they are left alone; each holds at most its newest output, so a server that hangs fills no memory here.
"""

import asyncio
import dataclasses
import socket
from typing import Any

from minllm.engine.async_llm import AsyncLLM
from minllm.engine.pipeline.output_stream import OutputStream
from minllm.engine.requests.chat_prompts import ChatOptions
from minllm.engine.requests.prompts import check_chars
from minllm.errors import as_exception
from minllm.server.frames import BUFFER_BYTES, messages, packed
from minllm.server.wire import PARAMETERS, EngineRequest, Sent, Update, failure_of


class EngineHost:
    """Serves one server's requests on an AsyncLLM."""

    def __init__(self, llm: AsyncLLM):
        self.llm = llm
        self._open: dict[int, asyncio.Task | OutputStream] = {}  # a request's task until the engine has taken it, then its stream
        self._sent: dict[OutputStream, tuple[int, Sent]] = {}
        self._moved: dict[OutputStream, None] = {}
        self._failed: list[tuple[int, Update]] = []
        self._replies: list[Any] = []
        self._news = asyncio.Event()

    async def serve(self, connection: socket.socket) -> None:
        """Serve until the other side closes the connection; all its requests end then."""
        reader, writer = await asyncio.open_connection(sock=connection, limit=BUFFER_BYTES)
        writer.write(packed({"ready": model_card(self.llm)}))
        writing = asyncio.create_task(self._write(writer))
        try:
            async for batch in messages(reader):
                for name, number, *arguments in batch:
                    self._take(name, number, arguments)
        finally:
            writing.cancel()
            for number in list(self._open):
                self._abort(number)
            writer.close()

    def _take(self, name: str, number: int, arguments: list[Any]) -> None:
        if name == "add":
            self._open[number] = asyncio.create_task(self._add(number, EngineRequest.from_wire(arguments[0])))
        elif name == "abort":
            self._abort(number)
        else:
            asyncio.create_task(self._answer(number, name, arguments))

    async def _add(self, number: int, request: EngineRequest) -> None:
        try:
            prompt: object = request.prompt
            if request.chat is not None:
                options = dict(request.chat)
                prompt = self.llm.conversation(options.pop("messages"), ChatOptions(**options), request.params)
            stream = await self.llm.add_request(
                None, prompt, request.params, priority=request.priority, deadline=request.deadline, cache_salt=request.cache_salt,
                final_only=request.final_only, on_output=self._has_moved,
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - it ends this request alone
            del self._open[number]
            self._fail(number, error)
            return
        self._open[number] = stream
        self._sent[stream] = number, Sent(request)
        self._has_moved(stream)  # what came before this task ran

    def _abort(self, number: int) -> None:
        begun = self._open.pop(number, None)
        if isinstance(begun, OutputStream):
            self._sent.pop(begun, None)
            self._moved.pop(begun, None)
            begun.close()
        elif begun is not None:
            begun.cancel()

    def _has_moved(self, stream: OutputStream) -> None:
        self._moved[stream] = None
        self._news.set()

    def _fail(self, number: int, error: Exception) -> None:
        self._failed.append((number, Update(None, [], True, failure_of(error))))
        self._news.set()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            frame: dict[str, Any] = {"updates": self._updates()}
            if self._replies:
                frame["replies"], self._replies = self._replies, []
            writer.write(packed(frame))
            await writer.drain()

    def _updates(self) -> list[tuple[int, Update]]:
        """The news of all requests that have moved."""
        moved, self._moved = self._moved, {}
        for stream in moved:
            if stream not in self._sent:
                continue
            number, sent = self._sent[stream]
            try:
                output = stream.take()
                update = None if output is None else sent.update(output, self._decode)
            except Exception as error:  # noqa: BLE001 - refused, dead engine, or a text that cannot be made
                stream.close()
                update = Update(None, [], True, failure_of(as_exception(error)))
            if update is None:
                continue
            self._failed.append((number, update))
            if update.finished:
                del self._sent[stream], self._open[number]
        updates, self._failed = self._failed, []
        return updates

    def _decode(self, token_ids: list[int]) -> str:
        return self.llm.tokenizer.decode(token_ids)

    async def _answer(self, number: int, name: str, arguments: list[Any]) -> None:
        """Call one of CALLS in a thread; tokenising a long text takes long."""
        try:
            reply = [number, await asyncio.to_thread(CALLS[name], self.llm, *arguments), None]
        except Exception as error:  # noqa: BLE001 - it goes to whoever asked
            reply = [number, None, failure_of(error)]
        self._replies.append(reply)
        self._news.set()


def model_card(llm: AsyncLLM) -> dict[str, Any]:
    """What the server must know of the model."""
    defaults, tokenizer, engine = llm.get_default_sampling_params(), llm.tokenizer, llm._llm.engine
    return {
        "max_model_len": llm.max_model_len,
        "vocab_size": engine.model.config.vocab_size,
        "device": llm.device,
        "max_num_seqs": llm._llm.options.max_num_seqs,
        "max_num_batched_tokens": llm._llm.options.max_num_batched_tokens,
        "has_chat_template": tokenizer.has_chat_template,
        "chat_templates": "\n".join(tokenizer.chat_templates.values()),
        "max_new_tokens": engine.generation_config.max_new_tokens,
        "default_params": {name: value for name in PARAMETERS if (value := getattr(defaults, name)) is not None},
    }


def tokenize(llm: AsyncLLM, text: str | None, chat: dict[str, Any] | None, add_special_tokens: bool, with_texts: bool) -> dict[str, Any]:
    """The token ids of a text or of a conversation; with_texts: also the text of each."""
    tokenizer = llm.tokenizer
    if chat is not None:
        options = dict(chat)
        text = tokenizer.apply_chat_template(options.pop("messages"), **vars(ChatOptions(**options)))
    check_chars(text, tokenizer.most_chars_per_token, llm.max_model_len)
    ids = tokenizer.encode(text, add_special_tokens)
    return {"token_ids": ids, "texts": [tokenizer.decode([one], skip_special_tokens=False) for one in ids] if with_texts else None}


def detokenize(llm: AsyncLLM, token_ids: list[int]) -> str:
    """The text of token ids."""
    return llm.tokenizer.decode(token_ids, skip_special_tokens=False)


def stats(llm: AsyncLLM) -> dict[str, Any]:
    """EngineStats as a dictionary."""
    return dataclasses.asdict(llm.stats())


CALLS = {"tokenize": tokenize, "detokenize": detokenize, "stats": stats}
