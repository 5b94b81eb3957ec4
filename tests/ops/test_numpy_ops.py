"""What NumpyOps adds to the references: dtypes, rounding, and the choice of the right one."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import torch

from minllm.errors import KernelArgumentError
from minllm.kernels.sampling.parameters import build_sampling_tensors
from minllm.kernels.sampling.tensors import SamplingTensors
from minllm.ops.batch import AttentionConfig, Batch, LayerCache, NormWeights
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.ops.protocol import DraftOps, ForwardOps, SlotOps
from minllm.weights.formats import plain_linear

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
RELATIVE = {"float32": 2e-6, "float16": 2**-10, "bfloat16": 2**-7}


@pytest.fixture(params=DTYPES)
def ops(request):
    return NumpyOps(request.param)


def random(ops, *shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(ops.dtype)


def check(ops, actual, expected):
    """In the activations' dtype, and as near to the float64 result as its rounding allows."""
    assert actual.dtype == ops.dtype
    np.testing.assert_allclose(actual.astype(np.float64), expected, rtol=0, atol=4 * RELATIVE[ops.dtype.name] * np.abs(expected).max())


def test_dtypes_by_name_and_as_numpy_has_them():
    for name, dtype in DTYPES.items():
        assert NumpyOps(name).dtype == NumpyOps(dtype).dtype == dtype
    for wrong in ("float64", "int8", np.float64, "half"):
        with pytest.raises(KernelArgumentError, match="float32, float16, bfloat16"):
            NumpyOps(wrong)


def test_weights_are_rounded_and_kept_as_float32(ops):
    values = np.random.default_rng(0).standard_normal((5, 3))
    weight = ops.weight(values.T)
    assert weight.dtype == np.float32 and weight.flags.c_contiguous
    np.testing.assert_array_equal(weight, values.T.astype(ops.dtype).astype(np.float32))


def test_a_weight_is_a_copy():
    values = np.ones((2, 2), np.float32)
    weight = NumpyOps("float32").weight(values)
    values[:] = 0
    assert weight.all()


@pytest.mark.parametrize("tokens", [1, 7])
def test_linear_and_feed_forwards(ops, tokens):
    x, hidden, intermediate = random(ops, tokens, 13), 13, 11
    up, down = random(ops, intermediate, hidden, seed=1), random(ops, hidden, intermediate, seed=2)
    up_bias, down_bias, gate = random(ops, intermediate, seed=3), random(ops, hidden, seed=4), random(ops, intermediate, hidden, seed=5)
    x64, up64, down64, up_bias64, down_bias64, gate64 = (a.astype(np.float64) for a in (x, up, down, up_bias, down_bias, gate))
    up_alone, both = plain_linear(ops.weight(up)), plain_linear(ops.weight(np.concatenate([gate, up])))
    up, down_alone = plain_linear(ops.weight(up), ops.weight(up_bias)), plain_linear(ops.weight(down))
    down = plain_linear(down_alone.weight, ops.weight(down_bias))
    check(ops, ops.linear(x, up), x64 @ up64.T + up_bias64)
    check(ops, ops.linear(x, up_alone), x64 @ up64.T)
    inner = x64 @ up64.T + up_bias64
    exact = 0.5 * inner * (1 + torch.erf(torch.tensor(inner / np.sqrt(2))).numpy())
    check(ops, ops.mlp(x, up, down, "gelu"), exact @ down64.T + down_bias64)
    tanh = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
    check(ops, ops.mlp(x, up, down, "gelu_tanh"), tanh @ down64.T + down_bias64)
    g = x64 @ gate64.T
    gated = g / (1 + np.exp(-g)) * (x64 @ up64.T)
    check(ops, ops.gated_mlp(x, both, down_alone, "silu"), gated @ down64.T)


def test_unknown_activations_are_refused():
    ops, x = NumpyOps(), np.zeros((1, 2), np.float32)
    wide, square, down = (plain_linear(np.zeros(shape, np.float32)) for shape in ((4, 2), (2, 2), (2, 4)))
    with pytest.raises(KernelArgumentError, match="silu"):
        ops.gated_mlp(x, wide, square, "relu")
    with pytest.raises(KernelArgumentError, match="gelu"):
        ops.mlp(x, wide, down, "silu")


@pytest.mark.parametrize("kind", ["rms_norm", "layer_norm"])
@pytest.mark.parametrize("with_residual", [True, False])
def test_norms_carry_the_residual(ops, kind, with_residual):
    x, residual, weight, bias = random(ops, 3, 20), random(ops, 3, 20, seed=1), random(ops, 20, seed=2), random(ops, 20, seed=3)
    norm = NormWeights(kind, ops.weight(weight), ops.weight(bias) if kind == "layer_norm" else None, 1e-3)
    normalised, new_residual = ops.add_norm(x, residual if with_residual else None, norm)
    total = (x.astype(np.float64) + residual.astype(np.float64)) if with_residual else x.astype(np.float64)
    check(ops, new_residual, total)
    rows = new_residual.astype(np.float64)
    if kind == "layer_norm":
        rows = rows - rows.mean(-1, keepdims=True)
    expected = rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-3) * weight.astype(np.float64)
    check(ops, normalised, expected + (bias.astype(np.float64) if kind == "layer_norm" else 0))


def test_logits_are_float32_and_of_the_wanted_rows_only(ops):
    x, residual, weight, head = random(ops, 6, 12), random(ops, 6, 12, seed=1), random(ops, 12, seed=2), random(ops, 9, 12, seed=3)
    norm = NormWeights("rms_norm", ops.weight(weight), None, 1e-6)
    normalised, _ = ops.add_norm(x, residual, norm)
    rows = np.array([4, 0], np.int32)
    logits = ops.logits(x, residual, norm, plain_linear(ops.weight(head)), rows)
    assert logits.dtype == np.float32 and logits.shape == (2, 9)
    np.testing.assert_allclose(logits, normalised[rows].astype(np.float64) @ head.astype(np.float64).T, rtol=1e-5, atol=1e-5)
    assert ops.logits(x, residual, norm, plain_linear(ops.weight(head)), np.zeros(0, np.int32)).shape == (0, 9)


def test_embedding_adds_positions_before_it_rounds(ops):
    table, places = random(ops, 10, 8), random(ops, 5, 8, seed=1)
    batch = one_token_batch(token=7, position=3)
    check(ops, ops.embed(batch, ops.weight(table)), table[[7]].astype(np.float64))
    expected = (table[[7]].astype(np.float64) + places[[3]].astype(np.float64)).astype(ops.dtype)
    np.testing.assert_array_equal(ops.embed(batch, ops.weight(table), ops.weight(places)), expected)


def one_token_batch(token: int, position: int) -> Batch:
    def array(*values):
        return np.array(values, np.int32)

    return Batch(
        array(token), array(position), array(position), array(0, 1), array(position + 1), array(0)[None], array(0), 1, position + 1
    )


def test_one_head_of_attention_by_hand(ops):
    """Two keys, the second of the new token itself: the mean of the values, weighted by two exponentials."""
    config = AttentionConfig(heads=2, kv_heads=1, head_dim=4, scale=0.5)
    cache = LayerCache(ops.zeros((1, 8, 1, 4), ops.dtype), ops.zeros((1, 8, 1, 4), ops.dtype))
    first, second = random(ops, 1, 16), random(ops, 1, 16, seed=1)
    ops.qkv_rope_append(first, one_token_batch(0, 0), cache, config)
    query = ops.qkv_rope_append(second, one_token_batch(0, 1), cache, config)
    np.testing.assert_array_equal(query.reshape(1, 8), second[:, :8])
    keys = np.concatenate([first, second])[:, 8:12].astype(np.float64)
    values = np.concatenate([first, second])[:, 12:].astype(np.float64)
    weights = np.exp(0.5 * second[0, :8].reshape(2, 4).astype(np.float64) @ keys.T)
    expected = weights / weights.sum(-1, keepdims=True) @ values
    check(ops, ops.attention(query, cache, one_token_batch(0, 1), config), expected.reshape(1, 8))
    windowed = ops.attention(query, cache, one_token_batch(0, 1), replace(config, sliding_window=1))
    check(ops, windowed, np.concatenate([values[1], values[1]])[None])


def test_sampling_goes_to_the_sampler():
    class Greedy:
        temperature, top_k, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty, min_tokens, seed = (
            0.0, 0, 1.0, 0.0, 1.0, 0.0, 0.0, 0, 0,
        )  # fmt: skip
        logit_bias, allowed_token_ids = None, None

    tensors = build_sampling_tensors([Greedy(), Greedy()], 5)
    assert isinstance(tensors, SamplingTensors)
    logits = np.array([[0, 1, 5, 2, 3], [9, 1, 5, 2, 3]], np.float32)
    assert NumpyOps().sample(logits, tensors, np.arange(2)).tolist() == [2, 0]


@pytest.mark.parametrize("protocol", [ForwardOps, SlotOps, DraftOps])
def test_every_operation_of_a_protocol_is_implemented(protocol):
    names = [name for name in vars(protocol) if not name.startswith("_")]
    assert len(names) > 5
    for name in names:
        assert getattr(NumpyOps, name) is not getattr(protocol, name), name
        assert getattr(CudaOps, name) is not getattr(protocol, name), name
