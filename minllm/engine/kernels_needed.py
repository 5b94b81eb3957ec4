"""Which kernels an engine will launch, found by a dry run of its forward passes.

A dry run needs the model's configuration but no weights, so kernels are compiled while the weights are read. Layers that differ only in
their layer numbers launch the same kernels. Two layers of each kind take part, because a model's first layer has no residual yet.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from minllm.cache.block_pool import blocks_needed
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.cache.residual_window import window_room
from minllm.cache.virtual.cache import VirtualKVCache
from minllm.engine.build.calibration import TOKENS as CALIBRATION_TOKENS
from minllm.engine.build.calibration import cached_numbers, is_calibrated
from minllm.engine.running.batch_arrays import NewTokens, behind_slots, build_batch, to_backend
from minllm.engine.running.machine import Done, HostMachine
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.running.step_graphs import GraphKey
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.models.config import ModelConfig
from minllm.models.layout import Layout, layout_of
from minllm.models.model import Model, make_rope_tables
from minllm.models.weights import WeightReader
from minllm.ops.batch import AttentionConfig
from minllm.ops.dry_run_ops import DryRun, DryRunOps
from minllm.parallel.dry_run_ranks import DryRunContextOps, DryRunRankOps, Split
from minllm.parallel.split_weights import SplitEmbedding, attention_of_rank
from minllm.runtime.device import Device
from minllm.runtime.dry_run import DryRunPages, Signature, dry_run, signatures
from minllm.runtime.recording import RecordedLaunch
from minllm.weights.format import WeightFormat
from minllm.weights.formats import plain_format
from minllm.weights.linear import Linear
from minllm.weights.shard import WHOLE, Shard
from minllm.weights.stored import StoredLinear, StoredTensor

LAYERS_OF_A_KIND = 2
FEW_ROWS = 16
LAYER_NUMBER = re.compile(r"\.\d+\.")  # the part of a tensor's name that differs between layers of one kind


@dataclass(frozen=True)
class EngineShape:
    """Everything that determines the kernels of an engine; it can be sent to another process."""

    device: Device
    config: ModelConfig  # with several ranks, the configuration of one rank's part
    cache: CacheShape
    weight_format: WeightFormat | None
    kernel_variants: dict[str, str] | None
    virtual_cache: bool
    uses_graphs: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kinds: tuple[SamplingKind, ...]  # in ascending order
    split: Split | None = None  # one rank's part of the model; None for a single rank


def kernels_needed(shape: EngineShape) -> list[Signature]:
    """The kernels of an engine with their argument types, in the order of their first launches."""
    return signatures(launches_needed(shape))


def launches_needed(shape: EngineShape) -> list[RecordedLaunch]:
    """Recorded launches of an engine, at least one of every kernel that it needs."""
    with dry_run(shape.device) as launches:
        ops = dry_ops(shape)
        model = dry_model(ops, shape)
        layers = len(model.weights.layers)
        cache: Any = dry_cache(ops, replace(shape, cache=with_layers_of(shape.cache, model)), layers)
        if is_calibrated(shape.cache):
            tokens = [0] * min(CALIBRATION_TOKENS, shape.max_model_len)
            cached_numbers(ops, model, replace(shape.cache, num_layers=layers), tokens)
        no_policy: Any = None  # a dry run has no sequences
        runner = ModelRunner(
            ops, model, cache, no_policy, max_num_seqs=shape.max_num_seqs, max_num_batched_tokens=shape.max_num_batched_tokens,
            max_model_len=shape.max_model_len, machine=DryRunMachine(), uses_graphs=shape.uses_graphs,
        )  # fmt: skip
        if SamplingKind.ADJUSTED in shape.kinds:
            state = runner.slots.state
            state.sampling = state.sampling.with_vocabulary_arrays(ops.zeros, shape.config.vocab_size)
        if runner.graphs is None or shape.cache.residual_window:
            run_prompts(runner, shape)
        run_decodes(runner, shape)
    return launches


class DryRunMachine(HostMachine):
    """The machine of a dry run: nothing is copied or captured."""

    def write_later(self, array: Any, pinned: np.ndarray) -> Done:
        """Nothing to do: arrays have no contents."""
        return Done()

    def capture(self, function: Callable) -> Any:
        """Record the function's launches; there is no graph."""
        return function()


def row_counts(most: int) -> list[int]:
    """Numbers of rows whose forwards together launch every kernel of forwards with up to `most` rows.

    GEMM kernels change with every row first, then with every 8 rows up to a few tiles, and then with the number of tiles of 64.
    """
    return sorted({*range(1, FEW_ROWS + 1), *range(24, 257, 8), *range(320, most, 64), most} & set(range(1, most + 1)))


def run_prompts(runner: ModelRunner, shape: EngineShape) -> None:
    """Run prompts of all lengths, several together, the end of a long one, and one beside a sequence that decodes."""
    most, longest = min(shape.max_num_batched_tokens, shape.max_model_len - 1), shape.max_model_len
    for length in row_counts(most):
        run(runner, [chunk(runner, length)])
    for count in range(2, min(FEW_ROWS, shape.max_num_seqs, most // 2) + 1):
        run(runner, [chunk(runner, 2, ring=ring) for ring in range(count)])
    run(runner, [chunk(runner, most, start=longest - most)])
    for kind in shape.kinds[1:]:
        run(runner, [chunk(runner, 1)], kind)
    if most > 1 and shape.max_num_seqs > 1 and not shape.cache.residual_window:  # with a window, prompts have their own forward
        run(runner, [chunk(runner, most - 1)], decoding=[most])


def run_decodes(runner: ModelRunner, shape: EngineShape) -> None:
    """Capture steps of all sizes, or run decode steps if the engine uses no graphs."""
    runner.ops.write_slots(runner.slots.state, runner.ops.zeros((1, 2), np.int32))
    if runner.graphs is None:
        for rows in row_counts(shape.max_num_seqs):
            run(runner, [], decoding=[shape.max_model_len - 1] * rows)
        return
    graphs, kinds = runner.graphs, shape.kinds
    sizes = (graphs.decode_sizes[0], graphs.decode_sizes[-1])
    keys = graphs.keys(kinds[:1]) + [GraphKey(n, n, 0, *one) for n in sizes for one in itertools.product(graphs.widths, kinds)]
    if not shape.cache.residual_window:  # the head multiplies the rows of all sequences
        most, mixed = graphs.token_sizes[-1], [(0, 1), *((decodes, graphs.most_prompts) for decodes in graphs.mixed_sizes)]
        keys += [GraphKey(most, *numbers, graphs.widths[-1], kinds[-1]) for numbers in mixed]
    for key in dict.fromkeys(keys):
        graphs.capture(key, runner.uploads)


def chunk(runner: ModelRunner, length: int, start: int = 0, ring: int = 0) -> NewTokens:
    """`length` tokens of a prompt, with a block table for them and for the `start` tokens before them."""
    return NewTokens([0] * length, start, range(blocks_needed(start + length, runner.cache.block_size)), ring)


def run(runner: ModelRunner, chunks: list[NewTokens], kind: SamplingKind = SamplingKind.GREEDY, decoding: Sequence[int] = ()) -> None:
    """Run a forward of prompt chunks, each of which gets a token, behind sequences that decode at these positions."""
    cache, ops = runner.cache, runner.ops
    last = [end - 1 for end in itertools.accumulate(len(chunk.token_ids) for chunk in chunks)]
    prompts = build_batch(chunks, last, cache.block_size, cache.shape.residual_window) if chunks else None
    batch = behind_slots(prompts, decoding, [1] * len(decoding), cache.block_size) if decoding or prompts is None else prompts
    slots, batch = ops.zeros((len(chunks) + len(decoding),), np.int32), to_backend(batch, ops)
    if cache.shape.residual_window and decoding:
        batch = replace(batch, recent=runner.recent_rows(slots))
    runner.compute(slots, batch, kind)


def dry_ops(shape: EngineShape) -> DryRun:
    """The operations of the engine, or of one of its ranks."""
    given = str(shape.cache.dtype), shape.kernel_variants
    if shape.split is None:
        return DryRunOps(*given)
    return DryRunRankOps(*given, shape.split) if shape.cache.context_ranks == 1 else DryRunContextOps(*given, shape.split, shape.cache)


def dry_model(ops: DryRun, shape: EngineShape) -> Model:
    """The model with some layers of each kind, and arrays without contents."""
    layout = layout_of(shape.config if shape.split is None else shape.split.config, weight_format=shape.weight_format)
    kinds: dict[str, list[Any]] = {}
    for layer in layout.model.layers:
        kinds.setdefault(LAYER_NUMBER.sub(".", repr(layer)), []).append(layer)
    chosen = [layer for layer in layout.model.layers if any(layer in of_a_kind[:LAYERS_OF_A_KIND] for of_a_kind in kinds.values())]
    layout = replace(layout, model=replace(layout.model, layers=chosen))
    return Model(shape.config, DryRunReader(ops, layout, shape.split).read_model(), make_rope_tables(ops, shape.config, max_positions=1))


class DryRunReader(WeightReader):
    """Makes the arrays of a layout without reading a checkpoint."""

    def __init__(self, ops: DryRun, layout: Layout, split: Split | None = None):
        self.ops, self.layout, self.plain, self.split = ops, layout, plain_format(ops.dtype), split

    def tensor(self, stored: StoredTensor) -> Any:
        """An array of this shape."""
        if self.split is None or stored is not self.layout.model.embedding:
            return self.ops.empty(stored.shape, self.ops.dtype)
        part = self.split.vocabulary
        return SplitEmbedding(self.ops.empty((part.size, *stored.shape[1:]), self.ops.dtype), part)

    def read(self, value: object) -> Any:
        """The value with an array for every leaf; attention computes the rank's heads."""
        if self.split is not None and isinstance(value, AttentionConfig):
            value = attention_of_rank(value, self.split.ranks)
        return super().read(value)

    def linear(self, stored: StoredLinear, rank: int = 0, ranks: int = 1) -> Linear:
        """A Linear of this shape, or of the shape of the rank's part."""
        weight_format, shard = self.layout.format_of(stored), self._shard(stored)
        weight_format = self.plain if weight_format.is_plain else weight_format
        shape = self._shape(stored, shard)
        weight = weight_format.without_contents(self.ops, *shape)
        bias = self.ops.empty(shape[:1], self.ops.dtype) if stored.biases and shard.adds_bias else None
        return Linear(weight, bias, weight_format, shape, shard)

    def tied_head(self, embedding: Any) -> Linear:
        """The head that multiplies by the embedding."""
        head: Any = self.layout.model.lm_head  # a StoredLinear, as all Linears of a layout
        shard, weight = self._shard(head), embedding if self.split is None else embedding.rows
        return Linear(weight, None, self.plain, self._shape(head, shard), shard)

    def _shard(self, stored: StoredLinear) -> Shard:
        """The rank's part of a Linear."""
        return WHOLE if self.split is None else Shard(stored.axis, self.split.rank, self.split.ranks)

    def _shape(self, stored: StoredLinear, shard: Shard) -> tuple[int, int]:
        """(outputs, inputs) of the part; parts of the head may be padded."""
        if self.split is not None and stored is self.layout.model.lm_head and self.layout.format_of(stored).is_plain:
            return self.split.vocabulary.size, stored.shape[1]
        return stored.shape_of(shard)


def with_layers_of(cache: CacheShape, model: Model) -> CacheShape:
    """The shape of a cache whose sliding layers are those of this model."""
    if cache.sliding is None:
        return cache
    local = tuple(i for i, layer in enumerate(model.weights.layers) if layer.attention.config.sliding_window)
    return replace(cache, sliding=replace(cache.sliding, layers=local))


def dry_cache(ops: DryRun, shape: EngineShape, layers: int) -> KVCache | VirtualKVCache:
    """A cache of these layers with room for one sequence."""
    if shape.virtual_cache:  # a token's layers lie side by side, so array sizes depend on the number of all layers
        virtual = VirtualKVCache(DryRunPages(ops.device_addresses), shape.cache, 1, shape.max_model_len, 1)
        virtual.layers = virtual.layers[:layers]
        return virtual
    wanted = replace(shape.cache, num_layers=layers)
    room = window_room(wanted.residual_window, shape.max_num_seqs, shape.max_num_batched_tokens)
    cache = KVCache(ops, wanted, blocks_needed(shape.max_model_len, wanted.block_size), room, num_local=0 if wanted.sliding is None else 2)
    if is_calibrated(wanted):
        is_float = wanted.format is not None and wanted.format.is_float
        scales = np.zeros((wanted.num_layers, 2, wanted.kv_heads), np.float32) if is_float else None
        cache.calibrate(np.zeros((wanted.num_layers, 3, wanted.kv_heads, wanted.head_dim), np.float32), scales, ops)
    return cache
