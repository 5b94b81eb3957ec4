"""A new weight format is a file (sign_and_scale.py) and a line in the table; everything else finds it there."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from minllm import LLM, costs
from minllm.cli import app as cli
from minllm.engine.build import memory_budget
from minllm.errors import InvalidOptionError, OutOfMemoryError
from minllm.models.config_reader import read_model_config
from minllm.models.decoder import forward
from minllm.models.layout import layout_of
from minllm.models.model import load_model
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import named_config
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.weights.formats import WEIGHT_FORMATS
from tests.engine.models import model_directory
from tests.models.batches import PagedSequences
from tests.ops.small_models import small_config
from tests.weights.sign_and_scale import SIGN_AND_SCALE

CONFIG = named_config("llama-3.1-8b")
PROMPT = [5, 1, 7, 2]


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(WEIGHT_FORMATS, "toy", SIGN_AND_SCALE)


def stands_for(matrix: np.ndarray) -> np.ndarray:
    """What is left of a matrix [outputs, inputs]."""
    return SIGN_AND_SCALE.dequantize(SIGN_AND_SCALE.encode(matrix)).astype(matrix.dtype)


class Twin(RandomCheckpoint):
    """A plain checkpoint of the numbers that the format keeps."""

    def __init__(self, config):
        super().__init__(config)
        self.matrices = {
            projection.name + ".weight": projection.transposed
            for layer in layout_of(config).model.layers
            for linear in (layer.attention.qkv, layer.attention.output, *(v for v in vars(layer.mlp).values() if hasattr(v, "projections")))
            for projection in linear.projections
        }

    def tensor(self, name):
        tensor = super().tensor(name).astype(np.float32)
        if name not in self.matrices:
            return tensor
        return stands_for(tensor.T).T if self.matrices[name] else stands_for(tensor)


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.results_only
@pytest.mark.covering("family", "machine")
@pytest.mark.parametrize("family", ["llama", "qwen2", "gpt2"])
@pytest.mark.parametrize("machine", ["NumPy", "simulator"])
def test_a_model_computes_what_its_dequantised_twin_does(family, machine, tmp_path):
    """A prompt and a decode step; the simulator's kernel sums as the naive GEMM does, so that not a bit differs."""
    config, found = small_config(family, tmp_path), []
    for options, checkpoint in (({}, Twin(config)), (dict(weight_format=SIGN_AND_SCALE), RandomCheckpoint(config))):
        ops = NumpyOps() if machine == "NumPy" else CudaOps("float32", {"matmul": "naive"}, simulated=True)
        model = load_model(tmp_path, ops, checkpoint=checkpoint, **options)
        sequences = PagedSequences(ops, config, [8], block_size=4)
        found.append([ops.to_host(forward(ops, model, sequences.append([chunk]), sequences.cache)) for chunk in (PROMPT, [3])])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_engine_loads_a_checkpoint_in_it(tmp_path):
    """With a tokenizer, a cache and generation; its plain twin writes the same text."""
    directory = shutil.copytree(model_directory("small"), tmp_path / "twin")
    tensors = load_file(directory / "model.safetensors")
    matrices = [name for name in tensors if "layers" in name and tensors[name].ndim == 2]
    save_file(tensors | {name: stands_for(tensors[name]) for name in matrices}, directory / "model.safetensors")
    with LLM(model_directory("small"), device="cpu", quantization="toy") as llm, LLM(directory, device="cpu") as twin:
        assert llm.engine.model.weights.layers[0].attention.qkv.weight.signs.dtype == np.int8
        assert llm.engine.model.weights.lm_head.format.name == "float32"
        np.testing.assert_array_equal(llm.logits(PROMPT), twin.logits(PROMPT))
        assert llm.generate([PROMPT])[0].outputs[0].token_ids == twin.generate([PROMPT])[0].outputs[0].token_ids


def test_the_option_names_it(monkeypatch):
    with pytest.raises(InvalidOptionError, match="quantization='int3' is not allowed: quantization is None or one of .*, toy"):
        LLM(device="cpu", quantization="int3")
    monkeypatch.delitem(WEIGHT_FORMATS, "toy")
    with pytest.raises(InvalidOptionError, match="quantization='toy' is not allowed"):
        LLM(device="cpu", quantization="toy")


def test_costs_and_the_memory_budget_count_its_scales(monkeypatch):
    layers, rows = CONFIG.num_hidden_layers, 6144 + 4096 + 2 * 14336 + 4096
    matrices = layers * costs.layer_matrix_parameters(CONFIG)
    expected = 2 * (costs.parameter_count(CONFIG) - matrices) + matrices + 4 * layers * rows
    assert costs.weight_bytes(CONFIG, 2, weight_format=SIGN_AND_SCALE) == expected
    assert layout_of(CONFIG, weight_format=SIGN_AND_SCALE).weight_bytes(2) == expected
    step = costs.decode_step(CONFIG, 1, 1, weight_format=SIGN_AND_SCALE)
    assert costs.decode_step(CONFIG, 1, 1).bytes - step.bytes == matrices - 4 * layers * rows
    config = read_model_config(model_directory("small"))
    needed = costs.weight_bytes(config, 4, weight_format=SIGN_AND_SCALE)
    monkeypatch.setattr(memory_budget, "available_host_bytes", lambda: needed)
    memory_budget.check_weights_fit("cpu", NumpyOps(), config, SIGN_AND_SCALE)
    monkeypatch.setattr(memory_budget, "available_host_bytes", lambda: needed - 1)
    with pytest.raises(OutOfMemoryError, match=f"take {needed:,} bytes, most of it as toy, and {needed - 1:,} of this machine's memory"):
        memory_budget.check_weights_fit("cpu", NumpyOps(), config, SIGN_AND_SCALE)


def test_it_can_be_planned():
    result = CliRunner().invoke(cli.app, ["plan", "llama-3.1-8b", "--gpu", "h200", "--dtype", "toy", "--kv-dtype", "bf16"])
    assert result.exit_code == 0 and "9.09 GB: 8.03 billion numbers in toy" in result.stdout and "bf16, measured cuBLAS" in result.stdout
