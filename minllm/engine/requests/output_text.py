"""The text of a sequence: its tokens are decoded and searched for stop strings when the text is read.

One thread may append tokens while another reads the text.
"""

from collections.abc import Sequence as Many
from threading import Lock
from typing import Any

from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.stop_strings import StopStringMatcher
from minllm.errors import Contained


class OutputText:
    """Reads a list of output tokens that only grows. decoder: turns ids into text piece by piece (models/incremental_decoder.py)."""

    def __init__(self, decoder: Any, params: SamplingParams, ending_token_ids: frozenset[int]):
        self.params, self.ending_token_ids = params, ending_token_ids
        self.decoder = decoder  # None once the text is complete
        self._matcher = StopStringMatcher(params.stop_strings, params.include_stop_str_in_output)
        self._num_read = 0  # number of output tokens given to the decoder
        self._untaken = ""
        self._lock = Lock()

    def so_far(self, token_ids: Many[int], are_all: bool) -> tuple[str, int]:
        """The text, and the number of output tokens in it. are_all: no more tokens will come."""
        with self._lock:
            self._read(token_ids, are_all)
            return self._matcher.text, self._num_read

    def take(self, token_ids: Many[int], are_all: bool) -> str:
        """The text that became final since the last call."""
        with self._lock:
            self._read(token_ids, are_all)
            text, self._untaken = self._untaken, ""
        return text

    def stop_string(self, token_ids: Many[int], are_all: bool) -> str | None:
        """The stop string that ends the text; None if there is none yet."""
        with self._lock:
            self._read(token_ids, are_all)
        return self._matcher.stop

    def give_up(self, num_tokens: int) -> None:
        """Leave the text as it is, after this number of output tokens."""
        with self._lock:
            self._num_read, self.decoder = num_tokens, None

    @Contained()
    def _read(self, token_ids: Many[int], are_all: bool) -> None:
        """Decode the output tokens that have not been decoded yet."""
        new, min_tokens = token_ids[self._num_read :], self.params.min_tokens
        if self.params.stop:
            for token_id in new:
                self._num_read += 1
                may_stop = self._num_read > min_tokens
                self._release(self.decoder.push(token_id) if self._is_shown(token_id, may_stop) else "", may_stop)
        elif new:
            self._num_read += len(new)
            may_stop = self._num_read > min_tokens
            self._release(self.decoder.push_all(new if self._is_shown(new[-1], may_stop) else new[:-1]), may_stop)
        if are_all and self.decoder is not None:
            self._release(self.decoder.finish(), len(token_ids) > min_tokens)
            self._untaken += self._matcher.flush()
            self.decoder = None

    def _is_shown(self, token_id: int, may_stop: bool) -> bool:
        """Whether a token is part of the text: one that ends the text is only with include_stop_str_in_output."""
        return not (may_stop and token_id in self.ending_token_ids) or self.params.include_stop_str_in_output

    def _release(self, piece: str, may_stop: bool) -> None:
        self._untaken += self._matcher.push(piece, may_stop)


class NoText:
    """The decoder of a request with detokenize=False: no token has a text."""

    def push_all(self, token_ids: list[int]) -> str:
        """No text."""
        return ""

    def finish(self) -> str:
        """No text."""
        return ""
