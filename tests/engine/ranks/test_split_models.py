"""What the ranks of a split model compute together, compared with one process that has the whole model.

The ranks are threads here; test_rank_processes.py has processes.
"""

import json
from shutil import copytree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from minllm.costs import pipeline
from minllm.engine.build.engine import load_engine
from minllm.engine.options import EngineOptions
from minllm.engine.ranks.rank_runner import divided, forward_of
from minllm.engine.ranks.share import RankShare
from minllm.engine.running.batch_arrays import NewTokens, build_batch
from minllm.engine.scheduling.step import Span
from minllm.errors import CheckpointError
from minllm.parallel.communicator import PeerLostError
from tests.engine.models import byte_level_tokenizer, model_directory
from tests.models.random_models import VOCAB_SIZE
from tests.parallel.in_threads import in_threads

TOKENS = [3, 1002, 501, 502, 0, 77, 900, 41, 41]  # 501 and 502 lie on either side of a cut


def logits(options, share=None):
    """The logits of TOKENS, float32 [tokens, vocab], and the rank's engine."""
    engine = load_engine(options, share=share)
    size = engine.cache.block_size
    blocks = range(-(-len(TOKENS) // size))
    batch = build_batch([NewTokens(TOKENS, 0, blocks)], range(len(TOKENS)), size, engine.cache.shape.residual_window)
    return engine.ops.to_host(forward_of(engine.runner, batch)), engine


def of_ranks(world_size, options):
    return in_threads(world_size, lambda rank: logits(options, RankShare(rank, options)))


def options_for(family, **options):
    return EngineOptions(model=model_directory(family), device="cpu", max_model_len=64, max_num_seqs=2, **options)


FAMILIES = {
    "llama3": {},
    "qwen2": {},  # biases of q, k and v; a tied head
    "qwen3": {},  # norms of heads
    "qwen2_moe": {},  # a shared expert
    "qwen3_moe": {},  # each rank has a part of every expert
    "gpt2": {},  # q, k and v in one matrix, learned positions, biases behind the sums
    "mistral": dict(dtype="bfloat16"),
    "smollm": {},
}


@pytest.mark.parametrize(("family", "options"), FAMILIES.items(), ids=FAMILIES)
def test_logits_of_two_ranks_are_those_of_the_whole_model(family, options):
    whole, _ = logits(options_for(family, **options))
    (first, engine), (second, _) = of_ranks(2, options_for(family, **options, tensor_parallel_size=2))
    np.testing.assert_array_equal(first, second)  # the same bits on all ranks
    assert np.linalg.norm(first - whole) < (1e-5 if engine.ops.dtype == np.float32 else 0.02) * np.linalg.norm(whole)
    assert engine.cache.shape.kv_heads == (3 if family == "gpt2" else 1)  # each rank caches its own heads
    assert engine.model.weights.layers[0].attention.config.heads == 3


def test_a_quantised_cache_is_calibrated_and_filled_as_that_of_the_whole_model():
    """A number in the middle between two codes takes either, as its sum is rounded: codes may differ by one, and logits accordingly."""
    whole, engine = logits(options_for("smollm", kv_cache_dtype="int8"))
    ranks = of_ranks(2, options_for("smollm", kv_cache_dtype="int8", tensor_parallel_size=2))
    np.testing.assert_array_equal(*(found for found, _ in ranks))
    assert np.linalg.norm(ranks[0][0] - whole) < 0.005 * np.linalg.norm(whole)
    for layer, expected in enumerate(engine.cache.layers):
        keys = [rank.cache.layers[layer].key for _, rank in ranks]
        np.testing.assert_allclose(np.concatenate([one.smoothing for one in keys], axis=1), expected.key.smoothing, rtol=1e-5, atol=1e-5)
        for name in ("key", "value"):
            codes = np.concatenate([getattr(rank.cache.layers[layer], name).codes for _, rank in ranks], axis=1)
            steps = np.abs(codes.astype(int) - getattr(expected, name).codes)
            assert steps.max() <= 1 and np.count_nonzero(steps) < 0.1 * np.count_nonzero(codes)


@pytest.mark.parametrize(("family", "tensor"), [("gpt2", 1), ("smollm", 2)])
def test_stages_hold_their_layers_and_pass_on_hidden_states(family, tensor):
    """Three stages of one layer each. The embedding is in the first stage, and in the last, whose head it is too."""
    whole, _ = logits(options_for(family))
    results = of_ranks(3 * tensor, options_for(family, tensor_parallel_size=tensor, pipeline_parallel_size=3))
    for found, _ in results[:tensor]:  # the last stage's ranks
        assert np.linalg.norm(found - whole) < 1e-5 * np.linalg.norm(whole)
    for found, engine in results[tensor:]:
        assert not found.any() and engine.model.weights.lm_head is None
    for rank, (_, engine) in enumerate(results):
        assert len(engine.model.weights.layers) == engine.cache.shape.num_layers == 1
        assert (engine.model.weights.embedding is None) == (tensor <= rank < 2 * tensor)


def test_micro_batches_keep_the_order_of_spans_and_share_their_tokens(monkeypatch):
    lengths = (1, 1, 1, 1, 4, 8, 8)
    spans = [Span(None, 0, length, decodes=True, sampled=()) for length in lengths]
    assert divided(spans, 2) == [spans]  # too few tokens: a stage would read its weights twice
    monkeypatch.setattr(pipeline, "FEWEST_TOKENS", 8)
    assert [[span.length for span in part] for part in divided(spans, 2)] == [[1, 1, 1, 1, 4, 8], [8]]
    assert [[span.length for span in part] for part in divided(spans, 4)] == [[1, 1, 1, 1, 4], [8], [8]]
    assert divided(spans[:1], 4) == [spans[:1]]
    prompts = [span._replace(decodes=False) for span in spans]
    assert divided(prompts, 4, cuts_prompts=False) == [[span._replace(decodes=False) for span in part] for part in divided(spans, 4)]


@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 700)), min_size=1, max_size=20).map(lambda found: sorted(found, reverse=True)),
    st.integers(2, 8),
)
def test_prompts_are_cut_so_that_micro_batches_have_equal_numbers_of_tokens(lengths, stages):
    """Every token is computed once, in order; the last part of a prompt has its sequences that get a token."""
    spans = [Span(number, 7 * number, 1 if decodes else length, decodes, (number,)) for number, (decodes, length) in enumerate(lengths)]
    parts = divided(spans, stages)
    sizes = [sum(span.length for span in part) for part in parts]
    total = sum(span.length for span in spans)
    assert len(parts) == max(1, min(stages, total // 128)) and max(sizes) - min(sizes) <= 1
    joined = []
    for span in (one for part in parts for one in part):
        if joined and joined[-1].sequence == span.sequence:
            head = joined.pop()
            assert head.start + head.length == span.start and head.sampled == ()
            span = span._replace(start=head.start, length=head.length + span.length)
        joined.append(span)
    assert joined == spans


@pytest.mark.parametrize(
    ("quantization", "most"),
    [
        ("int4", 1e-5),  # the same groups with the same codes
        ("nf4", 0.01),  # the scales of a row's groups are quantised together, here those of half a row
        ("int8", 0.03),  # a row, and a token's activations, have a scale of their own on each rank
    ],
)
def test_quantised_weights_are_cut_between_groups(quantization, most, tmp_path):
    sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=32)
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="llama", vocab_size=VOCAB_SIZE, **sizes)))
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    options = dict(model=tmp_path, device="cpu", load_format="dummy", dtype="float32", max_model_len=64, max_num_seqs=2)
    whole, _ = logits(EngineOptions(**options, quantization=quantization))
    (first, _), (second, _) = of_ranks(2, EngineOptions(**options, quantization=quantization, tensor_parallel_size=2))
    np.testing.assert_array_equal(first, second)
    assert np.linalg.norm(first - whole) < most * np.linalg.norm(whole)


def test_quantised_experts_are_cut_between_groups(tmp_path):
    """Each of two ranks has half of every expert's inner width: the same groups with the same codes."""
    sizes = dict(hidden_size=64, moe_intermediate_size=64, num_experts=5, num_experts_per_tok=2, norm_topk_prob=True)
    heads = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
    (tmp_path / "config.json").write_text(json.dumps(dict(model_type="qwen3_moe", vocab_size=VOCAB_SIZE, **sizes, **heads)))
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    options = dict(model=tmp_path, device="cpu", load_format="dummy", dtype="float32", max_model_len=64, max_num_seqs=2)
    whole, _ = logits(EngineOptions(**options, quantization="int4"))
    (first, _), (second, engine) = of_ranks(2, EngineOptions(**options, quantization="int4", tensor_parallel_size=2))
    assert engine.model.weights.layers[0].mlp.down.weight.codes.shape == (5 * 64, 32 // 2)
    np.testing.assert_array_equal(first, second)
    assert np.linalg.norm(first - whole) < 1e-5 * np.linalg.norm(whole)


def test_a_rank_reads_only_its_part_of_the_file(tmp_path):
    """NaN in rows of the embedding that belong to rank 1 is found by rank 1 alone."""
    directory = copytree(model_directory("llama3"), tmp_path / "model")
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][1001] = np.nan
    save_file(tensors, directory / "model.safetensors")
    found, options = {}, EngineOptions(model=directory, device="cpu", tensor_parallel_size=2)

    def load(rank):
        try:
            load_engine(options, share=RankShare(rank, options))
        except (CheckpointError, PeerLostError) as error:
            found[rank.rank] = str(error)
            rank.host.close()

    in_threads(2, load)
    assert found[0] == "Rank 1 has ended while rank 0 was waiting for it."
    assert "tensor 'model.embed_tokens.weight' holds NaN or infinity" in found[1]
