"""A server of a model that this process has loaded, on the loopback address, in a thread: for notebooks and tests.

Its engine is on the other end of a socket pair, as that of `minllm serve`, but in the same event loop.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minllm.engine.async_llm import AsyncLLM
from minllm.errors import EngineDeadError
from minllm.server.engine_client import EngineClient
from minllm.server.engine_host import EngineHost
from minllm.server.options import ServerOptions
from minllm.server.run import DrainingServer
from minllm.server.server import Server

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
        """Raise EngineDeadError if the connection has ended."""
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
def serving(llm: AsyncLLM, **options: Any) -> Iterator[Served]:
    """Serve a loaded model while the block runs, on a free port. options: those of ServerOptions. Open requests finish at the end."""
    ready, found = threading.Event(), {}

    async def main() -> None:
        engine = LocalEngine(llm)
        await engine.start()
        server = Server(ServerOptions(port=0, **options), engine, None)
        http = DrainingServer(server)
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
    if not ready.wait(SECONDS):
        raise EngineDeadError(f"The server did not start within {SECONDS} s.")
    try:
        yield found["served"]
    finally:
        found["http"].should_exit = True
        thread.join(SECONDS)
        if thread.is_alive():
            raise EngineDeadError(f"The server did not end within {SECONDS} s.")
