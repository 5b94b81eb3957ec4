"""AWQ's gemm layout: 4 bits in groups with zero points, w = (code - zero) * scale.

    MODULE.qweight  int32 [inputs, outputs / 8]            MODULE.qzeros  int32 [groups, outputs / 8]
    MODULE.scales   float16 [groups, outputs]

A word holds eight neighbouring outputs in the order 0, 2, 4, 6, 1, 3, 5, 7, lowest bits first.

Source: AutoAWQ, awq/modules/linear/gemm.py and awq/utils/packing_utils.py.
"""

from dataclasses import dataclass

import numpy as np

from minllm.errors import UnsupportedModelError
from minllm.models.json_files import Fields
from minllm.models.quantized.tensors import ModuleTensors, Parts, StoredInt4, tensors_of
from minllm.models.quantized.words import unpack_words
from minllm.weights.stored import Projection, StoredWeights

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
GROUPS = (32, 64, 128)


@dataclass(frozen=True)
class AwqFormat(StoredInt4):
    """Int4Format with zero points, read from AWQ's tensors."""

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of qweight, qzeros and scales."""
        outputs, inputs, groups = projection.outputs, projection.inputs, projection.inputs // self.group_size
        shapes = dict(qweight=(inputs, -(-outputs // 8)), qzeros=(groups, -(-outputs // 8)), scales=(groups, outputs))
        return tensors_of(projection, **shapes)

    def parts(self, projection: Projection, checkpoint: StoredWeights) -> Parts:
        """Codes, scales and zeros of a module."""
        tensors = ModuleTensors(checkpoint, projection.name)
        codes, zeros = (unpack_words(tensors.codes(words, np.int32), 1, order=ORDER).T for words in ("qweight", "qzeros"))
        return codes, tensors.scales("scales").T, zeros


def read_awq(fields: Fields) -> AwqFormat:
    """The format of a quantization_config of AWQ. Raises UnsupportedModelError for other variants of AWQ."""
    bits, version, group_size = fields.integer("bits"), fields.text("version", "gemm").lower(), fields.integer("group_size", minimum=-1)
    if bits != 4 or version != "gemm" or not fields.flag("zero_point", True) or group_size not in GROUPS:
        raise UnsupportedModelError(
            f"{fields.source} is AWQ with bits {bits}, version {version!r}, group_size {group_size}, zero_point "
            f"{fields.values.get('zero_point', True)}; minllm reads 4 bits in the version 'gemm' with zero points and groups of "
            f"{', '.join(map(str, GROUPS))}."
        )
    return AwqFormat("awq", 0.5, group_size=group_size, group_bytes=3, has_zeros=True)
