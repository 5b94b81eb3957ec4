"""Converts a request's sampling parameters to its slot's entries in SamplingTensors."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from minllm.errors import InvalidRequestError
from minllm.kernels.sampling.flags import Adjustment, TokenFlag
from minllm.kernels.sampling.tensors import SLOT_FIELDS, VOCABULARY_FIELDS, SamplingKind, SamplingTensors


class Parameters(Protocol):
    """The attributes of a request that are read here: vLLM's names, see engine/requests/sampling_params.py."""

    @property
    def temperature(self) -> float: ...

    @property
    def top_k(self) -> int: ...

    @property
    def top_p(self) -> float: ...

    @property
    def min_p(self) -> float: ...

    @property
    def repetition_penalty(self) -> float: ...

    @property
    def presence_penalty(self) -> float: ...

    @property
    def frequency_penalty(self) -> float: ...

    @property
    def seed(self) -> int | None: ...

    @property
    def min_tokens(self) -> int: ...

    @property
    def logit_bias(self) -> Mapping[Any, float] | None: ...

    @property
    def allowed_token_ids(self) -> Sequence[int] | None: ...


@dataclass(frozen=True)
class SamplingEntries:
    """The entries of one slot.

    words: a value for every name in SLOT_FIELDS. vocabulary: arrays [vocab] for the VOCABULARY_FIELDS that the slot's adjustments read.
    """

    words: dict[str, Any]
    vocabulary: dict[str, np.ndarray]


def adjustments_of(params: Parameters, banned_token_ids: Sequence[int] = ()) -> Adjustment:
    """The adjustments to the logits of a request before a token is chosen."""
    found = Adjustment(0)
    if params.repetition_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0:
        found |= Adjustment.PENALTIES
    if params.logit_bias:
        found |= Adjustment.BIAS
    if params.min_tokens > 0 or params.allowed_token_ids is not None or len(banned_token_ids):
        found |= Adjustment.BANS
    return found


def kind_of(params: Parameters, banned_token_ids: Sequence[int] = ()) -> SamplingKind:
    """The SamplingKind that a request needs; a batch takes the largest kind of its requests."""
    if adjustments_of(params, banned_token_ids):
        return SamplingKind.ADJUSTED
    return SamplingKind.GREEDY if params.temperature == 0 else SamplingKind.RANDOM


def sampling_entries(
    params: Parameters,
    vocab_size: int,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    ending_token_ids: Sequence[int] = (),
    banned_token_ids: Sequence[int] = (),
) -> SamplingEntries:
    """A slot's entries for a request with this prompt, after these generated tokens.

    ending_token_ids: banned before min_tokens. banned_token_ids: banned always. A seed of None becomes a random one.
    """
    seed = secrets.randbits(64) if params.seed is None else int(params.seed) & (2**64 - 1)
    adjustments = adjustments_of(params, banned_token_ids)
    computed = dict(
        top_k=params.top_k if 0 < params.top_k < vocab_size else 0,
        seed=(seed & 0xFFFFFFFF, seed >> 32),
        step=len(output),
        adjustments=int(adjustments),
    )
    words = {name: computed[name] if name in computed else getattr(params, name) for name in SLOT_FIELDS}
    vocabulary = {}
    if adjustments & (Adjustment.PENALTIES | Adjustment.BANS):
        vocabulary["token_flags"] = _token_flags(params, vocab_size, prompt, ending_token_ids, banned_token_ids)
    if adjustments & Adjustment.PENALTIES:
        vocabulary["output_counts"] = np.bincount(np.asarray(output, np.int64), minlength=vocab_size).astype(np.int32)
    if adjustments & Adjustment.BIAS:
        vocabulary["logit_bias"] = np.zeros(vocab_size, np.float32)
        vocabulary["logit_bias"][list(params.logit_bias)] = list(params.logit_bias.values())
    return SamplingEntries(words, vocabulary)


def _token_flags(
    params: Parameters, vocab_size: int, prompt: Sequence[int], ending_token_ids: Sequence[int], banned_token_ids: Sequence[int]
) -> np.ndarray:
    """The slot's TokenFlags, uint8 [vocab]."""
    flags = np.full(vocab_size, 0 if params.allowed_token_ids is None else TokenFlag.BANNED, np.uint8)
    if params.allowed_token_ids is not None:
        flags[list(params.allowed_token_ids)] = 0
    for token_ids, flag in ((prompt, TokenFlag.IN_PROMPT), (ending_token_ids, TokenFlag.ENDS), (banned_token_ids, TokenFlag.BANNED)):
        flags[np.asarray(token_ids, np.int64)] |= np.uint8(flag)
    return flags


def build_sampling_tensors(
    parameters: Sequence[Parameters],
    vocab_size: int,
    prompts: Sequence[Sequence[int]] | None = None,
    outputs: Sequence[Sequence[int]] | None = None,
    stop_token_ids: Sequence[Sequence[int]] | None = None,
) -> SamplingTensors:
    """The NumPy arrays for R requests in the slots 0 to R - 1; arguments as in `sampling_entries`, one of each per request.

    stop_token_ids: tokens that a request may not produce before its min_tokens: end-of-sequence and the request's own stop tokens.
    Raises InvalidRequestError if a request needs its prompt or its stop tokens and they were not given.
    """
    rows = len(parameters)
    if stop_token_ids is None and any(p.min_tokens > 0 for p in parameters):
        raise InvalidRequestError("a row has min_tokens, but no stop_token_ids were given: pass every row's, end-of-sequence included")
    if prompts is None and any(adjustments_of(p) & Adjustment.PENALTIES for p in parameters):
        raise InvalidRequestError("a row has a penalty, but no prompts were given: pass the token ids of every row's prompt")
    prompts, outputs, stop_token_ids = (given if given is not None else [()] * rows for given in (prompts, outputs, stop_token_ids))
    entries = [sampling_entries(p, vocab_size, *one) for p, *one in zip(parameters, prompts, outputs, stop_token_ids, strict=True)]
    columns = {name: [entry.words[name] for entry in entries] for name in SLOT_FIELDS}
    arrays = {name: np.array(columns[name], dtype).reshape(rows, *shape) for name, (dtype, shape) in SLOT_FIELDS.items()}
    tensors = SamplingTensors(**arrays, kind=max(map(kind_of, parameters), default=SamplingKind.GREEDY))
    if tensors.kind is not SamplingKind.ADJUSTED:
        return tensors
    tensors = tensors.with_vocabulary_arrays(np.zeros, vocab_size)
    for slot, entry in enumerate(entries):
        for name in VOCABULARY_FIELDS.keys() & entry.vocabulary.keys():
            getattr(tensors, name)[slot] = entry.vocabulary[name]
    return tensors
