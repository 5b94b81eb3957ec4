"""GGUF's Q8_0, Q4_0 and Q4_1 as groups of 32 for the kernels; models/gguf/ describes the stored blocks.

A Linear is dequantised while it loads if its modules have different types or another type, or if it runs on a CPU.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.kernels.quantization.int4 import Int4Weight
from minllm.kernels.quantization.int8_groups import Int8GroupWeight
from minllm.kernels.quantization.reference import pack_nibbles
from minllm.models.config import ModelConfig
from minllm.models.gguf.checkpoint import GgufCheckpoint
from minllm.models.quantized.modules import FormatOfModules, by_module
from minllm.models.quantized.tensors import ModuleTensors, StoredFormat
from minllm.weights.formats import SIXTEEN_BITS
from minllm.weights.quantized import Int4Format, Int8GroupFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection

GROUP = 32


class BlocksOfRows(StoredFormat):
    """Mixin for formats in groups of 32: reads MODULE.weight from ggml's blocks."""

    def weight_of(self, blocks: np.ndarray) -> Any:
        """The weight of blocks [outputs, groups]."""
        raise NotImplementedError

    def load(self, projections: tuple[Projection, ...], checkpoint: GgufCheckpoint, shard: Shard) -> Any:
        """The shard of the stacked modules' weight, as host arrays."""
        parts = []
        for one in projections:
            blocks = one.cut(checkpoint.blocks(f"{one.name}.weight"), shard, block=(1, GROUP))  # [outputs, groups]
            scales = (blocks[name] for name in blocks.dtype.names or () if name in ("d", "m"))
            ModuleTensors(checkpoint, one.name).check_finite("weight", *scales)
            parts.append(blocks)
        return self.weight_of(np.concatenate(parts) if len(parts) > 1 else parts[0])


@dataclass(frozen=True)
class Q4(BlocksOfRows, Int4Format):
    """Int4Format, read from blocks of Q4_0, or of Q4_1, which has minimums."""

    def weight_of(self, blocks: np.ndarray) -> Int4Weight:
        """The weight of blocks [outputs, groups], with nibbles repacked in the order of the kernels."""
        codes = np.concatenate([blocks["nibbles"] & 15, blocks["nibbles"] >> 4], axis=-1).reshape(len(blocks), -1)
        return Int4Weight.of_rows(pack_nibbles(codes), blocks["d"], None, blocks["m"] if self.has_minimums else None)


@dataclass(frozen=True)
class Q8(BlocksOfRows, Int8GroupFormat):
    """Int8GroupFormat, read from blocks of Q8_0."""

    def weight_of(self, blocks: np.ndarray) -> Int8GroupWeight:
        """The weight of blocks [outputs, groups]."""
        return Int8GroupWeight(np.ascontiguousarray(blocks["q"]).reshape(len(blocks), -1), np.ascontiguousarray(blocks["d"].T))


FORMATS = {
    "Q8_0": Q8("Q8_0", 1, SIXTEEN_BITS, group_size=GROUP, group_bytes=2),
    "Q4_0": Q4("Q4_0", 0.5, SIXTEEN_BITS, group_size=GROUP, group_bytes=2),
    "Q4_1": Q4("Q4_1", 0.5, SIXTEEN_BITS, group_size=GROUP, group_bytes=4, has_minimums=True),
}


def gguf_format(config: ModelConfig, checkpoint: GgufCheckpoint) -> FormatOfModules | None:
    """The formats of the modules that kernels can read as stored; None if there are no such modules."""

    def decide(module: str) -> BlocksOfRows | None:
        name = f"{module}.weight"
        return FORMATS.get(checkpoint.entry(name).dtype) if name in checkpoint else None

    return by_module("GGUF", config, True, decide, together=True)
