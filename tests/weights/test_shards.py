"""What several GPUs load of a Linear, put together again: columns side by side, rows summed."""

import numpy as np
import pytest

from minllm.errors import InvalidOptionError
from minllm.models.config_reader import parse_model_config
from minllm.models.layout import layout_of
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.weights import WeightReader
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.shard import INPUTS, Shard
from minllm.weights.stored import Projection

SIZES = dict(
    vocab_size=37, hidden_size=24, intermediate_size=40, num_hidden_layers=1, num_attention_heads=8, num_key_value_heads=4, head_dim=6,
)  # fmt: skip
CONFIGS = {
    "qwen2": parse_model_config(dict(model_type="qwen2", **SIZES)),
    "gpt2": parse_model_config(dict(model_type="gpt2", vocab_size=37, n_embd=48, n_layer=1, n_head=8, n_inner=40, n_positions=16)),
}
OPS = NumpyOps()


def loaded(family, part, field, ranks):
    """(the whole Linear, those of all ranks)."""
    config = CONFIGS[family]
    layout = layout_of(config)
    stored = getattr(getattr(layout.model.layers[0], part), field)
    reader = WeightReader(OPS, RandomCheckpoint(config), layout)
    return reader.linear(stored), [reader.linear(stored, rank, ranks) for rank in range(ranks)]


def sections(config, field):
    """Outputs of each section of a stacked Linear that is cut by itself."""
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = config.intermediate_size
    return {"qkv": (query, key, key), "gate_up": (inner, inner), "up": (inner,)}[field]


COLUMN_PARALLEL = [("qwen2", "attention", "qkv"), ("qwen2", "mlp", "gate_up"), ("gpt2", "attention", "qkv"), ("gpt2", "mlp", "up")]


@pytest.mark.parametrize(("family", "part", "field"), COLUMN_PARALLEL)
@pytest.mark.parametrize("ranks", [2, 4])
def test_outputs_of_all_ranks_are_those_of_the_whole(family, part, field, ranks):
    """Each rank has the same heads of q, k and v, or the same rows of gate and up."""
    whole, parts = loaded(family, part, field, ranks)
    x = np.random.default_rng(0).normal(size=(3, whole.shape[1])).astype(np.float32)
    sizes = sections(CONFIGS[family], field)
    ends = np.cumsum([size // ranks for size in sizes])[:-1]
    found = [np.split(OPS.linear(x, one), ends, axis=1) for one in parts]  # [rank][section]
    together = np.concatenate([section for sections in zip(*found, strict=True) for section in sections], axis=1)
    np.testing.assert_allclose(together, OPS.linear(x, whole), rtol=1e-5, atol=1e-6)
    assert all(one.shape == one.weight.shape == (whole.shape[0] // ranks, whole.shape[1]) for one in parts)


ROW_PARALLEL = [("qwen2", "attention", "output"), ("gpt2", "attention", "output"), ("gpt2", "mlp", "down")]


@pytest.mark.parametrize(("family", "part", "field"), ROW_PARALLEL)
@pytest.mark.parametrize("ranks", [2, 4])
def test_results_of_all_ranks_add_up_to_the_whole(family, part, field, ranks):
    """The bias is added once."""
    whole, parts = loaded(family, part, field, ranks)
    x = np.random.default_rng(0).normal(size=(3, whole.shape[1])).astype(np.float32)
    summed = sum(OPS.linear(part_of_x, one) for part_of_x, one in zip(np.split(x, ranks, axis=1), parts, strict=True))
    np.testing.assert_allclose(summed, OPS.linear(x, whole), rtol=1e-4, atol=1e-5)
    assert [one.bias is not None for one in parts] == [whole.bias is not None] + [False] * (ranks - 1)


def test_more_ranks_than_kv_heads_share_them():
    """Eight ranks and four KV heads: ranks 2 i and 2 i + 1 hold KV head i, and a query head each."""
    whole, parts = loaded("qwen2", "attention", "qkv", 8)
    query, key, value = np.split(whole.weight, np.cumsum([48, 24]))
    for rank, one in enumerate(parts):
        rows, shared = slice(6 * rank, 6 * rank + 6), slice(6 * (rank // 2), 6 * (rank // 2) + 6)
        np.testing.assert_array_equal(one.weight, np.concatenate([query[rows], key[shared], value[shared]]))
        assert one.shape == one.weight.shape and one.bias.shape == (18,)


def test_what_does_not_divide_is_refused():
    with pytest.raises(InvalidOptionError, match="8 heads, rows or columns cannot be shared among 3 GPUs"):
        loaded("qwen2", "attention", "qkv", 3)


def test_tensors_with_an_element_for_several_numbers_are_cut_alike():
    """Scales of groups of 4 inputs, and codes of 8 outputs in a word, as quantised checkpoints have them."""
    one = Projection("q_proj", outputs=16, inputs=24, units=(2,))
    scales, words = np.arange(96).reshape(16, 6), np.arange(48).reshape(24, 2)
    np.testing.assert_array_equal(one.cut(scales, Shard(INPUTS, 1, 2), block=(1, 4)), scales[:, 3:])
    np.testing.assert_array_equal(one.cut(scales, Shard(rank=1, ranks=2), block=(1, 4)), scales[8:])
    np.testing.assert_array_equal(one.cut(words, Shard(rank=1, ranks=2), 1, 0, block=(8, 1)), words[:, 1:])
    assert one.cut(scales, Shard(rank=1, ranks=2), None, 0) is scales
    with pytest.raises(InvalidOptionError, match="q_proj has blocks of 8, and a cut at 12 or 24 would divide one"):
        one.cut(scales, Shard(INPUTS, 1, 2), block=(1, 8))
