"""The format of modules in layouts without kernels: dequantised while loading, plain from then on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.weights.plain import PlainFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights


@dataclass(frozen=True)
class WidenedFormat(PlainFormat):
    """A plain format that reads matrices by `stored`: tensors(projection), matrix(projection, checkpoint)."""

    stored: Any = None

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the stored format's tensors."""
        return self.stored.tensors(projection)

    def matrices(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> list[np.ndarray]:
        """The shard of each module's dequantised matrix [outputs, inputs]."""
        return [one.cut(self.stored.matrix(one, checkpoint), shard) for one in projections]


def widened(stored: Any) -> WidenedFormat:
    """The format that dequantises what `stored` reads."""
    return WidenedFormat(f"{stored.name}, dequantised", 2, stored=stored)
