"""The engine's process: `python -m minllm.server.engine_process FD`, started by engine_launch.py with one end of a socket pair.

Its first message holds the options of the engine. It ends when the server's end of the socket closes, however the server ended.
"""

import asyncio
import os
import signal
import socket
import sys

import uvloop

from minllm.engine.async_llm import AsyncLLM
from minllm.machine.collector import collect_rarely
from minllm.server.engine_host import EngineHost
from minllm.server.frames import HEADER_BYTES, packed
from minllm.server.wire import failure_of


def main() -> None:
    """Load the model that the first frame names, and serve it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches both processes; the server drains, then closes the socket
    collect_rarely()
    connection = socket.socket(fileno=int(sys.argv[1]))
    try:
        llm = AsyncLLM(progress=sys.stderr.isatty(), **read_options(connection))
    except Exception as error:  # noqa: BLE001 - the server reports it
        connection.sendall(packed({"failed": failure_of(error)}))
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(EngineHost(llm).serve(connection))
    llm.shutdown()
    sys.stderr.flush()
    os._exit(0)  # nothing is left to save, and threads of slow tokenisations would be waited for


def read_options(connection: socket.socket) -> dict:
    """The first frame."""
    import orjson

    with connection.makefile("rb", buffering=0) as file:
        length = int.from_bytes(read_exactly(file, HEADER_BYTES), "big")
        return orjson.loads(read_exactly(file, length))


def read_exactly(file, count: int) -> bytes:
    """`count` bytes. Raises EOFError if the server ended first."""
    data = b""
    while len(data) < count:
        more = file.read(count - len(data))
        if not more:
            raise EOFError("The server ended before it gave the engine's options.")
        data += more
    return data


if __name__ == "__main__":
    main()
