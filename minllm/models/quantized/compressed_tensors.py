"""compressed-tensors (LLM Compressor, vLLM): groups of modules with a scheme each, and plain modules.

    pack-quantized   W4A16    MODULE.weight_packed  int32 [outputs, inputs / 8], each code + 8, eight inputs per word, lowest bits first
                              MODULE.weight_scale   [outputs, groups]            MODULE.weight_shape  int64 [2]
                              MODULE.weight_zero_point  int32 [outputs / 8, groups], each zero + 8, unless symmetric
                     W1 to W8 the same with codes of b bits that run on from word to word, b words for 32 codes, each code + 2**(b - 1)
    int-quantized    W8A8     MODULE.weight  int8 [outputs, inputs]              MODULE.weight_scale  [outputs, 1] or [1]
    float-quantized  FP8      MODULE.weight  float8_e4m3fn [outputs, inputs]     MODULE.weight_scale  [outputs, 1] or [1], or one per block

Codes of 4 bits stay as they are, in groups that kernels read; all others are dequantised while they load. Activations are quantised
dynamically, token by token. Schemes with one scale for all tokens, or with stored scales, are refused.

The most specific target that matches a module decides, whatever the order of the groups.

Source: vllm-project/compressed-tensors, compressors/pack_quantized, compressors/naive_quantized, quantization/quant_args.py,
utils/match.py.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.kernels.quantization.groups import FP8_BLOCK
from minllm.models.json_files import Fields
from minllm.models.quantized.fp8_blocks import e4m3_codes, fp8_blocks
from minllm.models.quantized.tensors import ModuleTensors, Parts, StoredFormat, StoredInt4, stacked, tensors_of
from minllm.models.quantized.widened import widened
from minllm.models.quantized.words import WORD_BITS, unpack_stream
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.quantized import Fp8Format, Int8Format, RowFormat
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights

PACKED = "pack-quantized"
GROUPS = (32, 64, 128)
UNUSED = ("kv_cache_scheme", "sparsity_config", "transform_config")  # settings that are refused if they are set


@dataclass(frozen=True)
class PackedIntegers(StoredInt4):
    """Codes of `bits` bits, read from pack-quantized tensors; kernels read those of 4 bits in whole groups (Int4Format)."""

    bits: int = 4

    def for_inputs(self, inputs: int) -> WeightFormat:
        """This format if kernels read its codes, else one that dequantises them."""
        fits = self.bits == 4 and self.group_size in (0, *GROUPS) and inputs % (self.group_size or GROUPS[0]) == 0
        return self if fits else widened(self)

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the packed codes, scales, shape and, if present, packed zero points."""
        outputs, inputs = projection.outputs, projection.inputs
        groups = -(-inputs // (self.group_size or inputs))
        zeros = dict(weight_zero_point=(self._words(outputs), groups)) if self.has_zeros else {}
        shapes = dict(weight_packed=(outputs, self._words(inputs)), weight_scale=(outputs, groups), weight_shape=(2,))
        return tensors_of(projection, **shapes, **zeros)

    def matrix(self, projection: Projection, checkpoint: StoredWeights) -> np.ndarray:
        """A module's dequantised matrix, float32 [outputs, inputs]; the last group may be shorter."""
        codes, scales, zeros = self.parts(projection, checkpoint)
        group, inputs = self.group_size or projection.inputs, projection.inputs
        middle = np.float32(1 << self.bits - 1) if zeros is None else np.repeat(zeros, group, axis=1)[:, :inputs]
        return (codes.astype(np.float32) - middle) * np.repeat(scales.astype(np.float32), group, axis=1)[:, :inputs]

    def _words(self, codes: int) -> int:
        return -(-codes * self.bits // WORD_BITS)

    def parts(self, projection: Projection, checkpoint: StoredWeights) -> Parts:
        """Codes, scales, and zeros or None of a module."""
        tensors, wanted = ModuleTensors(checkpoint, projection.name), (projection.outputs, projection.inputs)
        shape = tuple(tensors.codes("weight_shape", np.int64, np.int32).tolist())
        if shape != wanted:
            raise CheckpointError(
                f"{checkpoint.directory}: {projection.name}.weight_shape is {list(shape)}, and config.json makes it {list(wanted)}; "
                "config.json and the weights do not belong together."
            )
        codes = unpack_stream(tensors.codes("weight_packed", np.int32), 1, projection.inputs, self.bits)
        zeros = tensors.codes("weight_zero_point", np.int32) if self.has_zeros else None
        zeros = None if zeros is None else unpack_stream(zeros, 0, projection.outputs, self.bits)
        return codes, tensors.scales("weight_scale"), zeros


class ScaledRows(StoredFormat, RowFormat):
    """Mixin for weights (codes, scales [outputs]): reads MODULE.weight with a scale per output, or one for all."""

    by_row: bool
    codes: Callable[[ModuleTensors], np.ndarray]  # MODULE.weight [outputs, inputs]

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the codes and scales."""
        scales = (projection.outputs, 1) if self.by_row else (1,)
        return tensors_of(projection, weight=(projection.outputs, projection.inputs), weight_scale=scales)

    def load(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> Any:
        """The shard of the stacked modules' weight, as host arrays."""
        parts = []
        for one in projections:
            tensors = ModuleTensors(checkpoint, one.name)
            scales = np.broadcast_to(tensors.scales("weight_scale").astype(np.float32).reshape(-1), (one.outputs,))
            scales = np.ascontiguousarray(one.cut(scales, shard, inputs_axis=None))
            parts.append((np.ascontiguousarray(one.cut(self.codes(tensors), shard)), scales))
        return self.codec.weight(*stacked(parts))


@dataclass(frozen=True)
class StoredInt8(ScaledRows, Int8Format):
    """Int8Format, read from int-quantized tensors."""

    by_row: bool = True

    @staticmethod
    def codes(tensors: ModuleTensors) -> np.ndarray:
        """MODULE.weight, int8 [outputs, inputs]."""
        return tensors.codes("weight", np.int8)


@dataclass(frozen=True)
class StoredFp8(ScaledRows, Fp8Format):
    """Fp8Format, read from float-quantized tensors."""

    by_row: bool = True

    codes = staticmethod(e4m3_codes)


class Scheme(Fields):
    """One of config_groups: how weights and activations are quantised, checked against what is supported."""

    def refused(self, why: str) -> UnsupportedModelError:
        """The error for a scheme that is not supported."""
        return UnsupportedModelError(f"{self.source} has {why}, which minllm does not compute.")

    def arguments(self, key: str) -> Fields | None:
        """The quantisation arguments of "weights" or "input_activations"; None if there are none."""
        return Fields(self.object(key), f"{self.source}, {key},") if key in self else None

    def format(self) -> WeightFormat:
        """The format of this group's modules. Raises UnsupportedModelError if the scheme is not supported."""
        weights, inputs = self.arguments("weights"), self.arguments("input_activations")
        if weights is None or self.arguments("output_activations") is not None:
            raise self.refused("no weights" if weights is None else "output_activations")
        bits, kind = weights.integer("num_bits"), weights.text("type", "int")
        size = weights.integer("group_size", None, minimum=-1)
        strategy = weights.text("strategy", {None: "tensor", -1: "channel"}.get(size, "group"))
        if weights.values.get("actorder") not in (None, False, "weight", "static"):
            raise self.refused(f"actorder {weights.values['actorder']!r}")
        symmetric = weights.flag("symmetric", True)
        shown = f"weights of {bits} bits ({kind}, {strategy}, group_size {size}, symmetric {symmetric})"
        if kind == "int" and inputs is None:
            is_read = strategy == "channel" or (strategy == "group" and (size or 0) > 0)
            if bits > 8 or not is_read or self.text("format", PACKED) != PACKED:
                raise self.refused(f"{shown} in the format {self.text('format', PACKED)!r}")
            return packed_integers(bits, size if strategy == "group" else 0, not symmetric)
        if bits != 8 or inputs is None or not symmetric or not _is_dynamic(inputs, bits, kind, strategy):
            raise self.refused(f"{shown} and input_activations {self.values.get('input_activations')}")
        if kind == "int" and strategy in ("channel", "tensor"):
            return stored_rows(StoredInt8, "int8", strategy == "channel")
        if kind == "float" and strategy in ("channel", "tensor"):
            return stored_rows(StoredFp8, "fp8", strategy == "channel")
        if (
            kind == "float"
            and strategy == "block"
            and weights.values.get("block_structure") in ([FP8_BLOCK, FP8_BLOCK], f"{FP8_BLOCK}x{FP8_BLOCK}")
        ):
            return fp8_blocks("compressed-tensors fp8 blocks", "weight_scale")
        raise self.refused(shown)


def _is_dynamic(inputs: Fields, bits: int, kind: str, strategy: str) -> bool:
    """Whether activations are quantised as minllm does: in groups of 128 for blocks, else token by token."""
    wanted = ("group", FP8_BLOCK) if strategy == "block" else ("token", None)
    found = inputs.text("strategy", "tensor"), inputs.integer("group_size", None, minimum=-1)
    same = (inputs.integer("num_bits"), inputs.text("type", "int")) == (bits, kind) and inputs.flag("symmetric", True)
    return same and found == wanted and inputs.values.get("dynamic") is True


def packed_integers(bits: int, group_size: int, has_zeros: bool) -> PackedIntegers:
    """The format of codes of `bits` bits; group_size 0 means a scale per output."""
    each = 3 if has_zeros else 2
    of_group, of_row = (each, 0) if group_size else (0, each)
    return PackedIntegers(
        f"compressed-tensors int{bits}", 0.5, group_size=group_size, group_bytes=of_group, row_bytes=of_row, has_zeros=has_zeros, bits=bits
    )  # fmt: skip


def stored_rows(kind: type, name: str, by_row: bool) -> WeightFormat:
    """The W8A8 format of class `kind`; by_row: a scale per output, not one for the whole matrix."""
    made = WEIGHT_FORMATS[name]
    return kind(f"compressed-tensors {name}", 1, made.rates, row_bytes=4, since=made.since, by_row=by_row)


def most_specific(targets: Any, source: str) -> Callable[[str], str | None]:
    """A function module -> the most specific of a list of targets that match it, or None: its name, a "re:" pattern, the class "Linear".

    Of several patterns the first in alphabetical order counts, as in compressed-tensors' match_targets.
    """
    if not isinstance(targets, list) or not all(isinstance(one, str) for one in targets):
        raise CheckpointError(f"{source} must be a list of names, and is {targets!r}.")
    try:
        patterns = {one: re.compile(one.removeprefix("re:")) for one in sorted(targets) if one.startswith("re:")}
    except re.error as error:
        raise CheckpointError(f"{source} holds an expression that is none ({error}).") from None

    def find(module: str) -> str | None:
        if module in targets:
            return module
        return next((one for one, pattern in patterns.items() if pattern.match(module)), "Linear" if "Linear" in targets else None)

    return find


def read_compressed_tensors(fields: Fields) -> Callable[[str], WeightFormat | None]:
    """decide(module) -> its format or None, for a quantization_config with quant_method "compressed-tensors".

    Raises UnsupportedModelError for settings that are not supported, CheckpointError for malformed ones.
    """
    for key in UNUSED:
        if fields.values.get(key) not in (None, {}) and fields.object(key).get("format") != "dense":
            raise UnsupportedModelError(f"{fields.source} sets {key}, which minllm does not compute.")
    if fields.text("quantization_status", "compressed") != "compressed":
        raise UnsupportedModelError(f"{fields.source} has quantization_status {fields.text('quantization_status')!r}, not 'compressed'.")
    formats: dict[str, WeightFormat] = {}  # target -> the format of the modules that match it
    stored_as = fields.text("format", PACKED)
    for name, group in fields.object("config_groups").items():
        if not isinstance(group, dict):
            raise CheckpointError(f"{fields.source} says config_groups.{name} = {group!r}, and it must be an object.")
        scheme = Scheme({"format": stored_as} | group, f"{fields.source} config_groups.{name}")
        most_specific(group.get("targets", []), f"{scheme.source} targets")  # names the group if its targets are wrong
        formats |= dict.fromkeys(group.get("targets", []), scheme.format())
    if not formats:
        raise CheckpointError(f"{fields.source} lacks config_groups, which say how its modules are quantised.")
    target_of = most_specific([*formats], f"{fields.source} config_groups")
    is_ignored = most_specific(fields.values.get("ignore") or [], f"{fields.source} ignore")
    return lambda module: None if is_ignored(module) else formats.get(target_of(module) or "")
