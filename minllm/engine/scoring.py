"""Score a given text: logits at every position, and perplexity.

    perplexity = exp(-1/N * sum of log p(token | tokens before it))

over the N tokens that have at least one before them. A text longer than the model's context is read in windows that overlap, and each
token is counted once, in the first window that reaches it (Hugging Face's "strided" perplexity).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from minllm.cache.kv_cache import KVCache
from minllm.cache.policy import CachePolicy
from minllm.engine.requests.no_token import check_finite
from minllm.engine.running.batch_arrays import build_batch, chunks, to_backend
from minllm.errors import InvalidRequestError
from minllm.kernels.sampling.log_probabilities import log_softmax
from minllm.models.decoder import forward
from minllm.models.model import Model
from minllm.ops.batch import Batch
from minllm.ops.protocol import Ops

MAX_LOGITS = 2**26  # numbers in one chunk's logits, 256 MiB in float32


class ScoredText:
    """The cache owner of a text while it is scored, distinct from all others."""

    def __repr__(self) -> str:
        return "a text to be scored"


@dataclass(frozen=True)
class Scorer:
    """Computes logits of given tokens with a model and some blocks of its cache, which it frees afterwards."""

    ops: Ops
    model: Model
    cache: KVCache
    policy: CachePolicy
    max_num_batched_tokens: int
    score: Callable[[Batch], Any] | None = None  # computes the logits of a batch on all ranks, if there are several

    def logits(self, token_ids: list[int], first_row: int = 0) -> Iterator[np.ndarray]:
        """The logits of positions from `first_row` on, float32 [rows, vocab] per chunk: row i scores the token after token i."""
        owner = ScoredText()
        self.policy.reserve(owner, token_ids[:1], len(token_ids) - 1)  # never a prefix-cache hit: every logit is computed
        try:
            self.policy.append(owner, token_ids[1:])
            table = self.policy.table(owner)
            window = self.cache.shape.residual_window
            ring = 0 if self.cache.room is None else self.cache.room.scoring_ring
            step = max(1, min(self.max_num_batched_tokens, MAX_LOGITS // self.model.config.vocab_size))
            for span in chunks(token_ids, step, table, ring):
                skipped = min(max(0, first_row - span.start), len(span.token_ids))
                rows = range(skipped, len(span.token_ids)) or [0]  # a forward without logits computes one row, which is dropped
                self.policy.begin_step()
                self.policy.slide(owner, span.start, span.start + len(span.token_ids))
                if self.policy.windows is not None:
                    self.cache.place_windows(self.ops, self.policy.windows, self.policy.take_local_copies())
                logits = self._logits_of(build_batch([span], rows, self.cache.block_size, window))
                if skipped < len(span.token_ids):
                    yield self.ops.to_host(logits)
        finally:
            self.policy.free(owner)

    def _logits_of(self, batch: Batch) -> Any:
        """The logits of a batch with its arrays on the host."""
        if self.score is not None:
            return self.score(batch)
        return forward(self.ops, self.model, to_backend(batch, self.ops), self.cache.layers)

    def log_likelihoods(self, token_ids: list[int], first_target: int = 1) -> np.ndarray:
        """log p(token i | tokens 0 .. i - 1) for i from `first_target` (at least 1) on: float32 [len(token_ids) - first_target].

        Raises SamplingError if logits hold NaN or infinity.
        """
        parts, target = [], first_target
        for logits in self.logits(token_ids[:-1], first_target - 1):
            targets = np.asarray(token_ids[target : target + len(logits)])
            parts.append(np.take_along_axis(log_softmax(logits), targets[:, None], axis=1)[:, 0])
            check_finite(parts[-1], self.ops.dtype)
            target += len(logits)
        return np.concatenate(parts)

    def perplexity(self, token_ids: list[int], window: int, stride: int) -> float:
        """exp of the mean negative log-likelihood of the tokens after the first, each counted once."""
        # exercise: engine.perplexity
        total = 0.0
        for begin, end, first_target in windows(len(token_ids), window, stride):
            total += self.log_likelihoods(token_ids[begin:end], first_target - begin).sum(dtype=np.float64)
        return float(np.exp(-total / (len(token_ids) - 1)))
        # end exercise


def check_window(window: int, stride: int) -> None:
    """Raise InvalidRequestError unless both are integers and every window has a token before those that it counts."""
    for name, value in (("window", window), ("stride", stride)):
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidRequestError(f"{name}={value!r} is not allowed: it is a number of tokens, an integer.")
    if not 1 <= stride < window:
        raise InvalidRequestError(f"stride={stride} is not allowed with window={window}: it is at least 1 and below the window.")


def windows(num_tokens: int, window: int, stride: int) -> Iterator[tuple[int, int, int]]:
    """(begin, end, first_target) of each window: tokens begin to end are read, and those from first_target on are counted.

    The first window counts all tokens except the very first. Every later one begins `stride` tokens after the previous one,
    so the tokens it counts have at least `window` - `stride` tokens before them.
    """
    begin, counted = 0, 1
    while counted < num_tokens:
        end = min(begin + window, num_tokens)
        yield begin, end, counted
        begin, counted = begin + stride, end
