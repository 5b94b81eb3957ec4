"""compressed-tensors (LLM Compressor, vLLM): groups of modules with a scheme each, and plain modules.

    pack-quantized   W4A16    MODULE.weight_packed  int32 [outputs, inputs / 8], each code + 8, eight inputs per word, lowest bits first
                              MODULE.weight_scale   [outputs, groups]            MODULE.weight_shape  int64 [2]
                              MODULE.weight_zero_point  int32 [outputs / 8, groups], each zero + 8, unless symmetric
    int-quantized    W8A8     MODULE.weight  int8 [outputs, inputs]              MODULE.weight_scale  [outputs, 1] or [1]
    float-quantized  FP8      MODULE.weight  float8_e4m3fn [outputs, inputs]     MODULE.weight_scale  [outputs, 1] or [1], or one per block

Activations are quantised dynamically, token by token. Schemes with one scale for all tokens, or with stored scales, are refused.

Source: vllm-project/compressed-tensors, compressors/pack_quantized.py, compressors/naive_quantized.py, quantization/quant_args.py.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.kernels.quantization.reference import pack_nibbles
from minllm.models.json_files import Fields
from minllm.models.quantized.fp8_blocks import e4m3_codes, fp8_blocks
from minllm.models.quantized.tensors import ModuleTensors, StoredFormat, stacked, tensors_of
from minllm.models.quantized.words import unpack_words
from minllm.weights.format import WeightFormat
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.fp8 import Fp8Format, Fp8Weight
from minllm.weights.fp8_block import BLOCK
from minllm.weights.int4 import Int4Format, Int4Weight
from minllm.weights.int8 import Int8Format, Int8Weight
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection

GROUPS = (32, 64, 128)
UNUSED = ("kv_cache_scheme", "sparsity_config", "transform_config")  # settings that are refused if they are set


@dataclass(frozen=True)
class PackedInt4(StoredFormat, Int4Format):
    """Int4Format, read from pack-quantized tensors."""

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the packed codes, scales, shape and, if present, packed zero points."""
        outputs, inputs = projection.outputs, projection.inputs
        groups = inputs // (self.group_size or inputs)
        zeros = dict(weight_zero_point=(-(-outputs // 8), groups)) if self.has_zeros else {}
        shapes = dict(weight_packed=(outputs, -(-inputs // 8)), weight_scale=(outputs, groups), weight_shape=(2,))
        return tensors_of(projection, **shapes, **zeros)

    def load(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> Int4Weight:
        """The shard of the stacked modules' weight, as host arrays."""
        return Int4Weight.of_rows(*stacked([self._read(one, ModuleTensors(checkpoint, one.name), shard) for one in projections]))

    def _read(self, projection: Projection, tensors: ModuleTensors, shard: Shard) -> tuple[np.ndarray | None, ...]:
        shape = tuple(tensors.codes("weight_shape", np.int64, np.int32).tolist())
        if shape != (projection.outputs, projection.inputs):
            raise CheckpointError(
                f"{tensors.checkpoint.directory}: {projection.name}.weight_shape is {list(shape)}, and config.json makes it "
                f"{[projection.outputs, projection.inputs]}; config.json and the weights do not belong together."
            )
        groups, zeros = (1, self.group_size or projection.inputs), None
        codes = projection.cut(unpack_words(tensors.codes("weight_packed", np.int32), 1)[:, : projection.inputs], shard)
        scales = projection.cut(tensors.scales("weight_scale"), shard, block=groups)
        if self.has_zeros:
            zeros = unpack_words(tensors.codes("weight_zero_point", np.int32), 0)[: projection.outputs]
            zeros = projection.cut(zeros, shard, block=groups)
        return pack_nibbles(np.ascontiguousarray(codes)), scales, zeros


class ScaledRows(StoredFormat):
    """Mixin for weights (codes, scales [outputs]): reads MODULE.weight with a scale per output, or one for all."""

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the codes and scales."""
        scales = (projection.outputs, 1) if self.by_row else (1,)
        return tensors_of(projection, weight=(projection.outputs, projection.inputs), weight_scale=scales)

    def load(self, projections: tuple[Projection, ...], checkpoint: Any, shard: Shard) -> Any:
        """The shard of the stacked modules' weight, as host arrays."""
        parts = []
        for one in projections:
            tensors = ModuleTensors(checkpoint, one.name)
            scales = np.broadcast_to(tensors.scales("weight_scale").astype(np.float32).reshape(-1), (one.outputs,))
            scales = np.ascontiguousarray(one.cut(scales, shard, inputs_axis=None))
            parts.append((np.ascontiguousarray(one.cut(self.codes(tensors), shard)), scales))
        return self.make(*stacked(parts))


@dataclass(frozen=True)
class StoredInt8(ScaledRows, Int8Format):
    """Int8Format, read from int-quantized tensors."""

    by_row: bool = True

    make = Int8Weight

    @staticmethod
    def codes(tensors: ModuleTensors) -> np.ndarray:
        """MODULE.weight, int8 [outputs, inputs]."""
        return tensors.codes("weight", np.int8)


@dataclass(frozen=True)
class StoredFp8(ScaledRows, Fp8Format):
    """Fp8Format, read from float-quantized tensors."""

    by_row: bool = True

    make = Fp8Weight
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
        strategy, size = weights.text("strategy", "tensor"), weights.integer("group_size", None, minimum=-1)
        if weights.values.get("actorder") not in (None, False, "weight", "static"):
            raise self.refused(f"actorder {weights.values['actorder']!r}")
        symmetric = weights.flag("symmetric", True)
        shown = f"weights of {bits} bits ({kind}, {strategy}, group_size {size}, symmetric {symmetric})"
        if (bits, kind) == (4, "int") and inputs is None:
            if (strategy == "group" and size not in GROUPS) or strategy not in ("group", "channel"):
                raise self.refused(shown)
            return packed_int4(size if strategy == "group" else 0, not symmetric)
        if bits != 8 or inputs is None or not symmetric or not _is_dynamic(inputs, bits, kind, strategy):
            raise self.refused(f"{shown} and input_activations {self.values.get('input_activations')}")
        if kind == "int" and strategy in ("channel", "tensor"):
            return stored_rows(StoredInt8, "int8", strategy == "channel")
        if kind == "float" and strategy in ("channel", "tensor"):
            return stored_rows(StoredFp8, "fp8", strategy == "channel")
        if kind == "float" and strategy == "block" and weights.values.get("block_structure") in ([BLOCK, BLOCK], f"{BLOCK}x{BLOCK}"):
            return fp8_blocks("compressed-tensors fp8 blocks", "weight_scale")
        raise self.refused(shown)


def _is_dynamic(inputs: Fields, bits: int, kind: str, strategy: str) -> bool:
    """Whether activations are quantised as minllm does: in groups of 128 for blocks, else token by token."""
    wanted = ("group", BLOCK) if strategy == "block" else ("token", None)
    found = inputs.text("strategy", "tensor"), inputs.integer("group_size", None, minimum=-1)
    same = (inputs.integer("num_bits"), inputs.text("type", "int")) == (bits, kind) and inputs.flag("symmetric", True)
    return same and found == wanted and inputs.values.get("dynamic") is True


def packed_int4(group_size: int, has_zeros: bool) -> PackedInt4:
    """The W4A16 format; group_size 0 means a scale per output."""
    each = 3 if has_zeros else 2
    sizes = dict(group_bytes=each) if group_size else dict(row_bytes=each)
    return PackedInt4("compressed-tensors int4", 0.5, group_size=group_size, has_zeros=has_zeros, **sizes)


def stored_rows(kind: type, name: str, by_row: bool) -> WeightFormat:
    """The W8A8 format of class `kind`; by_row: a scale per output, not one for the whole matrix."""
    made = WEIGHT_FORMATS[name]
    return kind(f"compressed-tensors {name}", 1, made.rates, row_bytes=4, since=made.since, by_row=by_row)


def matcher(patterns: Any, source: str) -> Callable[[str], bool]:
    """A function module -> whether it matches a list of names and "re:" patterns; "Linear" matches all."""
    if not isinstance(patterns, list) or not all(isinstance(one, str) for one in patterns):
        raise CheckpointError(f"{source} must be a list of names, and is {patterns!r}.")
    try:
        expressions = [re.compile(one.removeprefix("re:")) for one in patterns if one.startswith("re:")]
    except re.error as error:
        raise CheckpointError(f"{source} holds an expression that is none ({error}).") from None
    names = frozenset(one for one in patterns if not one.startswith("re:"))
    return lambda module: "Linear" in names or module in names or any(one.match(module) for one in expressions)


def read_compressed_tensors(fields: Fields) -> Callable[[str], WeightFormat | None]:
    """decide(module) -> its format or None, for a quantization_config with quant_method "compressed-tensors".

    Raises UnsupportedModelError for settings that are not supported, CheckpointError for malformed ones.
    """
    for key in UNUSED:
        if fields.values.get(key) not in (None, {}) and fields.object(key).get("format") != "dense":
            raise UnsupportedModelError(f"{fields.source} sets {key}, which minllm does not compute.")
    if fields.text("quantization_status", "compressed") != "compressed":
        raise UnsupportedModelError(f"{fields.source} has quantization_status {fields.text('quantization_status')!r}, not 'compressed'.")
    groups = []
    for name, group in fields.object("config_groups").items():
        if not isinstance(group, dict):
            raise CheckpointError(f"{fields.source} says config_groups.{name} = {group!r}, and it must be an object.")
        scheme = Scheme(group, f"{fields.source} config_groups.{name}")
        groups.append((matcher(group.get("targets", []), f"{scheme.source} targets"), scheme.format()))
    if not groups:
        raise CheckpointError(f"{fields.source} lacks config_groups, which say how its modules are quantised.")
    ignored = matcher(fields.values.get("ignore") or [], f"{fields.source} ignore")

    def decide(module: str) -> WeightFormat | None:
        return None if ignored(module) else next((found for matches, found in groups if matches(module)), None)

    return decide
