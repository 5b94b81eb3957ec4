"""A model ready to run: its configuration, its weights, and the table of its rotary embedding."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from minllm.kernels.rope.rotate import rope_table
from minllm.models.checkpoint import Checkpoint
from minllm.models.config import ModelConfig
from minllm.models.config_reader import read_model_config
from minllm.models.layout import ModelWeights
from minllm.models.rope import inverse_frequencies
from minllm.models.tied_head import untied_if_stored
from minllm.models.weights import Progress, StoredWeights, WeightReader, load_weights
from minllm.ops.protocol import Array, Ops
from minllm.weights.format import WeightFormat


@dataclass
class Model:
    """What `decoder.forward` runs."""

    config: ModelConfig
    weights: ModelWeights
    cos_sin: Array | None  # float32 [positions, head_dim], cosines first; None where positions are learned vectors


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
    """Loads a Hugging Face model directory into the arrays of `ops`; the weights come from `checkpoint` if one is given.

    progress: called as progress(done_bytes, total_bytes) while the weights are read. max_positions: the longest sequence that will be run,
    which may be less than the model allows and then makes the rotary table shorter. weight_format: of the layers' matrices; None leaves
    them plain. config: the model's, if the caller has read it (as here, with models/tied_head.py). make_reader: what reads one rank's part
    of the weights (parallel/split_weights.py). Raises CheckpointError or UnsupportedModelError before any weight is placed, except for a
    tensor with NaN or infinity, which is met when it is read.
    """
    stated = config or read_model_config(directory)
    checkpoint = checkpoint or Checkpoint(directory)
    config = config or untied_if_stored(stated, checkpoint)
    weights = load_weights(ops, config, checkpoint, progress, weight_format, make_reader)
    return Model(config, weights, make_rope_table(ops, config, max_positions))


def make_rope_table(ops: Ops, config: ModelConfig, max_positions: int | None = None) -> Array | None:
    """The cosines and sines of every position that the model allows (at most `max_positions`), or None without a rotary embedding."""
    if config.rope is None:
        return None
    positions = min(config.max_position_embeddings, max_positions or config.max_position_embeddings)
    return ops.array(rope_table(positions, config.head_dim, inverse_frequencies(config.rope, config.head_dim)))
