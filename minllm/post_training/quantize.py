"""A 16-bit checkpoint quantised layer by layer, into a directory that LLM() loads.

    round        round to the nearest code
    clip         the same, with the clipped scales of least error; int4 and nf4 only
    smoothquant  first moves scales between activations and weights
    awq          first moves scales found by AWQ's search; int4 and nf4 scales are clipped
    gptq         later inputs compensate for rounding errors; int4 and nf4 scales are clipped
    smoothquant+gptq, awq+gptq    one after the other

Every method but the first two needs a calibration text; the inputs of each layer are computed with the quantised layers before it.
Embeddings and head stay plain.
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from minllm.errors import InvalidOptionError, UnsupportedModelError
from minllm.kernels.quantization.groups import NF4_BLOCK
from minllm.models.checkpoint import Checkpoint
from minllm.models.layout import Layer, Layout, layout_of, leaves
from minllm.models.model import make_rope_tables
from minllm.models.source import ModelDirectory, open_source
from minllm.models.tied_head import untied_if_stored
from minllm.models.weights import WeightReader, check_tensors, is_prefixed
from minllm.ops.numpy_ops import NumpyOps
from minllm.post_training import UNCALIBRATED, files, grids
from minllm.post_training.calibration import Calibration, Inputs, default_text, spread
from minllm.post_training.migration import STRENGTH, STRENGTH_BEFORE_GPTQ, awq_scales, smoothquant_scales
from minllm.post_training.rounding import Rounded, round_matrix
from minllm.weights.formats import WEIGHT_FORMATS
from minllm.weights.linear import Linear
from minllm.weights.stored import StoredLinear, StoredTensor

METHODS = (*UNCALIBRATED, "smoothquant", "awq", "gptq", "smoothquant+gptq", "awq+gptq")
TOKENS = 16_384  # tokens of calibration text


@dataclass(frozen=True)
class Scheme:
    """How a format is rounded and written. group: inputs per group, 0 for rows; config: quantization_config."""

    group: int
    make_grid: Callable[[np.ndarray], Any]
    tensors: Callable[[Rounded], dict[str, np.ndarray]]
    config: dict[str, Any]


def scheme_of(name: str, clip: bool) -> Scheme:
    """The scheme of the format `name`. Raises InvalidOptionError if it cannot be written."""
    found = WEIGHT_FORMATS.get(name)
    eight = {"num_bits": 8, "symmetric": True, "dynamic": False}
    if name == "int8":
        weights, activations = eight | {"type": "int", "strategy": "channel"}, files.TOKEN_BY_TOKEN | {"type": "int"}
        return Scheme(0, grids.int8_grid, files.int8_tensors, files.compressed_tensors("int-quantized", weights, activations))
    if name == "fp8":
        weights, activations = eight | {"type": "float", "strategy": "channel"}, files.TOKEN_BY_TOKEN | {"type": "float"}
        return Scheme(0, grids.fp8_grid, files.fp8_tensors, files.compressed_tensors("float-quantized", weights, activations))
    if name == "fp8_block":
        weights = eight | {"type": "float", "strategy": "block", "block_structure": [128, 128]}
        config = files.compressed_tensors("float-quantized", weights, files.IN_GROUPS | {"type": "float"})
        return Scheme(128, grids.fp8_block_grid, files.fp8_block_tensors, config)
    if name == "nf4":
        return Scheme(NF4_BLOCK, partial(grids.nf4_grid, clip=clip), files.nf4_tensors, files.BITSANDBYTES_NF4)
    if found is None or not name.startswith("int4"):
        known = ", ".join(one for one in WEIGHT_FORMATS if one.startswith(("int", "fp8", "nf4")))
        raise InvalidOptionError(f"format {name!r} cannot be written: take one of {known}.")
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": found.group_size, "symmetric": not found.has_zeros}
    grid = partial(grids.int4_grid, has_zeros=found.has_zeros, clip=clip)
    tensors = partial(files.int4_tensors, has_zeros=found.has_zeros)
    return Scheme(found.group_size, grid, tensors, files.compressed_tensors("pack-quantized", weights | {"dynamic": False}, None))


def quantize(
    source: Path, out: Path, name: str, method: str = "round", text: str | None = None, tokens: int = TOKENS,
    progress: Callable[[int, int], None] | None = None,
) -> None:  # fmt: skip
    """Write the checkpoint `source` to the new directory `out`, with the layers' matrices in the format `name`.

    text: the calibration text, minllm's own source by default. tokens: how many to use of it. progress: called with (layers done, layers).
    Raises InvalidOptionError for a format or method that is not allowed, or if `out` cannot be written, and the errors of loading. After an
    error, or an interrupt, nothing of `out` is left.
    """
    if method not in METHODS:
        raise InvalidOptionError(f"method {method!r} is not allowed: take one of {', '.join(METHODS)}.")
    scheme = scheme_of(name, clip=method not in ("round", "smoothquant"))
    if method == "clip" and not name.startswith(("int4", "nf4")):
        raise InvalidOptionError(f"method 'clip' is not allowed with {name}, whose scales are not clipped: take round, int4 or nf4.")
    if os.path.lexists(out):  # a link to nothing counts
        raise InvalidOptionError(f"{out} exists: give the name of a new directory.")
    model = open_source(source)
    if not isinstance(model, ModelDirectory):
        raise UnsupportedModelError(f"{source} is a GGUF file, which minllm quantize does not read: give a Hugging Face directory.")
    stated = model.config()
    checkpoint = model.checkpoint(stated)
    config = untied_if_stored(stated, checkpoint)
    plain = layout_of(config, is_prefixed(checkpoint))
    if model.weight_format(config, checkpoint) is not None:
        raise InvalidOptionError(f"{source} is stored quantised already: give a checkpoint in 16 or 32 bits.")
    if config.num_experts:
        raise UnsupportedModelError(f"{source} has experts, which minllm quantize does not round: give a model without them.")
    replace(plain, weight_format=WEIGHT_FORMATS[name]).check_format()
    check_tensors(plain, checkpoint)
    if any(one.transposed for leaf in leaves(plain.model) if isinstance(leaf, StoredLinear) for one in leaf.projections):
        raise UnsupportedModelError(f"{source} stores matrices [inputs, outputs], as GPT-2 does; compressed-tensors has no such layout.")
    token_ids = None
    if method not in UNCALIBRATED:
        token_ids = spread(model.tokenizer().encode(default_text() if text is None else text), tokens)
        if len(token_ids) < 2:
            raise InvalidOptionError(f"the calibration text has {len(token_ids)} tokens: give a longer one.")
    with files.new_directory(out) as unfinished:
        Quantizer(plain, checkpoint, scheme, method, token_ids).write(unfinished, progress)
        files.copy_rest(source, unfinished, scheme.config)


class Quantizer:
    """Quantises a checkpoint layer by layer."""

    def __init__(self, layout: Layout, checkpoint: Checkpoint, scheme: Scheme, method: str, token_ids: list[int] | None):
        """token_ids: the calibration text; None rounds without calibration."""
        self.layout, self.checkpoint, self.scheme, self.method = layout, checkpoint, scheme, method
        self.calibration = None
        if token_ids is not None:
            ops = NumpyOps("float32")
            embeddings = WeightReader(ops, checkpoint, layout).read(replace(layout.model, layers=[], lm_head=None))
            self.calibration = Calibration(layout.config, token_ids, embeddings, make_rope_tables(ops, layout.config))
        self.reader = None if self.calibration is None else WeightReader(self.calibration.ops, checkpoint, layout)

    def write(self, out: Path, progress: Callable[[int, int], None] | None = None) -> None:
        """Write one file per layer, one with all other tensors, and the index."""
        writer, layers = files.ShardWriter(out), self.layout.model.layers
        inside: set[str] = set()
        for index, stored in enumerate(layers):
            tensors = self._unchanged(stored)
            inside |= set(layout_names(stored))
            tensors |= self._rounded(stored) if self.calibration is None else self._calibrated(stored, tensors)
            writer.write(tensors)
            if progress is not None:
                progress(index + 1, len(layers))
        writer.write({name: self.checkpoint.tensor(name) for name in self.checkpoint.names() if name not in inside})
        writer.finish()

    def _unchanged(self, stored: Layer) -> dict[str, np.ndarray]:
        """The norms and biases of a layer, by name."""
        names = [name for leaf in leaves(stored) for name in ([leaf.name] if isinstance(leaf, StoredTensor) else leaf.biases)]
        return {name: self.checkpoint.tensor(name) for name in names}

    def _rounded(self, stored: Layer) -> dict[str, np.ndarray]:
        """The tensors of a layer's matrices, rounded without calibration."""
        tensors = {}
        for leaf in leaves(stored):
            for one in leaf.projections if isinstance(leaf, StoredLinear) else ():
                tensors |= self._tensors(one.name, self._round(self.checkpoint.tensor(f"{one.name}.weight")))
        return tensors

    def _calibrated(self, stored: Layer, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The tensors of a layer's matrices and of norms that absorbed scales; advances the windows."""
        layer, found = self.reader.read(stored), {}
        if self.method != "gptq":
            found |= self._migrate(stored, layer, tensors)
        pairs = list(linears(stored, layer))
        hessians = [None] * len(pairs)
        if "gptq" in self.method:
            inputs = self.calibration.inputs_of(layer, [linear for _, linear in pairs], with_hessian=True)
            hessians = [one.hessian for one in inputs]
        for (leaf, linear), hessian in zip(pairs, hessians, strict=True):
            first = 0
            for projection in leaf.projections:
                rows = slice(first, first + projection.outputs)
                rounded = self._round(linear.weight[rows], hessian)
                found |= self._tensors(projection.name, rounded)
                linear.weight[rows] = rounded.numbers
                first += projection.outputs
        self.calibration.advance(layer)
        return found

    def _round(self, matrix: np.ndarray, hessian: np.ndarray | None = None) -> Rounded:
        return round_matrix(matrix, self.scheme.group, self.scheme.make_grid, hessian)

    def _tensors(self, module: str, rounded: Rounded) -> dict[str, np.ndarray]:
        return {f"{module}.{suffix}": tensor for suffix, tensor in self.scheme.tensors(rounded).items()}

    def _migrate(self, stored: Layer, layer: Layer, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Move scales out of the inputs of each matrix; returns the norms' new tensors."""
        found = {}
        for _, linear in sorted(linears(stored, layer), key=lambda pair: pair[1] is not layer.mlp.down):  # down first: it scales up's rows
            before = layer.attention.norm if linear is layer.attention.qkv else layer.mlp.norm
            if linear is layer.attention.output or (linear is layer.mlp.down and not hasattr(layer.mlp, "gate_up")):
                continue  # heads share the values of attention, and GELU precedes down in a plain MLP
            scales = self._scales(self.calibration.inputs_of(layer, [linear])[0], linear)
            linear.weight[:] *= scales
            if linear is layer.mlp.down:
                layer.mlp.gate_up.weight[len(layer.mlp.gate_up.weight) // 2 :] /= scales[:, None]
                continue
            for array in (before.weight, before.bias):
                if array is not None:
                    array /= scales
            stored_norm = stored.attention.norm if before is layer.attention.norm else stored.mlp.norm
            for leaf, array in ((stored_norm.weight, before.weight), (stored_norm.bias, before.bias)):
                if leaf is not None:
                    found[leaf.name] = files.rounded_as(array - leaf.offset, tensors[leaf.name].dtype)
        return found

    def _scales(self, inputs: Inputs, linear: Linear) -> np.ndarray:
        if "smoothquant" in self.method:
            return smoothquant_scales(inputs, linear.weight, STRENGTH_BEFORE_GPTQ if "gptq" in self.method else STRENGTH)
        return awq_scales(inputs, linear.weight, lambda matrix: self._round(matrix).numbers)


def linears(stored: Layer, layer: Layer) -> Iterator[tuple[StoredLinear, Linear]]:
    """(StoredLinear, Linear) pairs of a layer: before and after loading."""
    for before, after in ((stored.attention, layer.attention), (stored.mlp, layer.mlp)):
        for field in fields(before):
            if isinstance(getattr(before, field.name), StoredLinear):
                yield getattr(before, field.name), getattr(after, field.name)


def layout_names(stored: Layer) -> Iterator[str]:
    """The names of all tensors of a layer in a plain checkpoint."""
    for leaf in leaves(stored):
        if isinstance(leaf, StoredTensor):
            yield leaf.name
        else:
            yield from (f"{one.name}.weight" for one in leaf.projections)
            yield from leaf.biases
