"""A model of a known shape with random weights, a cache full of noise, and batches for benchmarks."""

import numpy as np

from minllm.bench.noise import Noise
from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.engine.decode_graph import DecodeGraph
from minllm.engine.running.batch_arrays import NewTokens, build_batch, decode_batch, to_backend
from minllm.engine.sampling_params import SamplingParams
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.models.config import ModelConfig
from minllm.models.model import Model, make_rope_table
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import named_config
from minllm.models.weights import load_weights
from minllm.ops.protocol import Batch

BLOCK_SIZE = 16


class RandomModel:
    """The shape `name` of shapes.SHAPES, or a ModelConfig, on the device of `ops`, with a cache for `sequences` of up to `tokens`."""

    def __init__(self, name: str | ModelConfig, ops, noise: Noise, sequences: int, tokens: int):
        self.ops, self.noise, self.sequences = ops, noise, sequences
        self.config = named_config(name) if isinstance(name, str) else name
        weights = load_weights(ops, self.config, RandomCheckpoint(self.config))
        self.model = Model(self.config, weights, make_rope_table(ops, self.config, tokens))
        self.blocks_each = -(-tokens // BLOCK_SIZE)
        shape = CacheShape(self.config.num_hidden_layers, BLOCK_SIZE, self.config.num_key_value_heads, self.config.head_dim, ops.dtype)
        self.cache = KVCache(ops, shape, sequences * self.blocks_each)
        contents = noise.array(self.cache.layers[0].key.shape, ops.dtype)
        for layer in self.cache.layers:
            for array in (layer.key, layer.value):
                array.copy_from_host(contents)

    def block_tables(self) -> np.ndarray:
        """Blocks of all sequences, in random order: int32 [sequences, blocks]."""
        blocks = self.noise.random.permutation(self.sequences * self.blocks_each)
        return blocks.reshape(self.sequences, self.blocks_each).astype(np.int32)

    def decode_arrays(self, context: int) -> tuple[Batch, SamplingTensors, np.ndarray]:
        """(the next token of every sequence, which then sees `context` keys; greedy sampling; position limits), on the host."""
        tokens = self.noise.random.integers(0, self.config.vocab_size, self.sequences).astype(np.int32)
        positions = np.full(self.sequences, context - 1, np.int32)
        batch = decode_batch(tokens, positions, self.block_tables(), BLOCK_SIZE)
        batch.max_context_len = self.blocks_each * BLOCK_SIZE
        sampling = build_sampling_tensors([SamplingParams(temperature=0.0)] * self.sequences, self.config.vocab_size)
        return batch, sampling, np.full(self.sequences, self.blocks_each * BLOCK_SIZE, np.int32)

    def decode_graph(self, batch: Batch, sampling: SamplingTensors, limits: np.ndarray, machine) -> DecodeGraph:
        """The engine's own decode step for these arrays."""
        return DecodeGraph(self.ops, self.model, self.cache, batch=batch, sampling=sampling, limits=limits, machine=machine)

    def prompt(self, tokens: int) -> Batch:
        """One prompt of `tokens` random tokens, on the device, with logits for the last."""
        token_ids = self.noise.random.integers(0, self.config.vocab_size, tokens)
        return to_backend(build_batch([NewTokens(token_ids, 0, self.block_tables()[0])], [tokens - 1], BLOCK_SIZE), self.ops)
