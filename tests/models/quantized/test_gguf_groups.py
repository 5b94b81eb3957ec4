"""GGUF's groups of 32 as kernels read them: the numbers are those that the file is dequantised to."""

import numpy as np
import pytest

from minllm.errors import CheckpointError
from minllm.models.model import load_model
from minllm.models.source import open_source
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from tests.models.batches import logits_of
from tests.models.gguf.small_model import metadata, tensors
from tests.models.gguf.writer import Q4_0, Q4_1, Q8_0, Stored, gguf_bytes

KINDS = {"Q4_0": (Q4_0, 2, 16), "Q4_1": (Q4_1, 4, 16), "Q8_0": (Q8_0, 2, 32)}  # ggml's number, bytes of scales and of codes


def in_blocks(name, shape, seed=0):
    """A matrix of random blocks: float16 scales (and minimums), and codes."""
    number, scales, codes = KINDS[name]
    rng = np.random.default_rng(seed)
    blocks = np.zeros((shape[0] * shape[1] // 32, scales + codes), np.uint8)
    blocks[:, :scales] = rng.uniform(0.005, 0.01, (len(blocks), scales // 2)).astype(np.float16).view(np.uint8)
    blocks[:, scales:] = rng.integers(0, 256, (len(blocks), codes), np.uint8)
    return Stored(number, shape, blocks.tobytes())


def write(path, kind, others=None):
    """The small model with all matrices of its layer in one type, except for {part of a name: type}."""
    stored = tensors()
    for index, (name, one) in enumerate(stored.items()):
        if name.startswith("blk") and len(one.shape) == 2:
            found = next((other for part, other in (others or {}).items() if part in name), kind)
            stored[name] = in_blocks(found, one.shape, index)
    path.write_bytes(gguf_bytes(metadata(), stored))
    return open_source(path)


def load(source, ops, stored=True):
    """stored: with the groups as they are, else dequantised."""
    config = source.config()
    checkpoint = source.checkpoint(config)
    found = source.weight_format(config, checkpoint) if stored else None
    return load_model(source.path, ops, checkpoint=checkpoint, config=config, weight_format=found)


def linears(model):
    layer = model.weights.layers[0]
    return layer.attention.qkv, layer.attention.output, layer.mlp.gate_up, layer.mlp.down


@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_are_those_of_the_dequantised_file(kind, tmp_path):
    """The rows of q and k too, which the file permutes."""
    source, ops = write(tmp_path / "small.gguf", kind), NumpyOps()
    for ours, plain in zip(linears(load(source, ops)), linears(load(source, ops, stored=False)), strict=True):
        assert ours.format.name == kind
        np.testing.assert_array_equal(ours.format.dequantize(ours.weight), plain.weight)
        assert sum(one.nbytes for one in ours.weight if one is not None) == ours.format.matrix_bytes(*ours.shape)


@pytest.mark.results_only
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.covering("has_minimums")
@pytest.mark.parametrize("kind, has_minimums", [("Q4_1", True), ("Q4_0", False), ("Q8_0", False)])
def test_kernels_answer_as_the_dequantised_model_does(kind, has_minimums, tmp_path):
    source, tokens = write(tmp_path / "small.gguf", kind), [5, 1]
    ops, plain = CudaOps("float32", simulated=True), NumpyOps()
    expected = logits_of(plain, load(source, plain, stored=False), tokens)
    np.testing.assert_allclose(logits_of(ops, load(source, ops), tokens), expected, atol=1e-4 * np.abs(expected).max())


def test_a_linear_of_mixed_types_is_dequantised(tmp_path):
    source = write(tmp_path / "small.gguf", "Q4_1", {"attn_v": "Q8_0", "ffn_down": "Q8_0"})
    assert [one.format.name for one in linears(load(source, NumpyOps()))] == ["float32", "Q4_1", "Q4_1", "Q8_0"]


def test_a_scale_that_is_not_finite_is_refused(tmp_path):
    source = write(tmp_path / "small.gguf", "Q4_1")
    file = bytearray(source.path.read_bytes())
    begin = source._file.tensors["blk.0.ffn_down.weight"].begin
    file[begin + 2 : begin + 4] = np.float16(np.inf).tobytes()
    source.path.write_bytes(file)
    with pytest.raises(CheckpointError, match="ffn_down.weight' holds a scale that is NaN or infinite"):
        load(open_source(source.path), NumpyOps())
