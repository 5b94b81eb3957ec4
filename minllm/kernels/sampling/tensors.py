"""The sampling parameters of all slots, as arrays.

A request's sampling parameters are Python attributes; a kernel needs one array per parameter with one entry per slot (kernels/slots).
A row of the logits reads the entries of its own slot, so rows come and go without a copy. The noise of a draw is a pure function of
(seed, step, token id), so a sequence generates the same tokens in any batch and in any slot.

Three arrays are as wide as the vocabulary. They exist once a request needs them, and a slot's row in them is read only if the slot's
`adjustments` say so. `parameters.py` computes a slot's entries from a request.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np

from minllm.kernels.sampling.flags import Adjustment
from minllm.runtime.array_protocol import Array


class SamplingKind(IntEnum):
    """Which kernels choose the tokens. Each kind also serves the slots of the kinds before it."""

    GREEDY = 0  # the largest logit
    RANDOM = 1  # thresholds, then a draw; greedy slots take the largest logit
    ADJUSTED = 2  # bias, penalties and bans first


FLOAT, INT, UINT = np.float32, np.int32, np.uint32
SLOT_FIELDS = {  # name: (dtype, shape of a slot's entry)
    "temperature": (FLOAT, ()),
    "top_k": (INT, ()),
    "top_p": (FLOAT, ()),
    "min_p": (FLOAT, ()),
    "repetition_penalty": (FLOAT, ()),
    "presence_penalty": (FLOAT, ()),
    "frequency_penalty": (FLOAT, ()),
    "seed": (UINT, (2,)),
    "step": (INT, ()),
    "min_tokens": (INT, ()),
    "adjustments": (INT, ()),
}
VOCABULARY_FIELDS = {"token_flags": np.uint8, "output_counts": INT, "logit_bias": FLOAT}  # name: dtype


@dataclass
class SamplingTensors:
    """The parameters of S slots, one array each (NumPy, or on a device)."""

    temperature: Array  # float32 [S]; 0 = greedy
    top_k: Array  # int32 [S]; keep the k largest logits; 0 = keep all
    top_p: Array  # float32 [S]; keep the smallest set of tokens that together reach probability p; 1 = keep all
    min_p: Array  # float32 [S]; keep tokens with at least min_p times the largest probability; 0 = keep all
    repetition_penalty: Array  # float32 [S]; 1 = none
    presence_penalty: Array  # float32 [S]; 0 = none
    frequency_penalty: Array  # float32 [S]; 0 = none
    seed: Array  # uint32 [S, 2]; low and high half of a 64-bit seed
    step: Array  # int32 [S]; tokens generated so far: the counter of the random numbers
    min_tokens: Array  # int32 [S]; tokens that end the text are banned while step < min_tokens
    adjustments: Array  # int32 [S]; a sum of Adjustment
    token_flags: Array | None = None  # uint8 [S, vocab]; sums of TokenFlag
    output_counts: Array | None = None  # int32 [S, vocab]; how often each token was generated
    logit_bias: Array | None = None  # float32 [S, vocab]; added to the logits
    kind: SamplingKind = SamplingKind.RANDOM  # the largest kind among the rows that are sampled next

    def arrays(self) -> dict[str, Any]:
        """The arrays by name, without those that are None."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "kind"}
        return {name: value for name, value in values.items() if value is not None}

    def to(self, convert: Callable[[np.ndarray], Any]) -> "SamplingTensors":
        """A copy with every array converted, for instance by `ops.array` to the device."""
        return replace(self, **{name: convert(array) for name, array in self.arrays().items()})

    def of_kind(self, kind: SamplingKind) -> "SamplingTensors":
        """The same arrays, for rows of this kind."""
        return replace(self, kind=kind)

    def with_vocabulary_arrays(self, zeros: Callable, vocab_size: int) -> "SamplingTensors":
        """The same arrays and, allocated with `zeros(shape, dtype)`, those as wide as the vocabulary."""
        shape = (self.temperature.shape[0], vocab_size)
        return replace(self, **{name: zeros(shape, dtype) for name, dtype in VOCABULARY_FIELDS.items()})

    def advance(self, slots: np.ndarray, token_ids: np.ndarray) -> None:
        """Count one generated token in each of these slots, int32 [n], in place (NumPy arrays only; on a device a kernel does it)."""
        self.step[slots] += 1
        if self.output_counts is not None:
            counts = (self.adjustments[slots] & Adjustment.PENALTIES) > 0
            self.output_counts[slots[counts], token_ids[counts]] += 1
