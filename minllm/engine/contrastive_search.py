"""Contrastive search: choose likely tokens with hidden states unlike all earlier ones, so that the text does not repeat itself.

    x = argmax over the top_k likeliest tokens v of   (1 - α) p(v | x_<t) - α max_j cos(h_v, h_x_j)        j < t

h is the last layer's hidden state after the final norm; for a candidate, it is computed as if the candidate were the next token. So a step
extends top_k forks of the text by one token; the logits of the chosen fork give the next candidates, and the other forks are freed.

Hidden states are copied to the host, where the scores are computed, and one text is continued at a time: this is for comparing texts, not
for serving. Source: Su et al., "A Contrastive Framework for Neural Text Generation", NeurIPS 2022, equation 5.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.cache.kv_cache import KVCache
from minllm.cache.policy import CachePolicy
from minllm.engine.requests.no_token import check_finite
from minllm.engine.requests.parameter_checks import flag, integer, real
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.engine.running.batch_arrays import NewTokens, build_batch, chunks, to_backend
from minllm.errors import InvalidRequestError
from minllm.kernels.sampling.log_probabilities import log_softmax
from minllm.models.decoder import final_logits, hidden_states
from minllm.ops.protocol import Ops

MAX_TOP_K = 64  # every candidate is a fork with a cache block of its own


@dataclass(frozen=True)
class ContrastiveSearchParams:
    """The options of contrastive search, with transformers' names; InvalidRequestError names the first wrong value.

    penalty_alpha: weight of the similarity, from 0, which is greedy decoding, to 1.
    top_k: number of candidates per step.
    max_tokens: the most tokens to generate.
    ignore_eos: continue past the model's end-of-sequence ids.
    """

    penalty_alpha: float = 0.6
    top_k: int = 4
    max_tokens: int = 16
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        checked = {
            "penalty_alpha": real("penalty_alpha", self.penalty_alpha, 0.0, 1.0, "a number from 0 (greedy) to 1"),
            "top_k": integer("top_k", self.top_k, 1, MAX_TOP_K, f"an integer from 1 to {MAX_TOP_K}"),
            "max_tokens": integer("max_tokens", self.max_tokens, 1, None, "an integer of at least 1"),
            "ignore_eos": flag("ignore_eos", self.ignore_eos),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)  # frozen for users; values are normalised here

    def request(self) -> SamplingParams:
        """The sampling parameters of a request that ends when the search ends."""
        return SamplingParams(temperature=0, max_tokens=self.max_tokens, ignore_eos=self.ignore_eos)


class Fork:
    """The cache owner of one fork of a text, distinct from all others."""

    def __repr__(self) -> str:
        return "a candidate of a contrastive search"


@dataclass(frozen=True)
class ContrastiveSearch:
    """Continues texts with a model and some blocks of its cache, which it frees afterwards."""

    ops: Ops
    model: Any
    cache: KVCache
    policy: CachePolicy
    max_num_batched_tokens: int

    def run(self, sequence: Sequence, params: ContrastiveSearchParams) -> None:
        """Append tokens to a sequence until it ends.

        Raises OutOfMemoryError if the cache has no room for the forks, and SamplingError if logits hold NaN or infinity.
        """
        if self.cache.shape.residual_window:
            raise InvalidRequestError("Contrastive search needs a cache without residual windows: set kv_cache_residual_window=0.")
        forks = [Fork()]
        self.policy.reserve(forks[0], sequence.prompt_token_ids[:1])  # never a prefix-cache hit: every hidden state is computed
        try:
            logits, context = self._prompt(forks[0], sequence.prompt_token_ids)  # [vocab], [n, hidden]
            while not sequence.is_finished:
                probabilities = np.exp(log_softmax(logits))
                check_finite(probabilities, self.ops.dtype)
                candidates = np.argsort(-probabilities, kind="stable")[: params.top_k]
                self._fork(forks, len(candidates))
                logits_of, hidden = self._extend(forks, candidates, sequence.num_tokens)
                similarity = (hidden @ context.T).max(axis=1)  # [top_k]
                scores = (1 - params.penalty_alpha) * probabilities[candidates] - params.penalty_alpha * similarity
                best = int(np.argmax(scores))
                self._keep(forks, best)
                logits, context = logits_of[best], np.concatenate([context, hidden[best : best + 1]])
                sequence.append(int(candidates[best]))
        finally:
            while forks:
                self.policy.free(forks.pop())

    def _prompt(self, fork: Fork, token_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        """The logits after a prompt, [vocab], and its hidden states of norm 1, [n, hidden]."""
        self.policy.append(fork, token_ids[1:])
        spans = chunks(token_ids, self.max_num_batched_tokens, self.policy.table(fork))
        found = [self._forward([fork], [span], [len(span.token_ids) - 1]) for span in spans]
        return found[-1][0][0], np.concatenate([hidden for _, hidden in found])

    def _extend(self, forks: list[Fork], candidates: np.ndarray, position: int) -> tuple[np.ndarray, np.ndarray]:
        """Extend each fork by its candidate; returns logits [top_k, vocab] and hidden states of norm 1 [top_k, hidden]."""
        for fork, token_id in zip(forks, candidates.tolist(), strict=True):
            self.policy.append(fork, [token_id])
        self.cache.copy_blocks(self.ops, self.policy.take_copies())
        spans = [NewTokens([token_id], position, self.policy.table(fork)) for fork, token_id in zip(forks, candidates, strict=True)]
        return self._forward(forks, spans, range(len(spans)))

    def _forward(self, forks: list[Fork], spans: list[NewTokens], rows: Many[int]) -> tuple[np.ndarray, np.ndarray]:
        """The logits of `rows`, [R, vocab], and all hidden states of norm 1, [T, hidden], float32; a span for each fork."""
        self.policy.begin_step()
        for fork, span in zip(forks, spans, strict=True):
            self.policy.slide(fork, span.start, span.start + len(span.token_ids))
        if self.policy.windows is not None:
            self.cache.place_windows(self.ops, self.policy.windows, self.policy.take_local_copies())
        weights = self.model.weights
        batch = to_backend(build_batch(spans, rows, self.cache.block_size), self.ops)
        x, residual = hidden_states(self.ops, self.model, batch, self.cache.layers)
        logits = final_logits(self.ops, self.model, x, residual, batch)
        hidden, _ = self.ops.add_norm(x, residual, weights.final_norm)
        hidden = self.ops.to_host(hidden).astype(np.float32)
        return self.ops.to_host(logits), hidden / np.linalg.norm(hidden, axis=1, keepdims=True)

    def _fork(self, forks: list[Fork], count: int) -> None:
        """Fork the text until it has `count` owners."""
        while len(forks) < count:
            fork = Fork()
            self.policy.fork(forks[0], fork)
            forks.append(fork)

    def _keep(self, forks: list[Fork], best: int) -> None:
        """Free all forks but number `best`."""
        forks[0], forks[best] = forks[best], forks[0]
        while len(forks) > 1:
            self.policy.free(forks.pop())
