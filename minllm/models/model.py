"""A loaded model: its configuration, its weights, and the cosines and sines of its rotary embedding."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minllm.kernels.rope.reference import rope_table
from minllm.models.checkpoint import Checkpoint
from minllm.models.config import ModelConfig
from minllm.models.config_reader import read_model_config
from minllm.models.layout import Layer, ModelWeights
from minllm.models.rope import RopeConfig, inverse_frequencies
from minllm.models.tied_head import untied_if_stored
from minllm.models.weights import Progress, WeightReader, load_weights
from minllm.ops.batch import Array
from minllm.ops.protocol import Ops
from minllm.weights.format import WeightFormat
from minllm.weights.stored import StoredWeights


class RopeTables(NamedTuple):
    """Cosines and sines, float32 [positions, head_dim], cosines first; both are None if positions are learned vectors."""

    whole: Array | None  # for layers that see the whole context
    local: Array | None  # for layers with a sliding window; the same array unless the model turns them by other angles

    def of(self, layer: Layer) -> Array | None:
        """The table of a layer."""
        return self.local if layer.attention.config.sliding_window else self.whole


@dataclass
class Model:
    """A model ready for `decoder.forward`, with its arrays on the device of the ops that loaded it."""

    config: ModelConfig
    weights: ModelWeights
    ropes: RopeTables


def load_model(
    directory: Path | str,
    ops: Ops,
    progress: Progress | None = None,
    max_positions: int | None = None,
    checkpoint: StoredWeights | None = None,
    weight_format: WeightFormat | None = None,
    config: ModelConfig | None = None,
    make_reader: Callable[..., WeightReader] | None = None,
) -> Model:
    """Load a Hugging Face model directory into the arrays of `ops`.

    checkpoint: the source of the weights, if not the directory. progress: called as progress(done_bytes, total_bytes) while the weights are
    read. max_positions: the longest sequence that will be run; a value below the model's limit makes the rotary table shorter.
    weight_format: the format of the layers' matrices; None leaves them plain. config: the configuration, if the caller has already read it
    (with models/tied_head.py, as here). make_reader: makes the reader of one rank's part of the weights (parallel/split_weights.py). Raises
    CheckpointError or UnsupportedModelError before any weight is placed, except for a tensor with NaN or infinity, which is found when it
    is read.
    """
    stated = config or read_model_config(directory)
    stored: StoredWeights = checkpoint or Checkpoint(directory)
    config = config or untied_if_stored(stated, stored)
    weights = load_weights(ops, config, stored, progress, weight_format, make_reader)
    return Model(config, weights, make_rope_tables(ops, config, max_positions))


def make_rope_tables(ops: Ops, config: ModelConfig, max_positions: int | None = None) -> RopeTables:
    """The tables of a model, up to `max_positions`."""
    positions = min(config.max_position_embeddings, max_positions or config.max_position_embeddings)

    def table(rope: RopeConfig | None) -> Array | None:
        return None if rope is None else ops.array(rope_table(positions, config.head_dim, inverse_frequencies(rope, config.head_dim)))

    whole = table(config.rope)
    return RopeTables(whole, whole if config.local_rope is None else table(config.local_rope))
