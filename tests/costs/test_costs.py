"""Counts of bytes and operations, against figures that the models' authors publish and against loops over every tensor and every token."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from minllm import costs
from minllm.errors import InvalidOptionError
from minllm.models.config_reader import parse_model_config
from minllm.models.layout import layout_of
from minllm.models.parts.experts import touched_experts
from minllm.models.shapes import named_config

SMALL = dict(vocab_size=1003, hidden_size=240, intermediate_size=344, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2)
FAMILIES = {
    "llama": dict(SMALL, model_type="llama"),
    "llama tied, with bias": dict(SMALL, model_type="llama", tie_word_embeddings=True, attention_bias=True),
    "mistral": dict(SMALL, model_type="mistral", sliding_window=7),
    "qwen2": dict(SMALL, model_type="qwen2"),
    "qwen3": dict(SMALL, model_type="qwen3", head_dim=80),
    "qwen2_moe": dict(
        SMALL, model_type="qwen2_moe", moe_intermediate_size=24, shared_expert_intermediate_size=56, num_experts=7, num_experts_per_tok=2
    ),
    "qwen3_moe": dict(SMALL, model_type="qwen3_moe", moe_intermediate_size=56, num_experts=9, num_experts_per_tok=3),
    "gpt2": dict(model_type="gpt2", vocab_size=1003, n_embd=240, n_head=6, n_layer=3, n_positions=256),
}


PUBLISHED = [("llama-3.2-1b", 1_235_814_400), ("llama-3.1-8b", 8_030_261_248), ("qwen3-30b-a3b", 30_532_122_624)]


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED)
def test_parameters_are_as_many_as_published(name, parameters):
    assert costs.parameter_count(named_config(name)) == parameters


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_as_many_as_the_checkpoint_holds(family):
    config = parse_model_config(FAMILIES[family])
    assert costs.parameter_count(config) == sum(map(math.prod, layout_of(config).shapes().values()))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layout_and_the_parts_count_the_same_bytes(family):
    config = parse_model_config(FAMILIES[family])
    assert layout_of(config).weight_bytes(2) == costs.weight_bytes(config)


def test_a_gate_is_counted_whatever_its_activation_is():
    """GeGLU has the matrices of SwiGLU; a feed-forward without a gate has one fewer."""
    swiglu, gpt2 = parse_model_config(FAMILIES["llama"]), parse_model_config(FAMILIES["gpt2"])
    geglu = replace(swiglu, activation="gelu_tanh")
    assert costs.decode_step(geglu, 1, 7) == costs.decode_step(swiglu, 1, 7)
    assert costs.parameter_count(geglu) == costs.parameter_count(swiglu) == sum(map(math.prod, layout_of(geglu).shapes().values()))
    gated = replace(gpt2, gated_mlp=True)
    more = costs.layer_matrix_parameters(gated) - costs.layer_matrix_parameters(gpt2)
    assert more == gpt2.hidden_size * gpt2.intermediate_size
    assert costs.shape_of(gated) != costs.shape_of(gpt2)


@pytest.mark.parametrize(("name", "milliseconds"), [("llama-3.1-8b", 3.49), ("llama-3.2-1b", 0.575)])
def test_floor_of_a_decode_step_without_context(name, milliseconds):
    """The weights alone at 4.3 TB/s, as worked out by hand from the published sizes."""
    step = costs.decode_step(named_config(name), batch=1, context=1)
    assert step.floor_ms(4.3) == pytest.approx(milliseconds, rel=2e-3)


def test_the_cache_of_an_8b_llama_takes_128_kib_a_token():
    config = named_config("llama-3.1-8b")
    assert costs.kv_bytes_per_token(config) == 131072
    assert costs.kv_bytes_per_token(config, itemsize=1) == 65536


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("batch", "context"), [(1, 1), (3, 6), (2, 7), (2, 130)])
def test_decode_step_equals_a_count_over_every_tensor(family, batch, context):
    config = parse_model_config(FAMILIES[family])
    shapes = layout_of(config).shapes()
    numbers, flops = 0, 0
    touched = touched_experts(config, batch) / config.num_experts if config.num_experts else 1
    for name, shape in shapes.items():
        is_table = any(part in name for part in ("embed_tokens", "wte", "wpe"))
        if is_table:
            numbers += batch * shape[1]  # one row a sequence
        elif ".experts." in name:
            numbers += math.prod(shape) * touched
            flops += Fraction(2 * batch * math.prod(shape) * config.num_experts_per_tok, config.num_experts)
        else:
            numbers += math.prod(shape)
            flops += 2 * batch * math.prod(shape) if len(shape) == 2 else 0
    if config.tie_word_embeddings:  # the head is the table, and is read in full
        numbers += config.vocab_size * config.hidden_size
        flops += 2 * batch * config.vocab_size * config.hidden_size
    cached = 0
    for window in config.sliding_windows:
        keys = min(context, window or context)
        cached += batch * (keys + 1) * 2 * config.num_key_value_heads * config.head_dim  # read, and one written
        flops += batch * keys * 4 * config.num_attention_heads * config.head_dim
    step = costs.decode_step(config, batch, context, itemsize=2, kv_itemsize=4)
    assert step.bytes == pytest.approx(2 * numbers + 4 * cached, abs=2 if config.num_experts else 0)
    assert step.flops == flops


def test_experts_that_a_batch_touches():
    """As many as a simulated router touches that chooses uniformly; one token touches those that it chooses, many tokens all."""
    config, random = named_config("qwen3-30b-a3b"), np.random.default_rng(0)
    for tokens in (1, 16, 64):
        drawn = [len(np.unique(random.random((tokens, 128)).argpartition(8, axis=1)[:, :8])) for _ in range(200)]
        assert touched_experts(config, tokens) == pytest.approx(np.mean(drawn), rel=0.01)
    assert touched_experts(config, 1) == pytest.approx(8) and touched_experts(config, 10**4) == 128
    assert costs.active_parameters(config) == 30_532_122_624 - 48 * 120 * 3 * 2048 * 768  # Qwen says 3.3 billion
    assert costs.active_parameters(named_config("llama-3.1-8b")) == 8_030_261_248


def test_ranks_divide_each_expert_and_not_their_number():
    """9 experts on 2 ranks are two halves of each; widths that are not whole on every rank are refused by name, the shared expert's too."""
    config = parse_model_config(FAMILIES["qwen3_moe"])
    part = costs.shard(config, 2)
    assert (part.num_experts, part.intermediate_size) == (9, 28)
    with pytest.raises(InvalidOptionError, match="degree of 2 does not divide this model: .* an inner width of 57"):
        costs.shard(replace(config, intermediate_size=57), 2)
    shared = parse_model_config(FAMILIES["qwen2_moe"])
    with pytest.raises(InvalidOptionError, match="degree of 2 does not divide .* width of 24, 57 in the shared expert"):
        costs.shard(replace(shared, shared_expert_intermediate_size=57), 2)


def test_the_stages_of_experts_by_hand():
    """4 experts of width 3 on 5 hidden elements, 2 per token, 2 layers; 2 tokens touch 4 (1 - 1/4) = 3 of them; 16 bits."""
    values = dict(SMALL, model_type="qwen2_moe", hidden_size=5, num_hidden_layers=2, moe_intermediate_size=3, num_experts=4)
    config = parse_model_config(values | dict(num_experts_per_tok=2, shared_expert_intermediate_size=7, head_dim=2))
    stages = {stage.name: stage for stage in costs.decode_stages(config, batch=2, context=1)}
    assert touched_experts(config, 2) == 3
    assert stages["router"].weight_bytes == 2 * 2 * (4 + 1) * 5  # with the gate of the shared expert
    assert stages["router"].flops == 2 * 2 * 2 * (4 + 1) * 5
    assert stages["expert up projections"].weight_bytes == 2 * 2 * 3 * (2 * 3 * 5)
    assert stages["expert down projections"].weight_bytes == 2 * 2 * 3 * (3 * 5)
    assert stages["expert up projections"].flops == 2 * 2 * (2 * 2) * (2 * 3 * 5)
    assert stages["shared expert up projection"].weight_bytes == 2 * 2 * (2 * 7 * 5)
    router = next(one for one in costs.decode_stages(named_config("qwen3-30b-a3b")) if one.name == "router")
    assert router.weight_bytes == 48 * 128 * 2048 * 2


def test_prefill_of_one_token_computes_what_a_decode_step_does():
    config = named_config("llama-3.2-1b")
    assert costs.prefill(config, 1).flops == costs.decode_step(config, 1, 1).flops


def test_a_prompt_twice_as_long_costs_twice_the_matrices_and_four_times_the_attention():
    config = named_config("llama-3.1-8b")
    head = 2 * costs.head_parameters(config)
    matrices = 2 * config.num_hidden_layers * costs.layer_matrix_parameters(config)
    attention = [costs.prefill(config, tokens).flops - head - tokens * matrices for tokens in (1024, 2048)]
    assert attention[1] / attention[0] == pytest.approx(4, rel=2e-3)


def test_a_sliding_window_bounds_the_keys_of_a_prefill():
    windowed = parse_model_config(FAMILIES["mistral"])
    whole = parse_model_config(dict(FAMILIES["mistral"], sliding_window=None))
    width = 4 * windowed.num_attention_heads * windowed.head_dim * windowed.num_hidden_layers
    hidden_keys = sum(max(0, i + 1 - 7) for i in range(20))
    assert costs.prefill(whole, 20).flops - costs.prefill(windowed, 20).flops == width * hidden_keys


def test_floor_is_the_slower_of_memory_and_arithmetic():
    cost = costs.Cost(bytes=4 * 10**9, flops=10**12)
    assert cost.floor_ms(4.0) == pytest.approx(1.0)
    assert cost.floor_ms(4.0, tflops=100) == pytest.approx(10.0)
    assert cost.arithmetic_intensity == pytest.approx(250)
