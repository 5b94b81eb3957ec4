"""Runs the server: first the engine, then HTTP, until SIGTERM or Ctrl-C; open requests finish first."""

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette

from minllm.errors import InvalidOptionError
from minllm.server.app import make_app
from minllm.server.connections import protocol
from minllm.server.engine_launch import EngineLaunch
from minllm.server.options import ServerOptions
from minllm.server.server import Server

KEEP_ALIVE_SECONDS = 30
READ_SECONDS = 1.0  # for clients to read that their requests have ended
OPEN_FILES = 65_536


def run(options: ServerOptions, engine_options: dict[str, Any], announce: Callable[[Server, str], None]) -> None:
    """Serve until a signal. announce: called with the server and its address once it can be used. Raises the engine's errors."""
    allow_connections()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options, engine_options, announce))


def allow_connections() -> None:
    """Raise the limit of open files, of which each connection is one, as far as the system lets a process do so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def serve(options: ServerOptions, engine_options: dict[str, Any], announce: Callable[[Server, str], None]) -> None:
    """The same, in a running event loop."""
    listening = bound_socket(options.host, options.port)  # first: a model may take minutes to load
    launch = EngineLaunch(engine_options, options.restart_engine)
    try:
        await launch.start()
        server = Server(options, launch, engine_options.get("model"))
        gc.collect()
        gc.freeze()  # what start-up has made stays: collections need not look at it
        await listen(server, listening, announce)
    finally:
        listening.close()
        await launch.close()


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket at this address. Raises InvalidOptionError if it cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise InvalidOptionError(f"host={host!r}, port={port} cannot be used: {error.strerror or error}. Take others.") from error
    return made


async def listen(server: Server, listening: socket.socket, announce: Callable[[Server, str], None]) -> None:
    """Accept connections until a signal."""
    http = DrainingServer(server)
    announcing = asyncio.create_task(announce_when_started(http, server, announce))
    try:
        await http.serve([listening])
    finally:
        announcing.cancel()


def config(server: Server, app: Starlette) -> uvicorn.Config:
    """uvicorn's settings."""
    options = server.options
    return uvicorn.Config(
        app, host=options.host, port=options.port, log_level="warning", access_log=False, server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, timeout_graceful_shutdown=int(options.drain_seconds + READ_SECONDS) + 2,  # never reached
        http=protocol(options.io_seconds), ws="none", loop="none", lifespan="on",
    )  # fmt: skip


class DrainingServer(uvicorn.Server):
    """uvicorn's server, which ends normally after a signal, so that the engine is closed after the last answer."""

    def __init__(self, server: Server):
        super().__init__(config(server, make_app(server)))
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, and let open requests finish for drain_seconds."""
        ending = asyncio.get_running_loop().call_later(self._server.options.drain_seconds, self.end_requests)
        try:
            await super().shutdown(sockets)
        finally:
            ending.cancel()

    def end_requests(self) -> None:
        """End open requests with an error, and after READ_SECONDS the connections that have not read it."""
        self._server.engine.client.end_all("The server is shutting down.")
        asyncio.get_running_loop().call_later(READ_SECONDS, self._end_connections)

    def _end_connections(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self):
        """Let SIGTERM and Ctrl-C begin the end; a second one cuts open requests off."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take_signal, number)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _take_signal(self, number: int) -> None:
        if self.should_exit:
            self.end_requests()
        self.should_exit = True


async def announce_when_started(http: uvicorn.Server, server: Server, announce: Callable[[Server, str], None]) -> None:
    """Call `announce` with the address that the server got."""
    while not http.started:
        await asyncio.sleep(0.01)
    host, port = http.servers[0].sockets[0].getsockname()[:2]
    announce(server, f"http://{f'[{host}]' if ':' in host else host}:{port}")
