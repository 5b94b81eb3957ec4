"""A model of a known shape with random weights, a cache of noise, and the engine's runner for it."""

import dataclasses

import numpy as np

from minllm.cache.kv_cache import KVCache
from minllm.catalogue.noise import Noise
from minllm.engine.build.cache_format import cache_shape
from minllm.engine.build.calibration import is_calibrated
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.engine.running.batch_arrays import NewTokens, build_batch
from minllm.engine.running.machine import Machine
from minllm.engine.running.model_runner import ModelRunner
from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.slots.state import SlotState
from minllm.models.config import ModelConfig
from minllm.models.layout import ModelWeights
from minllm.models.model import Model, make_rope_tables
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import named_config
from minllm.models.weights import load_weights
from minllm.ops.batch import Batch
from minllm.weights.format import WeightFormat

BLOCK_SIZE = 16
DISTINCT_LAYERS = 4
NO_NAN = 0xF7  # a byte without bit 3 is a finite number in both formats of 8-bit floats


def load_random_weights(ops, config: ModelConfig, weight_format: WeightFormat | None = None) -> ModelWeights:
    """Random weights for a model.

    With a weight_format or experts only DISTINCT_LAYERS layers differ and are repeated, because quantising takes long, and so does copying
    all experts to the GPU. That does not affect times: a layer is read again only after hundreds of megabytes or gigabytes of other layers
    have left the caches.
    """
    layers = config.num_hidden_layers
    if weight_format is None and not config.num_experts:
        return load_weights(ops, config, RandomCheckpoint(config))
    few = dataclasses.replace(config, num_hidden_layers=min(layers, DISTINCT_LAYERS))
    weights = load_weights(ops, few, RandomCheckpoint(few), weight_format=weight_format)
    return dataclasses.replace(weights, layers=[weights.layers[i % DISTINCT_LAYERS] for i in range(layers)])


class RandomModel:
    """A model of the shape `name`, or of a ModelConfig, with a cache for `sequences` of `tokens` each.

    weights: those of load_random_weights, which several models may share; None: its own, in weight_format. kv_cache_dtype: as in the
    engine's options.
    """

    def __init__(
        self, name: str | ModelConfig, ops, noise: Noise, sequences: int, tokens: int, weight_format: WeightFormat | None = None,
        weights: ModelWeights | None = None, kv_cache_dtype: str = "auto",
    ):  # fmt: skip
        self.ops, self.noise, self.sequences, self.tokens = ops, noise, sequences, tokens
        self.config = named_config(name) if isinstance(name, str) else name
        weights = weights or load_random_weights(ops, self.config, weight_format)
        self.model = Model(self.config, weights, make_rope_tables(ops, self.config, tokens))
        self.blocks_each = -(-tokens // BLOCK_SIZE)
        self.cache = KVCache(ops, cache_shape(self.config, ops.dtype, BLOCK_SIZE, kv_cache_dtype), sequences * self.blocks_each)
        self._fill_cache()

    def _fill_cache(self) -> None:
        """Write noise: numbers, or codes with calibrations that change nothing."""
        shape = self.cache.shape
        if is_calibrated(shape):
            unchanged = np.stack([np.zeros((shape.kv_heads, shape.head_dim)), *np.ones((2, shape.kv_heads, shape.head_dim))])
            scales = np.ones((shape.num_layers, 2, shape.kv_heads), np.float32) if shape.format.is_float else None
            self.cache.calibrate(np.stack([unchanged.astype(np.float32)] * shape.num_layers), scales, self.ops)
        for array in self.cache.arrays:  # [2 * layers, num_blocks, ...]
            part = array.shape[1:]
            codes = array.dtype == np.uint8
            contents = self.noise.random.integers(0, 256, part, np.uint8) & NO_NAN if codes else self.noise.array(part, array.dtype)
            for i in range(array.shape[0]):
                array[i].copy_from_host(contents)

    def runner(self, machine: Machine) -> ModelRunner:
        """The engine's runner with graphs and a slot per sequence; `block_tables` replaces the cache policy."""
        return ModelRunner(
            self.ops, self.model, self.cache, None, max_num_seqs=self.sequences, max_num_batched_tokens=self.tokens,
            max_model_len=self.tokens, machine=machine, uses_graphs=True,
        )  # fmt: skip

    def block_tables(self) -> np.ndarray:
        """Blocks of all sequences, in random order: int32 [sequences, blocks]."""
        blocks = self.noise.random.permutation(self.sequences * self.blocks_each)
        return blocks.reshape(self.sequences, self.blocks_each).astype(np.int32)

    def slot_words(self, state: SlotState, context: int) -> np.ndarray:
        """(index, word) for `write_slots`, int32 [n, 2]: slot i gets sequence i, greedy, with `context` keys in the next step."""
        greedy = sampling_entries(SamplingParams(temperature=0.0, seed=0), self.config.vocab_size).words
        newest, tables = self.noise.random.integers(0, self.config.vocab_size, self.sequences), self.block_tables()
        slots = [
            state.pairs(slot, newest_tokens=newest[slot], lengths=context, block_tables=tables[slot], **greedy)
            for slot in range(self.sequences)
        ]
        return np.concatenate(slots)

    def prompt(self, tokens: int) -> Batch:
        """The Batch of one prompt of `tokens` random tokens, on the host; logits are computed for the last."""
        token_ids = self.noise.random.integers(0, self.config.vocab_size, tokens)
        return build_batch([NewTokens(token_ids, 0, self.block_tables()[0])], [tokens - 1], BLOCK_SIZE)
