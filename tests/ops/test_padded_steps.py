"""A step with prompts, padded to a graph's size: every row gets what it gets without padding, in the kernels as in NumPy."""

import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.catalogue.sampling import parameters
from minllm.engine.running.batch_arrays import NewTokens, behind_slots, build_batch, padded_arrays, to_backend
from minllm.engine.running.model_runner import ModelRunner
from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.ops.small_models import small_model

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]

BLOCK_SIZE, BLOCKS_EACH, SLOTS, LONGEST = 4, 4, 6, 16
TABLES = np.random.default_rng(0).permutation(SLOTS * BLOCKS_EACH).reshape(SLOTS, BLOCKS_EACH).astype(np.int32)


def runner_of(ops):
    """A runner of a small model whose cache is full of noise."""
    model, random = small_model("llama", ops), np.random.default_rng(1)
    config = model.config
    shape = CacheShape(config.num_hidden_layers, BLOCK_SIZE, config.num_key_value_heads, config.head_dim, ops.dtype)
    cache = KVCache(ops, shape, SLOTS * BLOCKS_EACH)
    for layer in cache.layers:
        for array in (layer.key, layer.value):
            array[:] = random.standard_normal(array.shape)
    return ModelRunner(ops, model, cache, None, max_num_seqs=SLOTS, max_num_batched_tokens=16, max_model_len=LONGEST, uses_graphs=True)


def fill(runner, slots, lengths):
    """Put sequences of these lengths into the slots."""
    state, words = runner.slots.state, sampling_entries(parameters(temperature=0.0), runner.model.config.vocab_size).words
    for slot, length in zip(slots, lengths, strict=True):
        pairs = state.pairs(slot, newest_tokens=7 + slot, lengths=length, block_tables=TABLES[slot], **words)
        runner.ops.write_slots(state, runner.ops.array(pairs))


def batch_of(slots, lengths, prompts):
    """The batch of sequences that decode, and of the ends of prompts, each in its slot's blocks."""
    chunks = [
        NewTokens((np.arange(tokens) + 3 * slot) % 37, start, TABLES[slot])
        for slot, (start, tokens) in zip(slots[len(lengths) :], prompts, strict=True)
    ]
    batch = build_batch(chunks, np.cumsum([tokens for _, tokens in prompts]) - 1, BLOCK_SIZE)
    return behind_slots(batch, [length - 1 for length in lengths], [1] * len(lengths), BLOCK_SIZE) if lengths else batch


def step(ops, lengths, prompts, pads):
    """Logits of sequences of these lengths that decode, and then of prompts (start, tokens); and the state of all slots."""
    runner, slots, count = runner_of(ops), list(range(len(lengths) + len(prompts)))[::-1], len(lengths)
    fill(runner, slots, [*lengths, *(start + tokens for start, tokens in prompts)])
    batch = batch_of(slots, lengths, prompts)
    if not pads:
        _, logits = runner.compute(ops.array(np.int32(slots)), to_backend(batch, ops), SamplingKind.GREEDY)
        return ops.to_host(logits), ops.to_host(runner.slots.state.words)
    key = runner.graphs.key(count, len(prompts), batch.num_tokens, LONGEST, SamplingKind.GREEDY)
    assert key.sequences > len(slots) and key.tokens > batch.num_tokens
    slots_of_graph, batch_of_graph = runner.graphs.batch(key)
    for name, array in padded_arrays(batch, slots, count, key).items():
        (slots_of_graph if name == "slots" else getattr(batch_of_graph, name))[:] = array
    _, logits = runner.compute(slots_of_graph, batch_of_graph, SamplingKind.GREEDY)
    rows = [*range(count), *range(key.decodes, key.decodes + len(prompts))]
    return ops.to_host(logits)[rows], ops.to_host(runner.slots.state.words)


CASES = [([], [(0, 5), (0, 1)]), ([5, 9, 2], [(0, 6), (4, 3)]), ([3], [(2, 9), (0, 2)])]  # the second one in the simulator always


@pytest.mark.covering("lengths", "make_ops")
@pytest.mark.parametrize(("lengths", "prompts"), CASES)
@pytest.mark.parametrize("make_ops", [NumpyOps, lambda dtype: CudaOps(dtype, simulated=True)], ids=["numpy", "simulator"])
def test_padding_changes_no_row(make_ops, lengths, prompts):
    (plain, words), (padded, words_of_padded) = (step(make_ops("float32"), lengths, prompts, pads) for pads in (False, True))
    np.testing.assert_allclose(padded, plain, rtol=0, atol=2e-5 * np.abs(plain).max())
    np.testing.assert_array_equal(words_of_padded, words)
