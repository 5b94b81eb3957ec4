"""The arithmetic of batching: a mixed step's counts are those of costs/stages.py, and the queueing laws hold where they are known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm.costs import decode_step, prefill
from minllm.costs.serving import Load, StepCosts
from minllm.models.config_reader import parse_model_config
from minllm.models.shapes import named_config

BANDWIDTH, TFLOPS = 4.0, 800.0
WINDOWED = parse_model_config(
    dict(model_type="mistral", vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=8,
         num_key_value_heads=2, sliding_window=50)
)  # fmt: skip
CONFIGS = {"8b": named_config("llama-3.1-8b"), "gpt2": named_config("gpt2"), "qwen": named_config("qwen3-8b"), "windowed": WINDOWED}
CONFIGS |= {"experts": named_config("qwen3-30b-a3b")}
NO_ARITHMETIC, NO_MEMORY = 1e12, 1e12  # rates at which the other one is all that counts

every_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)


@every_config
@given(batch=st.integers(1, 300), context=st.integers(1, 5000))
def test_a_step_of_decodes_moves_and_computes_what_a_decode_step_does(config, batch, context):
    cost = decode_step(config, batch, context)
    assert StepCosts.of(config, BANDWIDTH, NO_ARITHMETIC).seconds([context] * batch) == pytest.approx(cost.bytes / (BANDWIDTH * 1e12))
    assert StepCosts.of(config, NO_MEMORY, TFLOPS).seconds([context] * batch) == pytest.approx(cost.flops / (TFLOPS * 1e12))


@every_config
@given(tokens=st.integers(1, 5000), sequences=st.integers(1, 4))
def test_a_step_of_prompts_moves_and_computes_what_a_prefill_does(config, tokens, sequences):
    cost, chunks = prefill(config, tokens, sequences=sequences), [(0, tokens)] * sequences
    assert StepCosts.of(config, BANDWIDTH, NO_ARITHMETIC).seconds([], chunks) == pytest.approx(cost.bytes / (BANDWIDTH * 1e12))
    assert StepCosts.of(config, NO_MEMORY, TFLOPS).seconds([], chunks) == pytest.approx(cost.flops / (TFLOPS * 1e12))


@every_config
@given(first=st.integers(1, 500), second=st.integers(1, 500))
def test_two_chunks_do_the_arithmetic_of_one(config, first, second):
    costs = StepCosts.of(config, NO_MEMORY, TFLOPS)
    apart = costs.seconds([], [(0, first)], num_sampled=0) + costs.seconds([], [(first, second)])
    assert apart == pytest.approx(costs.seconds([], [(0, first + second)]))


def test_decodes_beside_a_prompt_read_the_weights_once():
    costs = StepCosts.of(CONFIGS["8b"], BANDWIDTH, TFLOPS)
    together, apart = costs.seconds([500] * 8, [(0, 64)]), costs.seconds([500] * 8) + costs.seconds([], [(0, 64)])
    assert apart - together == pytest.approx(costs.fixed_bytes / (BANDWIDTH * 1e12))


def test_the_ridge_is_where_bytes_and_flops_take_equally_long():
    costs = StepCosts.of(CONFIGS["8b"], 4.273, 818.6)
    below, above = (costs.linear_seconds(tokens, tokens) for tokens in (0.9 * costs.ridge, 1.1 * costs.ridge))
    assert 150 < costs.ridge < 250
    assert below == pytest.approx((costs.fixed_bytes + 0.9 * costs.ridge * costs.token_bytes) / costs.bytes_per_s)
    assert above == pytest.approx(1.1 * costs.ridge * (costs.token_flops + costs.row_flops) / costs.flops_per_s)


def load(prompts=(512,), outputs=(128,), **settings):
    return Load(StepCosts.of(CONFIGS["8b"], 4.273, 818.6), prompts, outputs, **settings)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=5), st.lists(st.integers(1, 600), min_size=1, max_size=5), st.floats(0.01, 0.99))
def test_the_laws_agree_with_each_other(prompts, outputs, share):
    """n sequences, each decoding for o TPOT seconds (Little), make the step that gives this TPOT."""
    found = load(tuple(prompts), tuple(outputs))
    rate = share * found.capacity
    step = found.empty_step + found.per_decode * found.num_running(rate)
    assert found.tpot(rate) == pytest.approx(step / (1 - rate * found.prefill_seconds))
    assert found.empty_step < found.tpot(rate) and found.prefill_seconds < found.ttft(rate)


@given(st.integers(1, 3000), st.integers(1, 600), st.integers(1, 400))
def test_at_capacity_every_slot_decodes(prompt, output, slots):
    found = load((prompt,), (output,), max_num_seqs=slots)
    assert found.num_running(found.capacity * (1 - 1e-9)) == pytest.approx(min(slots, found.step.ridge), rel=1e-5)
    assert found.tpot(found.capacity) == found.wait(found.capacity) == found.ttft(found.capacity) == math.inf


def test_equal_prompts_wait_half_as_long_as_a_single_server_with_exponential_ones():
    """M/D/1: the wait is rho S / (2 (1 - rho)); Pollaczek and Khinchine."""
    found = load()
    rate = 0.5 * found.capacity
    busy = rate * found.prefill_seconds
    assert found.wait(rate) == pytest.approx(busy * found.prefill_seconds / (2 * (1 - busy)))
    assert load((64, 960)).wait(rate) > found.wait(rate), "the same mean, more spread"


def test_longer_answers_are_decoded_at_longer_contexts():
    assert load((100,), (200,)).context == 200 and load((100,), (1, 399)).context == pytest.approx(100 + (1 + 399**2) / 800)
