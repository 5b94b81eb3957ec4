"""GPTQ's layout: 4 bits in groups, w = (code - zero) * scale.

    MODULE.qweight  int32 [inputs / 8, outputs], eight inputs per word    MODULE.qzeros  int32 [groups, outputs / 8], eight outputs per word
    MODULE.scales   float16 [groups, outputs]                             MODULE.g_idx   int32 [inputs], the group of each input

Fields of a word are in ascending order, lowest bits first. Version 1 stores the zero point minus one, version 2 the zero point itself.
config.json's checkpoint_format names the version, but wrongly in some files, so it is detected from the codes: trained weights have a mean
near zero, so the mean code of a matrix is its mean zero point, and the two versions differ by one code.

With act-order (desc_act) the inputs of a group are not neighbours. No kernel supports this, so such a module is dequantised while it loads.

Source: GPTQModel, gptqmodel/nn_modules/qlinear; Frantar et al. 2023, "GPTQ", section 4; vLLM, pull request 38966 (wrong names).
"""

from dataclasses import dataclass

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.json_files import Fields
from minllm.models.quantized.tensors import ModuleTensors, StoredInt4, tensors_of
from minllm.models.quantized.widened import widened
from minllm.models.quantized.words import unpack_words
from minllm.weights.format import WeightFormat
from minllm.weights.stored import Projection, StoredWeights

GROUPS = (-1, 32, 64, 128)  # -1: a group is a whole row
SAMPLED_WORDS = 64  # rows of words per module over which the mean code is taken
MODULES = 16  # approximate number of modules sampled


@dataclass(frozen=True)
class GptqFormat(StoredInt4):
    """Int4Format with zero points, read from GPTQ's tensors."""

    stored_less: int = 1  # zero point - stored zero point: 1 in version 1, 0 in version 2
    has_group_index: bool = True  # the file has g_idx

    def check_inputs(self, name: str, inputs: int) -> None:
        """Raises CheckpointError if a module's inputs do not divide into whole groups and words."""
        super().check_inputs(name, inputs)
        if inputs % 8:
            raise CheckpointError(f"{name} has {inputs} inputs, and GPTQ stores words of eight; config.json and the weights do not match.")

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of qweight, qzeros, scales and, if the file has it, g_idx."""
        outputs, inputs = projection.outputs, projection.inputs
        groups = inputs // (self.group_size or inputs)
        shapes = dict(qweight=(-(-inputs // 8), outputs), qzeros=(groups, -(-outputs // 8)), scales=(groups, outputs))
        return tensors_of(projection, **shapes, **(dict(g_idx=(inputs,)) if self.has_group_index else {}))

    def matrix(self, projection: Projection, checkpoint: StoredWeights) -> np.ndarray:
        """A module's dequantised matrix, float32 [outputs, inputs], with the groups that g_idx gives."""
        codes, scales, zeros = self.parts(projection, checkpoint)
        groups = ModuleTensors(checkpoint, projection.name).words("g_idx", 1)
        if groups.min() < 0 or groups.max() >= scales.shape[1]:
            raise CheckpointError(f"{checkpoint.directory}: {projection.name}.g_idx names groups that scales do not have; copy it again.")
        return (codes.astype(np.float32) - zeros[:, groups]) * scales.astype(np.float32)[:, groups]

    def parts(self, projection: Projection, checkpoint: StoredWeights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Codes, scales and zeros of a module."""
        tensors = ModuleTensors(checkpoint, projection.name)
        codes = unpack_words(tensors.words("qweight", 2), 0).T
        zeros = unpack_words(tensors.words("qzeros", 2), 1).T + np.uint8(self.stored_less) & np.uint8(15)  # version 1: 15 is 0 minus one
        return codes, tensors.scales("scales").T, zeros


def stored_less(checkpoint: StoredWeights, modules: list[str]) -> int:
    """1 if these modules store the zero point minus one, else 0; judged by the mean code of some modules."""
    codes, zeros = [], []
    for module in modules[:: max(1, len(modules) // MODULES)]:
        tensors = ModuleTensors(checkpoint, module)
        words = tensors.words("qweight", 2)
        codes.append(unpack_words(words[:: max(1, len(words) // SAMPLED_WORDS)], 0).mean())
        zeros.append(unpack_words(tensors.words("qzeros", 2), 1).mean())
    return int(np.mean(codes) - np.mean(zeros) > 0.5)


def is_in_order(checkpoint: StoredWeights, module: str, group_size: int) -> bool:
    """Whether g_idx is in order: the inputs of each group are neighbours, and groups ascend."""
    groups = ModuleTensors(checkpoint, module).words("g_idx", 1)
    return np.array_equal(groups, np.arange(len(groups)) // (group_size or len(groups)))


def read_gptq(fields: Fields, checkpoint: StoredWeights) -> dict[str, WeightFormat]:
    """{module: format} of the quantised modules of a checkpoint with quant_method "gptq"."""
    bits, group_size = fields.integer("bits"), fields.integer("group_size", minimum=-1)
    layout = fields.text("checkpoint_format", "gptq")
    if bits != 4 or group_size not in GROUPS or layout not in ("gptq", "gptq_v2") or fields.object("dynamic"):
        raise UnsupportedModelError(
            f"{fields.source} is GPTQ with bits {bits}, group_size {group_size}, checkpoint_format {layout!r} and dynamic "
            f"{fields.values.get('dynamic')}; minllm reads 4 bits of the formats gptq and gptq_v2 without dynamic, in groups of "
            f"{', '.join(map(str, GROUPS))}."
        )
    modules = sorted(name.removesuffix(".qweight") for name in checkpoint.names() if name.endswith(".qweight"))
    incomplete = [name for name in modules if f"{name}.qzeros" not in checkpoint]
    if not modules or incomplete:
        missing = f"{incomplete[0]}.qzeros" if incomplete else "any tensor NAME.qweight"
        raise CheckpointError(f"{checkpoint.directory} lacks {missing}, which {fields.source} needs; a file is incomplete, copy it again.")
    group_size, has_group_index = max(0, group_size), any(name.endswith(".g_idx") for name in checkpoint.names())
    form = GptqFormat(
        "gptq", 0.5, has_zeros=True, stored_less=stored_less(checkpoint, modules), has_group_index=has_group_index, group_size=group_size,
        group_bytes=3 if group_size else 0, row_bytes=0 if group_size else 3,
    )  # fmt: skip
    if not has_group_index:
        return dict.fromkeys(modules, form)
    reordered = widened(form)
    indexed = [name for name in modules if f"{name}.g_idx" in checkpoint]
    return {name: form if name not in indexed or is_in_order(checkpoint, name, group_size) else reordered for name in modules}
