"""Starts the engine's process, notices its death, and starts it again if that was asked for."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from typing import Any

from minllm.errors import EngineDeadError, MinLLMError
from minllm.server.engine_client import EngineClient

END_SECONDS = 10.0  # for the process to free a GPU after its socket has closed, before it is killed
RESTART_SECONDS = 1.0  # before a process that could not start is tried again


class EngineLaunch:
    """The engine of a server: `client` is the present connection."""

    def __init__(self, options: dict[str, Any], restarts: bool = False):
        """options: fields of EngineOptions that JSON can hold. restarts: whether a process that ends is replaced."""
        self.options, self.restarts = options, restarts
        self.client = EngineClient()
        self.num_restarts = 0
        self._process: subprocess.Popen | None = None
        self._watching: asyncio.Task | None = None

    async def start(self) -> None:
        """Start the process and wait until its model is loaded. Raises the error with which it failed."""
        await self._launch()
        self._watching = asyncio.create_task(self._watch())

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return None if self._process is None else self._process.pid

    async def _launch(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "minllm.server.engine_process", str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
        client = EngineClient()
        try:
            await client.connect(ours, self.options)
        except BaseException:
            await self._end(client)
            raise
        client.on_frame = self.client.on_frame
        self.client = client  # until now, requests met the death of the one before

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(0.05)
            if self.client.death is None:
                continue
            code = await self._end(self.client)
            print(f"minllm: the engine's process ended with exit code {code}.", file=sys.stderr, flush=True)
            if not self.restarts:
                return
            while True:
                try:
                    self.num_restarts += 1
                    await self._launch()
                    break
                except (MinLLMError, OSError) as error:
                    print(f"minllm: the engine cannot be started again: {error}", file=sys.stderr, flush=True)
                    await asyncio.sleep(RESTART_SECONDS)

    async def close(self) -> None:
        """End the process."""
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._end(self.client)

    async def _end(self, client: EngineClient) -> int | None:
        await client.close()
        if self._process is None:
            return None
        try:
            return await asyncio.to_thread(self._process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return await asyncio.to_thread(self._process.wait)

    def check_alive(self) -> None:
        """Raise EngineDeadError if there is no engine at present."""
        if self.client.death is not None:
            more = " It is being started again." if self.restarts else " Start the server again."
            raise EngineDeadError(f"{self.client.death}{more}")
