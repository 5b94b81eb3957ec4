"""Hugging Face's fp8: e4m3 in blocks of 128 x 128, the layout of DeepSeek's checkpoints.

    MODULE.weight  float8_e4m3fn [outputs, inputs]            MODULE.weight_scale_inv  float32 or bfloat16 [blocks, blocks]

w = weight * weight_scale_inv, although the name suggests a division. The last block of either axis may be smaller than 128.

Source: transformers, quantizers/quantizer_finegrained_fp8.py; DeepSeek-AI 2024, "DeepSeek-V3 Technical Report", section 3.3.2.
"""

from dataclasses import dataclass

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.kernels.quantization.fp8 import E4M3
from minllm.kernels.quantization.fp8_block import Fp8BlockWeight
from minllm.kernels.quantization.groups import FP8_BLOCK
from minllm.models.json_files import Fields
from minllm.models.quantized.tensors import ModuleTensors, StoredFormat, tensors_of
from minllm.weights.formats import FP8_SINCE, SIXTEEN_BITS
from minllm.weights.quantized import Fp8BlockFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights


@dataclass(frozen=True)
class StoredFp8Blocks(StoredFormat, Fp8BlockFormat):
    """Fp8BlockFormat, read from MODULE.weight and a tensor of scales."""

    scales_suffix: str = "weight_scale_inv"

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the codes and of the scales per block."""
        outputs, inputs = projection.outputs, projection.inputs
        return tensors_of(projection, weight=(outputs, inputs), **{self.scales_suffix: (-(-outputs // FP8_BLOCK), -(-inputs // FP8_BLOCK))})

    def load(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> Fp8BlockWeight:
        """The shard of the stacked modules' weight, as host arrays; it keeps the scales of all outputs."""
        codes, scales, blocks, first = [], [], [], 0
        for one in projections:
            tensors = ModuleTensors(checkpoint, one.name)
            found = e4m3_codes(tensors)
            rows = np.arange(one.outputs, dtype=np.int32) // FP8_BLOCK + np.int32(first)
            codes.append(one.cut(found, shard))
            blocks.append(one.cut(rows, shard, inputs_axis=None))
            scales.append(one.cut(tensors.scales(self.scales_suffix).astype(np.float32), shard, outputs_axis=None, block=(1, FP8_BLOCK)))
            first += -(-one.outputs // FP8_BLOCK)
        return Fp8BlockWeight(*(np.concatenate(one) for one in (codes, scales, blocks)))


def e4m3_codes(tensors: ModuleTensors) -> np.ndarray:
    """The bits of MODULE.weight, uint8. Raises CheckpointError for NaN, the only non-finite e4m3 number."""
    codes = tensors.codes("weight", E4M3).view(np.uint8)
    if (codes & 127 == 127).any():
        raise CheckpointError(f"{tensors.checkpoint.directory}: tensor '{tensors.module}.weight' holds NaN; the file is damaged.")
    return codes


def fp8_blocks(name: str, scales_suffix: str) -> StoredFp8Blocks:
    """The format `name` of a checkpoint that stores scales as MODULE.scales_suffix."""
    return StoredFp8Blocks(name, 1, ("fp8_tflops", *SIXTEEN_BITS), row_bytes=4, since=FP8_SINCE, scales_suffix=scales_suffix)


def read_fp8(fields: Fields) -> StoredFp8Blocks:
    """The format of a quantization_config of fp8. Raises UnsupportedModelError for other variants of fp8."""
    block, scheme = fields.values.get("weight_block_size"), fields.text("activation_scheme", "dynamic")
    kind, scales = fields.text("fmt", "e4m3"), fields.text("scale_fmt", "float32")
    if block != [FP8_BLOCK, FP8_BLOCK] or scheme != "dynamic" or kind != "e4m3" or scales != "float32":
        raise UnsupportedModelError(
            f"{fields.source} is fp8 with weight_block_size {block}, activation_scheme {scheme!r}, fmt {kind!r} and scale_fmt {scales!r}; "
            f"minllm reads e4m3 in blocks of [{FP8_BLOCK}, {FP8_BLOCK}] with the scheme 'dynamic' and scales as they are."
        )
    return fp8_blocks("fp8 blocks", "weight_scale_inv")
