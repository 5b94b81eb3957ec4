"""bitsandbytes' 4-bit layout: NF4 or FP4 in blocks of 64, with or without double quantisation.

    MODULE.weight                    uint8 [outputs * inputs / 2, 1], the first of two codes in the high half
    MODULE.weight.absmax             float32 [blocks], or uint8 with double quantisation: an index of nested_quant_map
    MODULE.weight.quant_map          float32 [16], the numbers of the codes
    MODULE.weight.nested_absmax      float32 [blocks / 256], MODULE.weight.nested_quant_map float32 [256]: with double quantisation
    MODULE.weight.quant_state.bitsandbytes__nf4   JSON as bytes: quant_type, blocksize, shape, nested_offset, ...

Blocks run on from row to row. A matrix whose rows are not whole blocks is dequantised while it loads.

Source: bitsandbytes, functional.py, QuantState.as_dict; Dettmers et al. 2023, "QLoRA", section 3.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.kernels.quantization.groups import NESTED_BLOCK, NF4_BLOCK
from minllm.kernels.quantization.nf4 import Nf4Weight, dynamic_map
from minllm.models.json_files import Fields
from minllm.models.quantized.tensors import ModuleTensors, StoredFormat, tensors_of
from minllm.models.quantized.widened import widened
from minllm.weights.format import WeightFormat
from minllm.weights.formats import SIXTEEN_BITS
from minllm.weights.quantized import Nf4Format
from minllm.weights.shard import Shard
from minllm.weights.stored import Projection, StoredWeights

STATE = "weight.quant_state.bitsandbytes__"


@dataclass(frozen=True)
class StoredNf4(StoredFormat, Nf4Format):
    """Nf4Format, read from bitsandbytes' tensors; the table of codes is the one in the file."""

    kind: str = "nf4"
    state_bytes: Mapping[str, int] = field(default_factory=dict)  # bytes of each module's JSON

    def for_inputs(self, inputs: int) -> WeightFormat:
        """This format, or for rows that are not whole blocks, which kernels do not read, one that dequantises them."""
        return widened(self) if inputs % NF4_BLOCK else self

    def tensors(self, projection: Projection) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the codes, absmax, tables and JSON state."""
        numbers = projection.outputs * projection.inputs
        blocks, state = -(-numbers // NF4_BLOCK), (self.state_bytes.get(projection.name, 0),)
        shapes = {"weight": (-(-numbers // 2), 1), "weight.absmax": (blocks,), "weight.quant_map": (16,), STATE + self.kind: state}
        if self.nested:
            shapes |= {"weight.nested_absmax": (-(-blocks // NESTED_BLOCK),), "weight.nested_quant_map": (256,)}
        return tensors_of(projection, **shapes)

    def load(self, projections: tuple[Projection, ...], checkpoint: StoredWeights, shard: Shard) -> Nf4Weight:
        """The shard of the stacked modules' weight, as host arrays; first_blocks counts over all modules.

        Raises UnsupportedModelError if the modules have different tables.
        """
        parts, first_block = [], 0
        for one in projections:
            parts.append(self._read(one, ModuleTensors(checkpoint, one.name), shard, first_block))
            if self.nested:
                first_block += NESTED_BLOCK * len(parts[-1].nested)
        if any(not np.array_equal(getattr(one, name), getattr(parts[0], name)) for one in parts for name in ("map", "table")):
            raise UnsupportedModelError(f"{checkpoint.directory}: {' and '.join(one.name for one in projections)} have different tables.")
        rows = {name: np.concatenate([getattr(one, name) for one in parts]) for name in ("codes", "offsets", "first_blocks")}
        nested = np.concatenate([one.nested for one in parts]) if self.nested else None
        return parts[0]._replace(absmax=np.concatenate([one.absmax for one in parts], axis=1), nested=nested, **rows)

    def matrix(self, projection: Projection, checkpoint: StoredWeights) -> np.ndarray:
        """A module's dequantised matrix, float32 [outputs, inputs], read as one row of blocks, the last of which may be shorter."""
        tensors, numbers = ModuleTensors(checkpoint, projection.name), projection.outputs * projection.inputs
        offset, (absmax, nested, found, table) = self._checked_state(projection, tensors), self._scales(tensors)
        codes = np.zeros((1, len(absmax) * NF4_BLOCK // 2), np.uint8)
        codes[0, : -(-numbers // 2)] = tensors.codes("weight", np.uint8)[:, 0]
        row = Nf4Weight(codes, absmax[:, None], nested, found, np.full(1, offset, np.float32), np.zeros(1, np.int32), table)
        return self.dequantize(row)[0, :numbers].reshape(projection.outputs, projection.inputs)

    def _read(self, projection: Projection, tensors: ModuleTensors, shard: Shard, first_block: int) -> Nf4Weight:
        offset, (absmax, nested, found, table) = self._checked_state(projection, tensors), self._scales(tensors)
        packed = tensors.codes("weight", np.uint8).reshape(projection.outputs, projection.inputs // 2)
        blocks = (projection.outputs, projection.inputs // NF4_BLOCK)
        numbers = projection.cut(np.arange(first_block, first_block + blocks[0] * blocks[1]).reshape(blocks), shard, block=(1, NF4_BLOCK))
        codes = np.ascontiguousarray(projection.cut(packed, shard, block=(1, 2)))
        absmax = np.ascontiguousarray(projection.cut(absmax.reshape(blocks), shard, block=(1, NF4_BLOCK)).T)
        offsets = np.full(len(codes), offset, np.float32)
        return Nf4Weight(codes, absmax, nested, found, offsets, numbers[:, 0].astype(np.int32), table)

    def _scales(self, tensors: ModuleTensors) -> tuple[np.ndarray, np.ndarray | None, np.ndarray, np.ndarray]:
        """(absmax [blocks], nested_absmax or None, the map of absmax codes, the table of codes)."""
        table = tensors.scales("weight.quant_map").astype(np.float32)
        if not self.nested:
            return tensors.scales("weight.absmax").astype(np.float32), None, dynamic_map(), table
        nested, found = (tensors.scales(f"weight.nested_{name}").astype(np.float32) for name in ("absmax", "quant_map"))
        return tensors.codes("weight.absmax", np.uint8), nested, found, table

    def _checked_state(self, projection: Projection, tensors: ModuleTensors) -> float:
        """A module's nested_offset, or 0. Raises CheckpointError if its state contradicts config.json."""
        name = f"{projection.name}.{STATE}{self.kind}"
        try:
            state = json.loads(bytes(tensors.codes(STATE + self.kind, np.uint8)))
        except ValueError as error:
            raise CheckpointError(f"{tensors.checkpoint.directory}: {name!r} is not JSON ({error}); copy the file again.") from None
        fields = Fields(state if isinstance(state, dict) else {}, f"{tensors.checkpoint.directory}: {name}")
        found = fields.text("quant_type"), fields.integer("blocksize"), fields.values.get("shape")
        wanted = self.kind, NF4_BLOCK, [projection.outputs, projection.inputs]
        if found != wanted or (self.nested and fields.integer("nested_blocksize") != NESTED_BLOCK):
            raise CheckpointError(f"{fields.source} has type, block size and shape {found}, and minllm reads {wanted} here.")
        return fields.number("nested_offset") if self.nested else 0.0


def read_bitsandbytes(fields: Fields, checkpoint: StoredWeights) -> tuple[StoredNf4, list[str]]:
    """(format, names of the quantised modules) of a checkpoint with quant_method "bitsandbytes"."""
    kind, storage = fields.text("bnb_4bit_quant_type", "fp4"), fields.text("bnb_4bit_quant_storage", "uint8")
    if not fields.flag("load_in_4bit", False) or kind not in ("nf4", "fp4") or storage != "uint8":
        raise UnsupportedModelError(
            f"{fields.source} is bitsandbytes with load_in_4bit {fields.values.get('load_in_4bit')}, bnb_4bit_quant_type {kind!r} and "
            f"bnb_4bit_quant_storage {storage!r}; minllm reads nf4 and fp4 in 4 bits, stored as 'uint8'."
        )
    ending = f".{STATE}{kind}"
    states = {name.removesuffix(ending): checkpoint.entry(name).shape for name in checkpoint.names() if name.endswith(ending)}
    if not states:
        raise CheckpointError(f"{checkpoint.directory} lacks tensors NAME{ending}, which {fields.source} needs; copy the file again.")
    nested = fields.flag("bnb_4bit_use_double_quant", False)
    lengths = {name: shape[0] if shape else 0 for name, shape in states.items()}
    found = StoredNf4(
        f"bitsandbytes {kind}", 0.5, SIXTEEN_BITS, row_bytes=8, group_size=NF4_BLOCK, group_bytes=1 if nested else 4, nested=nested,
        kind=kind, state_bytes=lengths,
    )  # fmt: skip
    return found, list(states)
