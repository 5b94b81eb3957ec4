"""The state of each running sequence on the device, by slot.

A sequence owns a slot from its first step to its last. The rows of a batch change from step to step, so slots[r] gives the slot of row r;
-1 marks a padding row. A decode step begins with load_rows.py, which fills the batch's arrays from the slots, and ends with advance.py,
which stores the new tokens in them; none of this passes through the host. All numbers are 32-bit words of one array, one field after the
other, so that one launch of write_slots.py can change any of them.

Size, for S slots and block tables of W columns: 4 S (14 + W) bytes.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from minllm.kernels.sampling.tensors import SLOT_FIELDS, SamplingTensors
from minllm.runtime.array_protocol import Array


@dataclass
class SlotState:
    """The state of S slots; all arrays except those of `sampling` over the vocabulary are views of `words`."""

    words: Array  # int32 [number of words]
    newest_tokens: Array  # int32 [S] the sequence's newest token; its key and value are not computed yet
    lengths: Array  # int32 [S] tokens of the sequence, including the newest
    block_tables: Array  # int32 [S, W] cache blocks of the sequence, in order
    sampling: SamplingTensors

    @classmethod
    def make(cls, zeros, num_slots: int, width: int) -> "SlotState":
        """The state of free slots. zeros: allocates zeros(shape, dtype), e.g. Ops.zeros; width: columns of the block tables."""
        layout = slot_layout(num_slots, width)
        words = zeros((sum(field.size for field in layout.values()),), np.int32)
        views = {name: field.view(words) for name, field in layout.items()}
        own = {name: views.pop(name) for name in ("newest_tokens", "lengths", "block_tables")}
        return cls(words, **own, sampling=SamplingTensors(**views))

    def pairs(self, slot: int, **values: ArrayLike) -> np.ndarray:
        """(index in `words`, word) pairs for fields of one slot, given by name: int32 [n, 2], the argument of write_slots.

        A field of several words takes a list; a list for `block_tables` may be shorter than the slot's row, and sets its beginning.
        """
        layout = slot_layout(*self.block_tables.shape)
        bits = [np.atleast_1d(np.asarray(value, layout[name].dtype)).view(np.int32) for name, value in values.items()]
        places = [layout[name].places(slot, len(one)) for name, one in zip(values, bits, strict=True)]
        empty = np.empty(0, np.int32)
        return np.stack([np.concatenate([empty, *places]), np.concatenate([empty, *bits])], axis=1)

    def block_pairs(self, slots: ArrayLike, columns: ArrayLike, blocks: ArrayLike) -> np.ndarray:
        """The pairs for one entry of the block tables in each of n slots, int32 [n, 2]."""
        field = slot_layout(*self.block_tables.shape)["block_tables"]
        places = field.start + np.asarray(slots) * field.shape[1] + np.asarray(columns)
        return np.stack([places, np.asarray(blocks)], axis=1).astype(np.int32)


@dataclass(frozen=True)
class Field:
    """The location of a field in the words: from `start` on, with this shape, 32 bits per element."""

    start: int
    shape: tuple[int, ...]  # [S] or [S, words per slot]
    dtype: np.dtype

    @property
    def size(self) -> int:
        """Number of words."""
        return math.prod(self.shape)

    def view(self, words: Array) -> Any:
        """The field as an array."""
        return words[self.start : self.start + self.size].view(self.dtype).reshape(self.shape)

    def places(self, slot: int, count: int) -> np.ndarray:
        """The indices of the slot's first `count` words, int32."""
        first = self.start + slot * math.prod(self.shape[1:])
        return np.arange(first, first + count, dtype=np.int32)


@functools.cache
def slot_layout(num_slots: int, width: int) -> dict[str, Field]:
    """The Field of each name, in the order of the words."""
    shapes = {"newest_tokens": (np.int32, ()), "lengths": (np.int32, ()), **SLOT_FIELDS, "block_tables": (np.int32, (width,))}
    layout, start = {}, 0
    for name, (dtype, shape) in shapes.items():
        layout[name] = Field(start, (num_slots, *shape), np.dtype(dtype))
        start += layout[name].size
    return layout
