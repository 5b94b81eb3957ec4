"""Users' logits processors: functions on the host, whose results are checked before they reach the sampler."""

from typing import Any

import numpy as np

from minllm.engine.requests.sequence import Sequence
from minllm.errors import SamplingError, shown


def processed_logits(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """The logits after all processors of a sequence; float32 [vocab] both. Raises SamplingError, or what a processor raises.

    Logits that hold NaN or +inf already are returned as they are, so that the model is blamed for them.
    """
    if not (logits < np.inf).all():
        return logits
    found = logits.copy()
    for processor in sequence.logits_processors:
        found = _checked(processor(list(sequence.output_token_ids), found), processor, logits.shape)
    return found


def _checked(result: Any, processor: Any, shape: tuple[int, ...]) -> np.ndarray:
    """A processor's result as float32. Tokens with +inf are the only ones left, which is what the softmax tends to."""
    name = f"The logits processor {shown(processor)}"
    if result is None:
        raise SamplingError(f"{name} returned None: it must return the logits, even if it changes them in place.")
    try:
        array = np.asarray(result)
    except Exception as error:  # a list of lists, or an array of another library
        raise SamplingError(f"{name} returned {shown(result)}, which is no array ({error}): it must return an array of NumPy.") from error
    if array.shape != shape or array.dtype.kind == "b" or not np.can_cast(array.dtype, np.float32, "same_kind"):
        raise SamplingError(f"{name} returned {array.dtype} {array.shape}: it must return numbers of shape {shape}, best as float32.")
    with np.errstate(over="ignore"):
        found = np.array(array, np.float32)
    if num_nans := int(np.isnan(found).sum()):
        raise SamplingError(f"{name} returned NaN for {num_nans} of {len(found)} tokens: it must return a number, or -inf to ban a token.")
    forced = found == np.inf
    return np.where(forced, np.float32(0), np.float32(-np.inf)) if forced.any() else found
