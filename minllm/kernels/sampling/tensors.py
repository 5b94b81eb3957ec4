"""The sampling parameters of a batch, as arrays.

A request's sampling parameters are Python attributes; a kernel needs one array per parameter with one entry per row. `SamplingTensors`
holds those arrays, and a few facts that let the host skip kernels that no row needs. The noise of a draw is a
pure function of (seed, step, token id), so a row generates the same tokens in any batch.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from minllm.errors import InvalidRequestError


@dataclass
class SamplingTensors:
    """The parameters of R rows, one array each (NumPy, or on a device after `to`); row r applies to row r of the logits."""

    temperature: Any  # float32 [R]; 0 = greedy
    top_k: Any  # int32 [R]; keep the k largest logits; 0 = keep all
    top_p: Any  # float32 [R]; keep the smallest set of tokens whose probability reaches p; 1 = keep all
    min_p: Any  # float32 [R]; keep tokens with at least min_p times the largest probability; 0 = keep all
    repetition_penalty: Any  # float32 [R]; 1 = none
    presence_penalty: Any  # float32 [R]; 0 = none
    frequency_penalty: Any  # float32 [R]; 0 = none
    seed: Any  # uint32 [R, 2]; low and high half of a 64-bit seed
    step: Any  # tokens generated so far: the counter of the random numbers; int32 [R]
    min_tokens: Any  # int32 [R]; stop tokens are banned while step < min_tokens
    stop_token_ids: Any = None  # int32 [R, S], padded with -1; None if no row has min_tokens
    prompt_mask: Any = None  # uint8 [R, vocab], 1 where the token occurs in the prompt; None if no row has a penalty
    output_counts: Any = None  # int32 [R, vocab], how often the token was generated; None if no row has a penalty
    all_greedy: bool = True  # no row draws at random

    @property
    def penalized(self) -> bool:
        """Whether some row has a repetition, presence or frequency penalty."""
        return self.prompt_mask is not None

    @property
    def bans_stop_tokens(self) -> bool:
        """Whether some row has min_tokens."""
        return self.stop_token_ids is not None

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and not isinstance(value, bool)}

    def to(self, convert: Callable[[np.ndarray], Any]) -> "SamplingTensors":
        """A copy with every array converted, for instance by `ops.array` to the device."""
        return replace(self, **{name: convert(array) for name, array in self.arrays().items()})

    def advance(self, token_ids: np.ndarray) -> None:
        """Count one generated token per row, int32 [R], in place (NumPy arrays only; on the device `advance_kernel` does it)."""
        self.step += 1
        if self.output_counts is not None:
            self.output_counts[np.arange(len(token_ids)), token_ids] += 1


def build_sampling_tensors(
    parameters: Sequence[Any],
    vocab_size: int,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    stop_token_ids: Sequence[Sequence[int]] | None = None,
) -> SamplingTensors:
    """Build the NumPy arrays of R rows.

    parameters: R objects with the attributes temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty,
    min_tokens and seed (None: a fresh random one). prompts, outputs: each row's token ids so far; the lengths of outputs also give `step`.
    stop_token_ids: tokens that a row may not produce before its min_tokens: end-of-sequence and the request's own stop tokens.
    Raises InvalidRequestError if a row needs its prompt or its stop tokens and they were not given.
    """
    rows = len(parameters)
    outputs = outputs if outputs is not None else [()] * rows
    seeds = [secrets.randbits(64) if p.seed is None else int(p.seed) & (2**64 - 1) for p in parameters]
    tensors = SamplingTensors(
        temperature=_column(parameters, "temperature", np.float32),
        top_k=np.array([p.top_k if 0 < p.top_k < vocab_size else 0 for p in parameters], np.int32),
        top_p=_column(parameters, "top_p", np.float32),
        min_p=_column(parameters, "min_p", np.float32),
        repetition_penalty=_column(parameters, "repetition_penalty", np.float32),
        presence_penalty=_column(parameters, "presence_penalty", np.float32),
        frequency_penalty=_column(parameters, "frequency_penalty", np.float32),
        seed=np.array([(seed & 0xFFFFFFFF, seed >> 32) for seed in seeds], np.uint32).reshape(rows, 2),
        step=np.array([len(tokens) for tokens in outputs], np.int32),
        min_tokens=_column(parameters, "min_tokens", np.int32),
    )
    tensors.all_greedy = not (tensors.temperature > 0).any()
    if (tensors.min_tokens > 0).any():
        tensors.stop_token_ids = _padded(stop_token_ids, rows)
    if (tensors.repetition_penalty != 1).any() or tensors.presence_penalty.any() or tensors.frequency_penalty.any():
        if prompts is None:
            raise InvalidRequestError("a row has a penalty, but no prompts were given: pass the token ids of every row's prompt")
        tensors.prompt_mask, tensors.output_counts = _histories(prompts, outputs, vocab_size)
    return tensors


def _column(parameters: Sequence[Any], name: str, dtype: type) -> np.ndarray:
    return np.array([getattr(p, name) for p in parameters], dtype)


def _padded(stop_token_ids: Sequence[Sequence[int]] | None, rows: int) -> np.ndarray:
    """The stop tokens of every row, int32 [R, S], short rows padded with -1."""
    if stop_token_ids is None:
        raise InvalidRequestError("a row has min_tokens, but no stop_token_ids were given: pass every row's, end-of-sequence included")
    width = max(1, *(len(ids) for ids in stop_token_ids)) if rows else 1
    padded = np.full((rows, width), -1, np.int32)
    for row, ids in enumerate(stop_token_ids):
        padded[row, : len(ids)] = list(ids)
    return padded


def _histories(prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]], vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Whether each prompt contains each token, uint8 [R, vocab], and how often each token was generated, int32 [R, vocab]."""
    prompt_mask = np.zeros((len(prompts), vocab_size), np.uint8)
    output_counts = np.zeros((len(prompts), vocab_size), np.int32)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        prompt_mask[row, np.asarray(prompt, np.int64)] = 1
        np.add.at(output_counts[row], np.asarray(output, np.int64), 1)
    return prompt_mask, output_counts
