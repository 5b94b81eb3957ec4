"""The text of one request as it is generated: an iterator of strings."""

from collections.abc import Iterator

from minllm.engine.completions import output_of
from minllm.engine.outputs import RequestOutput
from minllm.engine.sequence import Sequence


class TextStream(Iterator[str]):
    """Yields pieces of text as they become final: whole characters, never part of a stop string. Concatenated, they are the text.

    `output` is the request so far, complete once the iteration ends. Leaving early is allowed: close() it, use it in a `with`
    statement, or drop it, and its memory is free again.
    """

    def __init__(self, sequence: Sequence, steps: Iterator[list[Sequence]]):
        self._sequence = sequence
        self._steps = steps

    def __next__(self) -> str:
        for _ in self._steps:
            piece = self._sequence.take_text()
            if piece:
                return piece
        raise StopIteration

    @property
    def output(self) -> RequestOutput:
        """Tokens, text, reason of the end and timings so far."""
        return output_of([self._sequence])

    def close(self) -> None:
        """Ends the generation; nothing happens if it has ended."""
        self._steps.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_) -> None:
        self.close()
