"""The text of one request as it is generated: an iterator of strings."""

from collections.abc import Iterator

from minllm.engine.completions import output_of
from minllm.engine.outputs import RequestOutput
from minllm.engine.sequence import Sequence


class TextStream(Iterator[str]):
    """Yields pieces of text as they become final: whole characters, never part of a stop string. Concatenated, they are the text.

    `output` is the request so far, complete once the iteration ends. To stop early, close() it, use it in a `with`
    statement, or drop it; its memory is then freed.
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
        """The request so far: tokens, text, finish reason and timings."""
        return output_of([self._sequence])

    def close(self) -> None:
        """End the generation; does nothing if it has ended."""
        self._steps.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_) -> None:
        self.close()
