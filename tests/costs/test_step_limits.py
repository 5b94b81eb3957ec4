"""The limits of a step: ordered as memory and formats are, and those that steps with 16-bit weights were measured with."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm import costs
from minllm.cache.capacity import activation_bytes
from minllm.costs.stages import forward_stages
from minllm.costs.step_limits import StepLimits, step_limits
from minllm.costs.step_time import StepRates, product_seconds
from minllm.machine.hardware import GPUS, gpu_named
from minllm.models.parts.terms import Sizes
from minllm.models.shapes import SHAPES, named_config
from minllm.planning.plan import ridge_batch
from minllm.weights.formats import WEIGHT_FORMATS

LLAMA, H200 = named_config("llama-3.1-8b"), GPUS["NVIDIA H200"]
AMPLE = 10**11
KV_TOKEN = 131072  # bytes of a token of Llama 3.1 8B: 2 * 32 layers * 8 heads * 128 * 2
shapes, formats, gpus = (st.sampled_from(sorted(names)) for names in (SHAPES, WEIGHT_FORMATS, GPUS))
rooms, kv_bytes = st.integers(-(10**11), 2 * 10**11), st.integers(1, 10**6)


def limits(name="bfloat16", room=AMPLE, gpu=H200, kv_token=KV_TOKEN, config=LLAMA):
    return step_limits(config, WEIGHT_FORMATS[name], kv_token, room, gpu)


@given(shapes, formats, kv_bytes, rooms, gpus)
def test_limits_are_possible(shape, name, kv_token, room, gpu):
    sequences, tokens = limits(name, room, GPUS[gpu], kv_token, named_config(shape))
    assert 1 <= sequences < tokens and tokens % 512 == 0


@given(shapes, formats, kv_bytes, st.integers(1, 10**11), st.integers(0, 10**11), gpus)
def test_more_memory_and_smaller_caches_lower_no_limit(shape, name, kv_token, room, more, gpu):
    config, gpu = named_config(shape), GPUS[gpu]
    less = limits(name, room, gpu, kv_token, config)
    for other in (limits(name, room + more, gpu, kv_token, config), limits(name, room, gpu, -(-kv_token // 2), config)):
        assert other.sequences >= less.sequences and other.tokens >= less.tokens


@given(shapes, formats, kv_bytes, st.integers(1, 10**11), gpus)
def test_activations_leave_three_quarters_and_every_sequence_has_room(shape, name, kv_token, room, gpu):
    config = named_config(shape)
    sequences, tokens = limits(name, room, GPUS[gpu], kv_token, config)
    sizes = config.hidden_size, costs.widest_activation(config), config.vocab_size, WEIGHT_FORMATS[name].itemsize
    assert tokens == 512 or 4 * activation_bytes(tokens, tokens // 8, *sizes) <= room
    assert sequences == 32 or 64 * kv_token * sequences <= room


@pytest.mark.parametrize("gpu", [None, *GPUS])
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int4", "int4_g128", "nf4"])
def test_weights_that_16_bit_instructions_multiply_keep_the_measured_limits(name, gpu):
    assert limits(name, gpu=GPUS.get(gpu)) == limits(name, room=-1, gpu=GPUS.get(gpu)) == StepLimits(256, 2048)


def test_codes_need_tensor_cores_for_them():
    assert limits("fp8") == limits("int8") == limits("int8", gpu=None) == StepLimits(512, 2048)
    assert limits("int8", gpu=gpu_named("v100")[1]) == limits("fp8", gpu=gpu_named("a100")[1]) == StepLimits(256, 2048)
    assert limits("fp8", config=named_config("qwen3-30b-a3b")) == StepLimits(256, 2048)


def test_decodes_of_codes_take_no_longer_than_those_in_16_bits():
    """GEMMs by the fitted times, in which reads and launches count too."""
    rates, seconds = StepRates.of(H200.ceiling_tb_s, H200.measured_bf16_tflops), {}
    for name in ("bfloat16", "fp8"):
        sequences, weights = limits(name).sequences, WEIGHT_FORMATS[name]
        stages = forward_stages(LLAMA, Sizes(sequences, sequences, visible=0, read=0, weight_format=weights))
        projections = [stage for stage in stages if "projection" in stage.name]
        seconds[name] = sum(product_seconds(stage, sequences, LLAMA.num_hidden_layers, rates, weights) for stage in projections)
    assert 0.5 * seconds["bfloat16"] < seconds["fp8"] <= seconds["bfloat16"]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", ["bfloat16", "int8"])
def test_gemms_of_a_full_step_are_bound_by_arithmetic(name, gpu):
    """By four times the ridge of the data sheet, at whose rates minllm plan computes it."""
    one = replace(GPUS[gpu], measured_copy_tb_s=None)
    rate = one.bf16_tflops or one.fp16_tflops if name == "bfloat16" else one.int8_tops or one.fp16_tflops
    assert limits(name, gpu=one).tokens > 4 * ridge_batch(LLAMA, WEIGHT_FORMATS[name].matrix_itemsize, rate, one.ceiling_tb_s)
