"""Which kernels an engine will launch, found by a dry run of its forward passes.

A dry run needs the model's configuration and no weights, so that kernels are compiled while the weights are read. Layers that differ only
in their numbers launch the same kernels: of each kind of layer two take part, because the first layer of a model has no residual yet.
"""

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.residual_window import window_room
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.engine.calibration import TOKENS as CALIBRATION_TOKENS
from minllm.engine.calibration import cached_numbers, is_calibrated
from minllm.engine.running.batch_arrays import NewTokens, build_batch, to_backend
from minllm.engine.running.decode_graphs import DecodeGraphs, GraphKey
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling.parameters import kind_of
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.config import ModelConfig
from minllm.models.layout import Layout, layout_of
from minllm.models.model import Model, make_rope_table
from minllm.models.weights import WeightReader
from minllm.ops.dry_run_ops import DryRunOps
from minllm.runtime.device import Device
from minllm.runtime.dry_run import DryRunPages, Signature, dry_run, signatures
from minllm.weights.format import WeightFormat
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.stored import StoredLinear, StoredTensor

LAYERS_OF_A_KIND = 2
LAYER_NUMBER = re.compile(r"\.\d+\.")  # in the names of tensors


@dataclass(frozen=True)
class ForwardPass:
    """The forward of a batch of `rows` sequences with `new_tokens` each, in block tables for `context` tokens."""

    rows: int
    new_tokens: int
    context: int


@dataclass(frozen=True)
class EngineShape:
    """What the kernels of an engine depend on; it can be sent to another process."""

    device: Device
    config: ModelConfig
    cache: CacheShape
    weight_format: WeightFormat | None
    kernel_variants: dict[str, str] | None
    virtual_cache: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    sampling: tuple[SamplingParams, ...]
    passes: tuple[ForwardPass, ...]


def kernels_needed(shape: EngineShape) -> list[Signature]:
    """The kernels of these forward passes with their argument types, in the order of their first launches."""
    with dry_run(shape.device) as launches:
        ops = DryRunOps(str(shape.cache.dtype), shape.kernel_variants)
        model = dry_model(ops, shape)
        layers = len(model.weights.layers)
        cache = dry_cache(ops, shape, layers)
        if is_calibrated(shape.cache):
            tokens = [0] * min(CALIBRATION_TOKENS, shape.max_model_len)
            cached_numbers(ops, model, replace(shape.cache, num_layers=layers), tokens)
        runner = ModelRunner(ops, model, cache, None, max_num_seqs=shape.max_num_seqs, max_model_len=shape.max_model_len)
        state = runner.slots.state
        state.sampling = state.sampling.with_vocabulary_arrays(ops.zeros, shape.config.vocab_size)
        for one in shape.passes:
            for kind in sorted({kind_of(params) for params in shape.sampling}):
                run = decode if one.new_tokens == 1 else prefill
                run(runner, one, kind)
    return signatures(launches)


def dry_model(ops: DryRunOps, shape: EngineShape) -> Model:
    """The model with some layers of each kind, and arrays without contents."""
    layout = layout_of(shape.config, weight_format=shape.weight_format)
    kinds: dict[str, list[Any]] = {}
    for layer in layout.model.layers:
        kinds.setdefault(LAYER_NUMBER.sub(".", repr(layer)), []).append(layer)
    chosen = [layer for layer in layout.model.layers if any(layer in of_a_kind[:LAYERS_OF_A_KIND] for of_a_kind in kinds.values())]
    layout = replace(layout, model=replace(layout.model, layers=chosen))
    return Model(shape.config, DryRunReader(ops, layout).read_model(), make_rope_table(ops, shape.config, shape.max_model_len))


class DryRunReader(WeightReader):
    """Makes the arrays of a layout without reading a checkpoint."""

    def __init__(self, ops: DryRunOps, layout: Layout):
        self.ops, self.layout, self.plain = ops, layout, plain_format(ops.dtype)

    def tensor(self, stored: StoredTensor) -> Any:
        """An array of this shape."""
        return self.ops.empty(stored.shape, self.ops.dtype)

    def linear(self, stored: StoredLinear, rank: int = 0, ranks: int = 1) -> Linear:
        """A Linear of this shape."""
        weight_format = self.layout.format_of(stored)
        weight_format = self.plain if weight_format.is_plain else weight_format
        weight = weight_format.without_contents(self.ops, *stored.shape)
        bias = self.ops.empty(stored.shape[:1], self.ops.dtype) if stored.biases else None
        return Linear(weight, bias, weight_format, stored.shape)


def dry_cache(ops: DryRunOps, shape: EngineShape, layers: int) -> KVCache | VirtualKVCache:
    """A cache of these layers with room for one sequence."""
    if shape.virtual_cache:  # the layers of a token lie side by side: all of them decide about the sizes of the first ones
        virtual = VirtualKVCache(DryRunPages(ops.memory.memory), shape.cache, 1, shape.max_model_len, 1)
        virtual.layers = virtual.layers[:layers]
        return virtual
    wanted = replace(shape.cache, num_layers=layers)
    room = window_room(wanted.residual_window, shape.max_num_seqs, shape.max_num_batched_tokens)
    cache = KVCache(ops, wanted, blocks_needed(shape.max_model_len, wanted.block_size), room)
    if is_calibrated(wanted):
        scales = np.zeros((wanted.num_layers, 2, wanted.kv_heads), np.float32) if wanted.format.is_float else None
        cache.calibrate(np.zeros((wanted.num_layers, 3, wanted.kv_heads, wanted.head_dim), np.float32), scales, ops)
    return cache


def prefill(runner: ModelRunner, one: ForwardPass, kind: SamplingKind) -> None:
    """A chunk of prompts, and the first token of each."""
    ops, cache = runner.ops, runner.cache
    table = range(blocks_needed(one.context, cache.block_size))
    spans = [NewTokens([0] * one.new_tokens, 0, table, ring) for ring in range(one.rows)]
    last = [(row + 1) * one.new_tokens - 1 for row in range(one.rows)]
    batch = build_batch(spans, last, cache.block_size, cache.shape.residual_window)
    runner.compute(ops.zeros((one.rows,), np.int32), to_backend(batch, ops), kind)


def decode(runner: ModelRunner, one: ForwardPass, kind: SamplingKind) -> None:
    """A step of one new token for every sequence, as it is captured."""
    cache, columns = runner.cache, blocks_needed(one.context, runner.cache.block_size)
    graphs = DecodeGraphs(runner.ops, None, one.rows, columns, cache.block_size, cache.shape.residual_window, runner.compute)
    runner.compute(runner.ops.zeros((one.rows,), np.int32), graphs.batch(GraphKey(one.rows, columns, kind)), kind)
