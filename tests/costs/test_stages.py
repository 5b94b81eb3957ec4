"""Stages one by one: against the bytes that each kernel's benchmark counts, against whole steps, and against loops."""

import pytest

from minllm import costs
from minllm.catalogue import activation, embedding, normalization
from minllm.catalogue.attention import benchmarks
from minllm.catalogue.rows import BFLOAT16
from minllm.costs.parallel import degrees
from minllm.costs.stages import visible_pairs
from minllm.errors import InvalidOptionError
from minllm.models.config_reader import parse_model_config
from minllm.models.shapes import named_config

CONFIG = named_config("llama-3.1-8b")
GPT2 = parse_model_config(dict(model_type="gpt2", vocab_size=1003, n_embd=240, n_head=6, n_layer=3, n_positions=256))
LAYERS, TOKENS = CONFIG.num_hidden_layers, 37


def stages(config=CONFIG, tokens=TOKENS):
    return {stage.name: stage for stage in costs.prefill_stages(config, tokens)}


def test_a_norm_moves_what_its_kernel_counts():
    assert stages()["MLP norm"].bytes == LAYERS * normalization.rms_norm(TOKENS, 4096, BFLOAT16).bytes
    # GPT-2's first norm has no residual to read or write yet
    moved, hidden = 3 * normalization.layer_norm(TOKENS, 240, BFLOAT16).bytes, 2 * TOKENS * 240 * 2
    assert stages(GPT2)["attention norm"].bytes == moved - hidden


def test_an_embedding_moves_what_its_kernel_counts():
    assert stages()["embedding"].bytes == embedding.embedding(TOKENS, 2**15, 4096, BFLOAT16).bytes
    assert stages(GPT2)["embedding"].bytes == embedding.embedding(TOKENS, 1003, 240, BFLOAT16, learned_positions=True).bytes


def test_an_activation_moves_what_its_kernel_counts():
    assert stages()["MLP activation"].bytes == LAYERS * activation.silu(TOKENS, 14336, BFLOAT16).bytes


def test_attention_computes_and_reads_what_its_benchmark_counts():
    one = stages()["attention"]
    assert one.flops == LAYERS * benchmarks.prefill_flops(1, TOKENS, 32, 128)
    step = {stage.name: stage for stage in costs.decode_stages(CONFIG, batch=5, context=129)}["attention"]
    assert step.kv_bytes == LAYERS * benchmarks.key_value_bytes(5, 129, 8, 128, 2)


@pytest.mark.parametrize("config", [CONFIG, GPT2], ids=["llama", "gpt2"])
def test_stages_add_up_to_the_step(config):
    listed = costs.decode_stages(config, 3, 50, 2, 1, 0.5)
    step = costs.decode_step(config, 3, 50, 2, 1, 0.5)
    assert step.bytes == sum(stage.bytes - stage.activation_bytes for stage in listed)
    assert step.flops == sum(stage.flops for stage in listed)


def test_a_decode_step_is_bound_by_memory_and_a_prefill_by_arithmetic():
    """Williams et al., section 3: which side of the ridge of an H200 (989 TFLOP/s over 4.8 TB/s, 206 operations a byte)."""
    projections = ("qkv projection", "output projection", "MLP up projection", "MLP down projection")
    one_row = {stage.name: stage.arithmetic_intensity for stage in costs.decode_stages(CONFIG, 1, 1000)}
    prompt = {name: stage.arithmetic_intensity for name, stage in stages(tokens=2048).items()}
    for name in projections:
        assert 0.9 < one_row[name] <= 1  # two operations for the two bytes of a weight
        assert prompt[name] > 206
    assert one_row["attention"] == pytest.approx(4, rel=0.2)  # four query heads share each key that is read
    assert prompt["attention norm"] < 1


@pytest.mark.parametrize("window", [0, 1, 7, 20, 21])
@pytest.mark.parametrize("tokens", [1, 7, 8, 20])
def test_visible_pairs_equal_a_loop(tokens, window):
    assert visible_pairs(tokens, window) == sum(min(i, window or i) for i in range(1, tokens + 1))


def test_sequences_of_a_prefill_add_up():
    one, three = costs.prefill_stages(CONFIG, 20), costs.prefill_stages(CONFIG, 20, sequences=3)
    for single, triple in zip(one, three, strict=True):
        assert triple.flops == 3 * single.flops and triple.kv_bytes == 3 * single.kv_bytes
        assert triple.activation_bytes == 3 * single.activation_bytes
        assert triple.weight_bytes == (3 if single.name == "embedding" else 1) * single.weight_bytes


def test_shards_hold_the_whole_model_and_repeat_only_what_all_need():
    part = costs.shard(CONFIG, 8)
    assert 8 * costs.layer_matrix_parameters(part) == costs.layer_matrix_parameters(CONFIG)
    assert 8 * costs.kv_bytes_per_token(part) == costs.kv_bytes_per_token(CONFIG)
    repeated = 7 * (CONFIG.num_hidden_layers * 2 + 1) * CONFIG.hidden_size  # the norms
    assert 8 * costs.parameter_count(part) == costs.parameter_count(CONFIG) + repeated


def test_more_gpus_than_kv_heads_keep_copies_of_them():
    part = costs.shard(CONFIG, 16)
    assert (part.num_attention_heads, part.num_key_value_heads) == (2, 1)
    assert 16 * costs.kv_bytes_per_token(part) == 2 * costs.kv_bytes_per_token(CONFIG)


@pytest.mark.parametrize("degree", [3, 5, 64])
def test_a_degree_that_does_not_divide_is_refused_with_those_that_do(degree):
    with pytest.raises(InvalidOptionError, match="1, 2, 4, 8, 16"):
        costs.shard(CONFIG, degree)
    assert degrees(CONFIG) == [1, 2, 4, 8, 16, 32]


def test_all_reduces_are_a_ring_over_two_sums_a_layer():
    """By hand for 2 GPUs, 1 token: each sends its half, then the finished half: 65 vectors of 4,096 numbers, and half of the logits."""
    assert costs.all_reduce_bytes(CONFIG, 1, 1, 2) == 65 * 4096 * 2 + 128256 * 4 // 2
    assert costs.all_reduce_bytes(CONFIG, 100, 1, 1) == 0


def test_grouped_heads_of_llama_2_70b():
    """The figures of the formula that ignores grouping, and the real ones: 2.6 MB and 42.9 GB, 0.33 MB and 5.4 GB."""
    config = parse_model_config(
        dict(
            model_type="llama",
            vocab_size=32000,
            hidden_size=8192,
            intermediate_size=28672,
            num_hidden_layers=80,
            num_attention_heads=64,
            num_key_value_heads=8,
        )  # fmt: skip
    )
    assert costs.ungrouped_kv_bytes_per_token(config) == 2 * 8192 * 80 * 2 == 2_621_440
    assert costs.kv_bytes_per_token(config) == 327_680
    assert 16 * 1024 * costs.ungrouped_kv_bytes_per_token(config) == pytest.approx(42.9e9, rel=2e-3)
    assert 16 * 1024 * costs.kv_bytes_per_token(config) == pytest.approx(5.4e9, rel=1e-2)
    assert costs.parameter_count(config) == 68_976_648_192  # the count published with the weights


def test_quantised_matrices_leave_the_rest_as_it_is():
    matrices = LAYERS * costs.layer_matrix_parameters(CONFIG)
    assert costs.weight_bytes(CONFIG, 2) - costs.weight_bytes(CONFIG, 2, 0.5) == matrices * 3 // 2
