"""Why no next token can be chosen for a request: the errors that end it, and no other request."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import DTypeLike

from minllm.engine.requests.sequence import Sequence
from minllm.errors import SamplingError, shown
from minllm.kernels.sampling.argmax import NOT_FINITE

SAFE_REPETITION = 1e-30, 1e30  # with a repetition penalty in between, no logit of ordinary size leaves float32's range


def no_token_error(sequence: Sequence, result: int) -> SamplingError:
    """The error of a sequence whose row gave this result of the sampler, NOTHING_ALLOWED or NOT_FINITE, instead of a token."""
    place = f"token {len(sequence.output_token_ids) + 1} of its output"
    if result == NOT_FINITE:
        return not_finite_error(sequence, place)
    found = " and ".join(_restrictions(sequence))
    cause = f"{found} leave none: allow more tokens." if found else "the model's own logits are all -inf."
    return SamplingError(f"No token can be chosen for {sequence} as {place}: {cause}")


def not_finite_error(sequence: Sequence, place: str) -> SamplingError:
    """The error of a sequence with logits that hold NaN or infinity. place: what the logits are for."""
    if _is_extreme(sequence.params.repetition_penalty):
        cause = f"repetition_penalty={sequence.params.repetition_penalty} takes them out of float32's range: choose one near 1."
    else:
        cause = overflow_cause(sequence.dtype)
    return SamplingError(f"The logits of {sequence} for {place} hold NaN or infinity: {cause}")


def _is_extreme(penalty: float) -> bool:
    low, high = SAFE_REPETITION
    return not low < penalty < high


def check_finite(scores: np.ndarray, dtype: DTypeLike) -> None:
    """Raise SamplingError if a score, made from logits of a forward in this dtype, is NaN."""
    if np.isnan(scores).any():
        raise SamplingError(f"The logits of this text hold NaN or infinity: {overflow_cause(np.dtype(dtype).name)}")


def overflow_cause(dtype: str) -> str:
    """Why logits computed in this dtype hold NaN or infinity, and what to do."""
    if dtype == "float16":
        return 'activations exceed 65504, the largest float16. Load the model with dtype="bfloat16" or dtype="float32".'
    other = ', or that the model needs dtype="float32"' if dtype == "bfloat16" else ""
    return f"the forward in {dtype} has overflowed, or the weights hold NaN. Check that the checkpoint is whole{other}."


def _restrictions(sequence: Sequence) -> Iterator[str]:
    """The parameters of a sequence that can exclude tokens."""
    params = sequence.params
    if params.allowed_token_ids is not None:
        yield f"allowed_token_ids={shown(list(params.allowed_token_ids))}"
    if params.bad_words:
        yield f"bad_words={shown(list(params.bad_words))}"
    if params.structured_outputs is not None:
        yield str(params.structured_outputs)
    if len(sequence.output_token_ids) < params.min_tokens:
        yield f"min_tokens={params.min_tokens}, which bans the ids that end the text,"
    if params.logits_processors:
        yield "logits_processors"
    if _is_extreme(params.repetition_penalty):
        yield f"repetition_penalty={params.repetition_penalty}"
