"""The text of one request as it is generated: an iterator of strings."""

from collections.abc import Iterator

from minllm.engine.core import EngineCore
from minllm.engine.requests.completions import output_of
from minllm.engine.requests.outputs import RequestOutput
from minllm.engine.requests.sequence import Sequence


class TextStream(Iterator[str]):
    """Yields pieces of text as they become final: whole characters, never part of a stop string. Concatenated, they are the text.

    `output` is the request so far, complete once the iteration ends. To stop early, close() it, use it in a `with`
    statement, or drop it; its memory is then freed. Several streams may be open: each step computes a token for all that have begun.
    """

    def __init__(self, sequence: Sequence, core: EngineCore):
        self._sequence, self._core = sequence, core
        self._has_begun = self._is_closed = False

    def __next__(self) -> str:
        if self._is_closed:
            raise StopIteration
        if not self._has_begun:
            self._has_begun = True
            self._core.add(self._sequence)
        try:
            while not (piece := self._sequence.take_text()):
                if self._sequence.error is not None:
                    raise self._sequence.error
                if self._sequence.is_finished:
                    raise StopIteration
                self._core.step()
        except BaseException:
            self.close()
            raise
        return piece

    @property
    def output(self) -> RequestOutput:
        """The request so far: tokens, text, finish reason and timings."""
        return output_of([self._sequence])

    def close(self) -> None:
        """End the generation; does nothing if it has ended or not begun."""
        if self._has_begun and not self._is_closed:
            self._core.abort([self._sequence])
        self._is_closed = True

    def __del__(self):
        self.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_) -> None:
        self.close()
