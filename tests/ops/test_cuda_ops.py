"""The kernels' operations in the simulator, against the NumPy ones: the same small model, forward by forward."""

import ml_dtypes
import numpy as np
import pytest

from minllm import sim
from minllm.errors import KernelArgumentError
from minllm.kernels.sampling import build_sampling_tensors
from minllm.models.decoder import forward
from minllm.ops.batch import NormWeights
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.runtime.device import HOPPER
from minllm.weights import plain_kernels
from minllm.weights.formats import plain_linear
from tests.kernels.sampling.cases import RULES, parameters
from tests.models.batches import PagedSequences
from tests.ops.small_models import small_model

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]


TOLERANCE = {"float32": 2e-5, "bfloat16": 4e-2, "float16": 6e-3}


def logits_of(ops, family, chunks, last_row_only, cached=0):
    """The logits of steps of these tokens, behind `cached` tokens of each sequence whose keys and values are noise."""
    model, random = small_model(family, ops), np.random.default_rng(3)
    sequences = PagedSequences(ops, model.config, [8] * len(chunks[0]), block_size=4)
    sequences.lengths = [cached] * len(chunks[0])
    for layer in sequences.cache:
        layer.key[:], layer.value[:] = random.standard_normal((2, *layer.key.shape))
    return [ops.to_host(forward(ops, model, sequences.append(chunk, last_row_only), sequences.cache)) for chunk in chunks]


FORWARDS = [
    ("llama", "float32", False), ("gpt2", "float32", True), ("qwen3", "bfloat16", True), ("llama", "float16", True),
    ("gemma3", "bfloat16", True), ("gemma2", "float32", False),
]  # fmt: skip


@pytest.mark.parametrize(("family", "dtype", "last_row_only"), FORWARDS)
def test_forward_agrees_with_numpy(family, dtype, last_row_only):
    chunks = [[[5, 1, 7], [2]], [[3], [9]]]
    ours = logits_of(CudaOps(dtype, simulated=True), family, chunks, last_row_only)
    theirs = logits_of(NumpyOps(dtype), family, chunks, last_row_only)
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == np.float32 and our.shape == their.shape
        np.testing.assert_allclose(our, their, rtol=0, atol=TOLERANCE[dtype] * np.abs(their).max())


ALONE = [
    ("llama", "bfloat16"), ("gpt2", "float32"), ("qwen2", "float16"), ("qwen3", "bfloat16"), ("gemma3", "float16"), ("gemma2", "bfloat16"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "dtype"), ALONE)
def test_one_sequence_alone_agrees_with_numpy(family, dtype):
    """Where norm, residual and cache write are fused with the products, as far as the family allows."""
    [our] = logits_of(CudaOps(dtype, simulated=True), family, [[[3]]], True, cached=4)
    [their] = logits_of(NumpyOps(dtype), family, [[[3]]], True, cached=4)
    np.testing.assert_allclose(our, their, rtol=0, atol=TOLERANCE[dtype] * np.abs(their).max())


@pytest.mark.parametrize(("rows", "kernels"), [(1, 6), (2, 9)])
def test_one_sequence_alone_takes_fewer_kernels(rows, kernels, launches, monkeypatch):
    """Four a layer instead of seven, and attention's two; before and behind the layers embedding, norm where it is apart, and head."""
    monkeypatch.setattr(sim, "simulate", lambda kernel, *arguments, **options: launches.append(kernel.__name__))
    logits_of(CudaOps("float32", simulated=True), "llama", [[[5]] * rows], True)
    layers = small_model("llama", NumpyOps("float32")).config.num_hidden_layers
    assert len(launches) == 2 + (rows > 1) + kernels * layers


@pytest.mark.covering("capability")  # bfloat16; the flat GEMMs' own tests cover both dtypes
@pytest.mark.parametrize("capability", [HOPPER])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_some_sequences_together_agree_with_numpy_and_take_fewer_kernels(dtype, capability, launches):
    """Five kernels per layer on Hopper; the first layer's norm, the last one's and the head's are apart, and so is the embedding."""
    ops = CudaOps(dtype, simulated=True)
    ops.capability = capability
    [our] = logits_of(ops, "llama, wide", [[[3], [9], [1]]], True, cached=4)
    [their] = logits_of(NumpyOps(dtype), "llama, wide", [[[3], [9], [1]]], True, cached=4)
    np.testing.assert_allclose(our, their, rtol=0, atol=TOLERANCE[dtype] * np.abs(their).max())
    assert len(launches) == 1 + 1 + 2 * 5 + 1 + 1


BY_NAME = [
    {"attention": "flash_attention_1"},
    {"attention": "split_kv", "matmul": "naive"},
    {"attention": "split_tensor_core"},
    {"attention": "materialized", "matmul": "gemv"},
]


@pytest.mark.covering("stages")
@pytest.mark.parametrize(("variants", "stages"), [(variants, " and ".join(variants)) for variants in BY_NAME], ids=str)
def test_variants_by_name_give_the_same(variants, stages):
    chunks = [[[5, 1, 7], [2]], [[3], [9]]]
    ours = logits_of(CudaOps("float32", variants, simulated=True), "llama", chunks, True)
    theirs = logits_of(NumpyOps("float32"), "llama", chunks, True)
    np.testing.assert_allclose(np.concatenate(ours), np.concatenate(theirs), rtol=0, atol=2e-5 * np.abs(theirs[0]).max())


@pytest.mark.parametrize(
    ("product", "name"), [("gemv", "gated_gemv"), ("flat", "gated_flat"), ("wgmma", "matmul_silu_and_multiply"), ("tensor_core", None)]
)
def test_a_gate_is_fused_with_the_product_that_is_chosen_or_asked_for(product, name, monkeypatch):
    fused, launchers = [], {one: getattr(plain_kernels, one) for one in ("gated_gemv", "gated_flat", "matmul_silu_and_multiply")}
    for one, launch in launchers.items():
        monkeypatch.setattr(plain_kernels, one, lambda *arguments, one=one, launch=launch: (fused.append(one), launch(*arguments)))
    random = np.random.default_rng(2)
    x, gate_up, down = (random.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((5, 16), (48, 16), (16, 24)))
    gate_up, down = plain_linear(gate_up), plain_linear(down)
    expected = NumpyOps("bfloat16").gated_mlp(x, gate_up, down, "silu").astype(np.float32)
    for chosen, variants in ((product, None), ("naive", {"matmul": product})):
        kernels = plain_kernels.KERNELS._replace(choose=lambda x, weight, chosen=chosen: chosen)
        monkeypatch.setitem(vars(gate_up.format), "kernels", kernels)
        found = CudaOps("bfloat16", variants, simulated=True).gated_mlp(x, gate_up, down, "silu").astype(np.float32)
        np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE["bfloat16"] * np.abs(expected).max())
    assert fused == ([name] * 2 if name else [])


def test_unknown_variants_and_dtypes_are_refused():
    with pytest.raises(KernelArgumentError, match="no attention kernel 'magic'"):
        CudaOps("float32", {"attention": "magic"}, simulated=True)
    with pytest.raises(KernelArgumentError, match="matmul, attention, all_reduce"):
        CudaOps("float32", {"softmax": "naive"}, simulated=True)
    with pytest.raises(KernelArgumentError, match="float32, float16, bfloat16"):
        CudaOps("float64", simulated=True)


def test_samples_are_those_of_numpy():
    logits = np.random.default_rng(0).normal(0, 3, (2, 111)).astype(np.float32)
    sampling = build_sampling_tensors([parameters(**RULES[0]), parameters(**RULES[8])], 111)
    slots = np.arange(2, dtype=np.int32)
    found = CudaOps("float32", simulated=True).sample(logits, sampling, slots)
    np.testing.assert_array_equal(found, NumpyOps().sample(logits, sampling, slots))


def test_wanted_rows_only():
    ops, numpy_ops = CudaOps("float32", simulated=True), NumpyOps("float32")
    random = np.random.default_rng(1)
    x, residual = (random.normal(size=(5, 16)).astype(np.float32) for _ in range(2))
    norm = NormWeights("rms_norm", random.normal(size=16).astype(np.float32), None, 1e-5)
    head = plain_linear(random.normal(size=(7, 16)).astype(np.float32))
    for rows in ([1, 4], [0], [0, 1, 2, 3, 4]):
        rows = np.array(rows, np.int32)
        expected = numpy_ops.logits(x, residual, norm, head, rows)
        np.testing.assert_allclose(ops.logits(x.copy(), residual.copy(), norm, head, rows), expected, rtol=1e-5, atol=1e-5)
