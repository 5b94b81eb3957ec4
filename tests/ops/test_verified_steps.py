"""A step that verifies drafts beside a prompt, from the slots back to the slots: the kernels of an engine do what NumPy does."""

import functools
from dataclasses import replace

import numpy as np
import pytest

from minllm.cache.kv_cache import CacheShape, KVCache
from minllm.catalogue.sampling import parameters
from minllm.engine.drafting.draft_model import DraftModel
from minllm.engine.drafting.lookahead import LookaheadDrafts
from minllm.engine.drafting.ngrams import NgramDrafts
from minllm.engine.drafting.tree_model import TreeModel
from minllm.engine.running.batch_arrays import NewTokens, behind_slots, build_batch, to_backend
from minllm.engine.running.machine import HostMachine
from minllm.engine.running.model_runner import ModelRunner
from minllm.engine.running.speculator import Speculator
from minllm.kernels.sampling.parameters import sampling_entries
from minllm.kernels.sampling.tensors import SamplingKind
from minllm.kernels.speculation.token_tree import TokenTree
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.ops.small_models import small_model

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]

BLOCK_SIZE, BLOCKS_EACH, SLOTS, LONGEST, DRAFTS = 4, 5, 4, 20, 2
TABLES = np.random.default_rng(0).permutation(SLOTS * BLOCKS_EACH).reshape(SLOTS, BLOCKS_EACH).astype(np.int32)
LENGTHS, ROWS, PROMPT = [5, 9, 2], [3, 1, 2], (0, 6)  # tokens in the slots 3, 2, 1; rows of each; the prompt goes to slot 0
TREES = dict.fromkeys(("tree", "drawn tree"), TokenTree.of_paths([(0,), (1,)])) | {"lookahead": TokenTree.lookahead(2, 2, 1)}  # of 2 drafts
CHEAP_TO_SIMULATE = {"matmul": "naive", "attention": "materialized"}  # variants that the engine does not choose; both have their own tests
KINDS = {
    "greedy": (SamplingKind.GREEDY, dict(temperature=0.0)),
    "random": (SamplingKind.RANDOM, dict(temperature=0.9, top_k=9)),
}


def noisy_cache(ops, model):
    """A cache with the same noise everywhere."""
    config, random = model.config, np.random.default_rng(1)
    shape = CacheShape(config.num_hidden_layers, BLOCK_SIZE, config.num_key_value_heads, config.head_dim, ops.dtype)
    cache = KVCache(ops, shape, SLOTS * BLOCKS_EACH)
    for layer in cache.layers:
        for array in (layer.key, layer.value):
            array[:] = random.standard_normal(array.shape)
    return cache


def source_of(name, ops):
    """A DraftSource; the model drafts for itself."""
    if name == "ngrams":
        return NgramDrafts(ops, 2, 1)
    if name == "lookahead":
        return LookaheadDrafts(ops, SLOTS, 2, 2, 1)
    model = small_model("llama", ops)
    if name in TREES:
        return TreeModel(ops, model, noisy_cache(ops, model), draws=name == "drawn tree")
    return DraftModel(ops, model, noisy_cache(ops, model), draws=name == "drawn")


def step(ops, source, kind):
    """What a step leaves: tokens, counts, numbers of drafts, the slots and the drafts, by name; and the logits."""
    kind, rule = KINDS[kind]
    model = small_model("llama", ops)
    cache = noisy_cache(ops, model)
    make = functools.partial(
        Speculator, ops, HostMachine(), source=source_of(source, ops), num_drafts=DRAFTS, width=LONGEST, tree=TREES.get(source), cache=cache
    )
    runner = ModelRunner(
        ops, model, cache, None, max_num_seqs=SLOTS, max_num_batched_tokens=16, max_model_len=LONGEST,
        speculator=lambda slots: make(slots=slots),
    )  # fmt: skip
    state, drafts, random = runner.slots.state, runner.speculator.drafts, np.random.default_rng(2)
    slots = [3, 2, 1, 0]
    for slot, length in zip(slots, [*LENGTHS, sum(PROMPT)], strict=True):
        words = sampling_entries(parameters(**rule), model.config.vocab_size).words
        ops.write_slots(state, ops.array(state.pairs(slot, newest_tokens=7 + slot, lengths=length, block_tables=TABLES[slot], **words)))
    drafts.drafts[:] = random.integers(0, 37, drafts.drafts.shape)
    drafts.token_history[:] = random.integers(0, 4, drafts.token_history.shape)
    if drafts.log_q is not None:
        drafts.log_q[:] = np.log(np.float32(1 / drafts.log_q.shape[2]))
    prompt = build_batch([NewTokens(np.arange(PROMPT[1]) % 37, PROMPT[0], TABLES[0])], [PROMPT[1] - 1], BLOCK_SIZE)
    batch = behind_slots(prompt, [length - 1 for length in LENGTHS], ROWS, BLOCK_SIZE, verifies=True)
    batch = replace(to_backend(batch, ops), room=ops.array(np.int32([20, 12, 8, 7])))
    rows = ops.array(np.repeat(np.int32(slots), [*ROWS, 1]))
    tokens, logits, counts, num_drafts, *path = runner.compute(rows, batch, kind)
    found = dict(tokens=tokens, counts=counts, num_drafts=num_drafts, words=state.words, drafts=drafts.drafts)
    if path:
        found |= dict(path=path[0], keys=cache.layers[0].key)
    return {name: ops.to_host(array) for name, array in found.items()}, ops.to_host(logits)


@pytest.mark.covering("source", "kind")
@pytest.mark.parametrize("source", ["ngrams", "likeliest", "drawn", "tree", "drawn tree", "lookahead"])
@pytest.mark.parametrize("kind", KINDS)
def test_kernels_and_numpy_agree_on_a_whole_step(source, kind):
    found, logits = step(CudaOps("float32", CHEAP_TO_SIMULATE, simulated=True), source, kind)
    expected, expected_logits = step(NumpyOps("float32"), source, kind)
    np.testing.assert_allclose(logits, expected_logits, atol=1e-4)
    for row in np.flatnonzero(expected["counts"]):
        new = slice(row, row + expected["counts"][row])
        np.testing.assert_array_equal(found["tokens"][new], expected["tokens"][new])
    if source in TREES:
        np.testing.assert_array_equal(found["path"], expected["path"])
        np.testing.assert_allclose(found["keys"], expected["keys"], atol=1e-4)
    for name in ("counts", "num_drafts", "words", "drafts"):
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert np.count_nonzero(expected["counts"]) == 4


def test_wrong_drafts_leave_the_tokens_of_a_plain_step():
    """The first token of each run is the argmax of its first row, whatever is drafted behind it."""
    found, logits = step(NumpyOps("float32"), "ngrams", "greedy")
    first = np.cumsum([0, *ROWS])
    assert found["tokens"][first].tolist() == logits[first].argmax(axis=1).tolist()
