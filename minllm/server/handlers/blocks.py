"""An answer as a row of blocks, of text or of a tool's call, as /v1/messages and /v1/responses show it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from minllm.server.server import Generation, Server
from minllm.server.tool_calls.stream import Piece
from minllm.server.wire import Delta, EngineRequest


@dataclass
class Block:
    """A text, or the arguments of a call of the tool `name`."""

    index: int
    name: str | None = None
    text: str = ""


class Step(NamedTuple):
    """What happens to a block. text: what is added to it."""

    kind: Literal["open", "add", "close"]
    block: Block
    text: str = ""


class Blocks:
    """The blocks so far; the last one is open until the next begins."""

    def __init__(self):
        self.all: list[Block] = []

    def take(self, pieces: list[Piece]) -> list[Step]:
        """The steps of new pieces."""
        steps: list[Step] = []
        for piece in pieces:
            is_call = piece.call is not None
            if not self.all or piece.name is not None or is_call != (self.all[-1].name is not None):
                steps += self.close()
                self.all.append(Block(len(self.all), piece.name))
                steps.append(Step("open", self.all[-1]))
            if piece.text:
                self.all[-1].text += piece.text
                steps.append(Step("add", self.all[-1], piece.text))
        return steps

    def close(self) -> list[Step]:
        """The end of the open block."""
        return [Step("close", self.all[-1])] if self.all else []


class Turn:
    """One answer of a model: its blocks, and how it ended."""

    def __init__(self, server: Server, request: EngineRequest, reader):
        self._server, self._request, self._reader = server, request, reader
        self.blocks = Blocks()
        self.generation: Generation | None = None
        self.end: Delta | None = None  # the last delta

    async def steps(self, who: str) -> AsyncIterator[list[Step]]:
        """Generate; the first list may be empty, and comes when the prompt has been read."""
        with self._server.generating([self._request], who) as self.generation:
            async for batch in self.generation.batches():
                steps: list[Step] = []
                for delta in [delta for _, update in batch for delta in update.deltas]:
                    is_last = delta.finish_reason is not None
                    self.end = delta if is_last else self.end
                    steps += self.blocks.take(self._reader.feed(delta.text, is_last))
                yield steps
            yield self.blocks.close()

    async def run(self, who: str) -> None:
        """Generate all."""
        async for _ in self.steps(who):
            pass

    @property
    def has_calls(self) -> bool:
        """Whether the answer calls tools."""
        return self._reader.num_calls > 0
