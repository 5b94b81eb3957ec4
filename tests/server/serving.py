"""A server on the loopback address in a thread, its engine beside it in the same event loop, on the other end of a socket pair."""

import asyncio
import contextlib
import json
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from minllm import AsyncLLM
from minllm.errors import EngineDeadError
from minllm.server.app import make_app
from minllm.server.engine_client import EngineClient, Job
from minllm.server.engine_host import EngineHost
from minllm.server.options import ServerOptions
from minllm.server.run import DrainingServer, config
from minllm.server.server import Server
from minllm.server.wire import Delta, Head, Update

SECONDS = 30


class LocalEngine:
    """An engine without a process of its own."""

    def __init__(self, llm: AsyncLLM):
        self.llm, self.client = llm, EngineClient()

    async def start(self) -> None:
        """Connect both ends."""
        ours, theirs = socket.socketpair()
        self.hosting = asyncio.create_task(EngineHost(self.llm).serve(theirs))
        await self.client.connect(ours)

    def check_alive(self) -> None:
        if self.client.death is not None:
            raise EngineDeadError(str(self.client.death))


@dataclass
class Served:
    """A running server."""

    address: str
    server: Server
    llm: AsyncLLM
    loop: asyncio.AbstractEventLoop

    def stats(self) -> Any:
        """The engine's."""
        return self.llm.stats()


@contextlib.contextmanager
def serving(llm: AsyncLLM, **options):
    """Serve a loaded model; options: those of ServerOptions."""
    ready, found = threading.Event(), {}

    async def main() -> None:
        engine = LocalEngine(llm)
        await engine.start()
        server = Server(ServerOptions(port=0, **options), engine, None)
        http = DrainingServer(config(server, make_app(server)))
        serving = asyncio.create_task(http.serve())
        while not http.started and not serving.done():
            await asyncio.sleep(0.005)
        address = f"http://127.0.0.1:{http.servers[0].sockets[0].getsockname()[1]}"
        found.update(served=Served(address, server, llm, asyncio.get_running_loop()), http=http)
        ready.set()
        await serving
        await engine.client.close()
        await asyncio.wait_for(engine.hosting, SECONDS)

    thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
    thread.start()
    assert ready.wait(SECONDS)
    try:
        yield found["served"]
    finally:
        found["http"].should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


def answering(text, size=3):
    """EngineClient.submit of an engine that answers every request with a text, in pieces of `size` characters."""

    def submit(requests):
        job = Job(EngineClient(), [-1])
        for begin in range(0, len(text), size):
            is_last = begin + size >= len(text)
            head = None if begin else Head(len(json.dumps(requests[0].chat)), 0, None, None, None, None)
            delta = Delta(0, text[begin : begin + size], [1], None, "stop" if is_last else None, None)
            job.put(0, Update(head, [delta], is_last, None), time.perf_counter())
        return job

    return submit
