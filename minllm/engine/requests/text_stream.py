"""The text of one request as it is generated: an iterator of strings."""

from collections.abc import Iterator

from minllm.engine.core import EngineCore
from minllm.engine.requests.completions import output_of
from minllm.engine.requests.outputs import RequestOutput
from minllm.engine.requests.sequence import Sequence
from minllm.engine.turn import NotCopied
from minllm.errors import EngineBusyError


class TextStream(NotCopied, Iterator[str]):
    """Yields pieces of text as they become final: whole characters, never part of a stop string. Concatenated, they are the text.

    `output` is the request so far, complete once the iteration ends. To stop early, close() it, use it in a `with`
    statement, or drop it; its memory is then freed. Several streams may be open: each step computes a token for all that have begun.

    While one thread reads a stream, the LLM is busy for all others; only close() may come from another thread. Reading on after close(), or
    after the LLM's, raises EngineBusyError.
    """

    def __init__(self, sequence: Sequence, core: EngineCore):
        self._sequence, self._core = sequence, core
        self._has_begun = self._is_closed = False

    def __next__(self) -> str:
        if self._is_closed:
            raise self._ending()
        with self._core.turn as turn:
            turn.begin_call(self)
            try:
                return self._next_piece()
            except BaseException:
                self._core.abort([self._sequence] if self._has_begun else [])
                self.close()
                raise

    def _next_piece(self) -> str:
        if not self._has_begun:
            self._has_begun = True
            self._core.add(self._sequence)
        while not (piece := self._sequence.take_text()):
            if self._sequence.error is not None:
                raise self._sequence.error
            if self._sequence.is_finished:
                raise self._ending()
            self._core.step()
        return piece

    def _ending(self) -> Exception:
        """Why no more text comes."""
        if self._sequence.finish_reason in (None, "abort"):
            return EngineBusyError("This stream was closed before its text was complete: `output` has what there is; begin another stream.")
        return StopIteration()

    @property
    def output(self) -> RequestOutput:
        """The request so far: tokens, text, finish reason and timings."""
        return output_of([self._sequence])

    def close(self) -> None:
        """End the generation; does nothing if it has ended or not begun."""
        if self._has_begun and not self._is_closed:
            self._core.drop(self._sequence)
        self._is_closed = True
        self._core.turn.end_reading(self)

    def __del__(self):
        self.close()

    def __enter__(self) -> "TextStream":
        return self

    def __exit__(self, *_) -> None:
        self.close()
