"""A module that no kernel takes as it is stored: its matrix is dequantised while it loads, and is plain from then on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.weights.plain import PlainFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection


@dataclass(frozen=True)
class WidenedFormat(PlainFormat):
    """A plain format whose matrices are read by `stored`, which has tensors(projection) and matrix(projection, checkpoint)."""

    stored: Any = None

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Those of the stored format."""
        return self.stored.tensors(projection)

    def matrices(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> list[np.ndarray]:
        """The shard of each module's dequantised matrix."""
        return [one.cut(self.stored.matrix(one, checkpoint), shard) for one in projections]
