"""Contexts that ranks share: which token is where, the states that merge, and the engine against one process that has all."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.engine.build.engine import load_engine, model_config
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.check import check_shared_contexts
from minllm.engine.ranks.rank_runner import forward_of
from minllm.engine.ranks.share import RankShare
from minllm.engine.running.batch_arrays import NewTokens, build_batch
from minllm.errors import InvalidOptionError
from minllm.kernels.attention.common.online_softmax import merge_reference
from minllm.kernels.attention.reference import attention_reference
from minllm.kernels.attention.shared_context.share import ContextShare
from minllm.parallel.context_parallel import check_context_ranks, state_of_share
from tests.engine.models import model_directory
from tests.engine.ranks.models import ONE_KV_HEAD, save_model_of_one_kv_head
from tests.parallel.in_threads import in_threads

RANKS, BLOCK_SIZE = 2, 4
OPTIONS = dict(device="cpu", load_format="dummy", dtype="float32", max_model_len=96, max_num_seqs=4, max_num_batched_tokens=24)
PROMPTS = [[5, 6, 7], [11] * 40, [2, 3], [900, 17, 17, 17, 55], [7, 8, 9] * 9]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return save_model_of_one_kv_head(tmp_path_factory.mktemp("one-kv-head"))


@given(st.integers(1, 5), st.integers(1, 7), st.integers(1, 60), st.data())
def test_every_token_is_on_one_rank_at_the_place_that_its_number_gives(ranks, block_size, length, data):
    """A rank's tokens, in the order of their positions, fill its blocks from the first slot on without a gap."""
    shares = [ContextShare(rank, ranks, block_size) for rank in range(ranks)]
    entries = -(-length // (ranks * block_size))
    table = np.array(data.draw(st.permutations(range(entries))))
    positions = np.arange(length)
    slots = table[positions // (ranks * block_size)] * ranks * block_size + positions % (ranks * block_size)
    owners = np.zeros(length, int)
    for share in shares:
        own = share.slots(slots)
        mine = own[own >= 0]
        owners += own >= 0
        count = int(share.lengths(np.array(length)))
        order = np.arange(count)
        np.testing.assert_array_equal(mine, table[order // block_size] * block_size + order % block_size)
    assert (owners == 1).all() and sum(int(share.lengths(np.array(length))) for share in shares) == length
    np.testing.assert_array_equal(shares[0].slots(np.array([-1, -1])), [-1, -1])


@given(st.integers(1, 3), st.integers(0, 20), st.integers(1, 6), st.integers(0, 99))
def test_merged_states_are_attention_over_the_whole_context(ranks, before, new, seed):
    random, length, heads, head_dim = np.random.default_rng(seed), before + new, 3, 8
    keys, values = (random.normal(size=(length, 1, head_dim)).astype(np.float32) for _ in range(2))
    query = random.normal(size=(new, heads, head_dim)).astype(np.float32)
    query_start, scale = np.array([0, new], np.int32), 0.3
    whole = attention_reference(
        query.astype(np.float64), keys[None].astype(np.float64), values[None].astype(np.float64), query_start, np.array([length]),
        np.array([[0]]), scale,
    )  # fmt: skip
    entries, state = -(-length // (ranks * BLOCK_SIZE)), None
    for share in (ContextShare(rank, ranks, BLOCK_SIZE) for rank in range(ranks)):
        own = share.slots(np.arange(length))
        caches = np.zeros((2, entries, BLOCK_SIZE, 1, head_dim), np.float32)
        for cache, array in zip(caches, (keys, values), strict=True):
            cache.reshape(-1, 1, head_dim)[own[own >= 0]] = array[own >= 0]
        visible = share.lengths(np.arange(before + 1, length + 1))
        part = state_of_share(query, *caches, query_start, visible, np.arange(entries)[None], scale)
        state = part if state is None else merge_reference(state, part)
    np.testing.assert_allclose(state[2] / state[1][..., None], whole, atol=2e-6)


def test_logits_are_those_of_the_whole_model_in_half_the_cache(directory):
    tokens = list(range(30, 67))

    def logits(options, share=None):
        engine = load_engine(options, share=share)
        size = engine.cache.block_size
        batch = build_batch([NewTokens(tokens, 0, range(-(-len(tokens) // size)))], range(len(tokens)), size)
        return engine.ops.to_host(forward_of(engine.runner, batch)), engine.cache

    whole, cache = logits(EngineOptions(model=directory, **OPTIONS, block_size=BLOCK_SIZE))
    shared = EngineOptions(model=directory, **OPTIONS, block_size=BLOCK_SIZE, tensor_parallel_size=4, decode_context_parallel_size=RANKS)
    results = in_threads(4, lambda rank: logits(shared, RankShare(rank, shared)))
    for found, own in results:
        np.testing.assert_allclose(found, whole, atol=1e-4)
        np.testing.assert_array_equal(found, results[0][0])
        assert own.block_size == RANKS * BLOCK_SIZE and own.num_tokens == cache.num_tokens and own.num_bytes == cache.num_bytes // RANKS


def test_tokens_are_those_of_one_process_whatever_the_scheduler_does(directory, forked_python):
    """Chunks of prompts, preemption, shared prefixes, forks that copy blocks, and drafts that are verified."""
    requests = {
        "greedy": SamplingParams(temperature=0, max_tokens=24),
        "several": SamplingParams(temperature=1.0, n=3, seed=9, max_tokens=6),
    }
    options = dict(OPTIONS, enable_prefix_caching=True, speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    bytes_per_token = 2 * ONE_KV_HEAD["num_hidden_layers"] * ONE_KV_HEAD["head_dim"] * 4
    memory = dict(kv_cache_memory_bytes=96 * bytes_per_token)  # one sequence at its longest, so that several are preempted
    of_ranks = dict(kv_cache_memory_bytes=48 * bytes_per_token, tensor_parallel_size=RANKS, decode_context_parallel_size=RANKS)
    with (
        LLM(directory, **options, **memory, block_size=RANKS * BLOCK_SIZE) as alone,
        LLM(directory, **options, **of_ranks, block_size=BLOCK_SIZE) as ranks,
    ):
        assert alone.engine.cache.num_tokens == ranks.engine.cache.num_tokens == 96
        for params in requests.values():
            found = [llm.generate(PROMPTS, params) for llm in (alone, ranks)]
            tokens = [[list(one.token_ids) for output in outputs for one in output.outputs] for outputs in found]
            assert tokens[0] == tokens[1]
        assert ranks.llm_engine.stats().num_preemptions > 0 and ranks.engine.cache_policy.prefix_hits.tokens_hit > 0
        np.testing.assert_allclose(ranks.logits(PROMPTS[1]), alone.logits(PROMPTS[1]), atol=1e-4)


REFUSED = {
    "no divisor": (dict(decode_context_parallel_size=3), "is a divisor of tensor_parallel_size=2, whose ranks share contexts"),
    "virtual": (dict(kv_cache_policy="contiguous"), "kv_cache_policy='contiguous' is not allowed together with decode_context_parallel"),
    "int8": (dict(kv_cache_dtype="int8"), "kv_cache_dtype='int8' is not allowed together with decode_context_parallel_size=2: take"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_over_shared_contexts_is_refused(name, directory):
    options, message = REFUSED[name]
    with pytest.raises(InvalidOptionError) as error:
        LLM(directory, **OPTIONS, **{"tensor_parallel_size": 2, "decode_context_parallel_size": 2, **options})
    assert message in str(error.value)


def test_an_attention_kernel_by_name_is_refused():
    options = EngineOptions(kernel_variants={"attention": "split_kv"}, tensor_parallel_size=2, decode_context_parallel_size=2)
    with pytest.raises(InvalidOptionError, match="kernel_variants of attention is not allowed together with decode_context_parallel"):
        check_shared_contexts(options)


def test_models_without_copies_of_a_kv_head_or_with_windows_are_refused():
    one = replace(model_config(EngineOptions(model=model_directory("llama3"))), num_key_value_heads=1)
    check_context_ranks(one, 4, 2)
    with pytest.raises(InvalidOptionError, match="2 KV heads is on 1 rank, which can share its contexts: take one of 1, or more tensor"):
        check_context_ranks(replace(one, num_key_value_heads=2), 2, 2)
    with pytest.raises(InvalidOptionError, match="not allowed with this model: its layers have sliding windows"):
        check_context_ranks(replace(one, sliding_windows=(4,) * one.num_hidden_layers), 2, 2)
