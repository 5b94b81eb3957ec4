"""Experts as kernels in the simulator, against NumPy: decoded token by token, and in chunks that take either kind of kernel."""

import ml_dtypes
import numpy as np
import pytest

from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.normed_router import normed_router
from minllm.kernels.matmul.flat.deferred_norm import DeferredNorm
from minllm.models.decoder import forward
from minllm.ops import cuda_experts
from minllm.ops.cuda_ops import CudaOps
from minllm.ops.numpy_ops import NumpyOps
from minllm.ops.own_kernels import as_own_kernel
from minllm.ops.simulated_stage import SimulatedStageOps
from minllm.ops.streams import NormedStream
from minllm.weights.formats import WEIGHT_FORMATS
from tests.models.batches import PagedSequences
from tests.ops.small_models import small_model

pytestmark = [pytest.mark.results_only, pytest.mark.usefixtures("small_tiles")]


def greedy(ops, family, prompt, count):
    """The tokens of greatest probability after a prompt."""
    model, new, tokens = small_model(family, ops), prompt, []
    sequences = PagedSequences(ops, model.config, [len(prompt) + count])
    for _ in range(count):
        logits = ops.to_host(forward(ops, model, sequences.append([new], last_row_only=True), sequences.cache))
        new = [int(logits[-1].argmax())]
        tokens += new
    return tokens


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe"])
def test_greedy_tokens_are_those_of_numpy(family):
    prompt = [5, 1, 7, 36, 2]
    assert greedy(CudaOps("float32", simulated=True), family, prompt, 12) == greedy(NumpyOps("float32"), family, prompt, 12)


@pytest.mark.parametrize("make_ops", [
    lambda own: CudaOps("bfloat16", own, simulated=True),
    lambda own: SimulatedStageOps("bfloat16", {stage: as_own_kernel(stage, launcher) for stage, launcher in own.items()}),
])  # fmt: skip
def test_a_sort_of_ones_own_orders_the_experts(make_ops):
    """It gets all choices of a step, and the logits are those in the order of the package's sort."""
    sizes = []

    def sort(expert_ids, pairs, offsets, stream=None):
        sizes.append(expert_ids.shape)
        pairs[:], offsets[:] = sort_by_expert_reference(np.asarray(expert_ids), len(offsets) - 1)

    def logits(own):
        ops = make_ops(own)
        model = small_model("qwen3_moe", ops)
        sequences = PagedSequences(ops, model.config, [7])
        return ops.to_host(forward(ops, model, sequences.append([[5, 1, 7, 3, 2, 9, 4]]), sequences.cache)), model.config

    (ours, config), (theirs, _) = logits({"sort_by_expert": sort}), logits({})
    assert sizes == [(7, config.num_experts_per_tok)] * config.num_hidden_layers
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("family", "dtype", "tolerance"),
    [("experts of whole groups", "bfloat16", 4e-2), ("qwen3_moe", "float16", 6e-3), ("qwen2_moe", "bfloat16", 4e-2)],
)
def test_few_and_many_tokens_agree_with_numpy(family, dtype, tolerance):
    """One token and two take GEMVs, seven a sort and grouped GEMMs."""
    chunks = [[[5, 1, 7, 3], [2, 9, 4]], [[3], [9]]]

    def logits(ops):
        model = small_model(family, ops)
        sequences = PagedSequences(ops, model.config, [8, 8], block_size=4)
        return [ops.to_host(forward(ops, model, sequences.append(chunk), sequences.cache)) for chunk in chunks]

    for ours, theirs in zip(logits(CudaOps(dtype, simulated=True)), logits(NumpyOps(dtype)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * np.abs(theirs).max())


@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_quantised_experts_agree_with_numpy(name):
    """Codes are multiplied by GEMVs, fused with the norm and not, and by grouped GEMMs."""
    chunks = [[5, 1, 7, 3, 2, 9, 4], [3], [8, 6]]

    def logits(ops):
        model = small_model("experts of whole groups", ops, WEIGHT_FORMATS[name])
        assert model.weights.layers[0].mlp.gate_up.format.name == name
        sequences = PagedSequences(ops, model.config, [10], block_size=4)
        return [ops.to_host(forward(ops, model, sequences.append([chunk]), sequences.cache)) for chunk in chunks]

    for ours, theirs in zip(logits(CudaOps("bfloat16", simulated=True)), logits(NumpyOps("bfloat16")), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-2 * np.abs(theirs).max())


@pytest.mark.parametrize(("tokens", "next_norm", "fused"), [(7, True, True), (7, False, False), (3, True, False)])
def test_the_sum_of_experts_computes_the_next_norm(tokens, next_norm, fused):
    """If there is one, and grouped GEMMs compute the experts; the stream and its norm are those of the separate operations."""
    random = np.random.default_rng(tokens)
    x, residual = (random.standard_normal((tokens, 16)).astype(ml_dtypes.bfloat16) for _ in range(2))

    def stream(ops):
        layer = small_model("qwen3_moe", ops).weights.layers[0]
        mlp, after = layer.mlp, layer.attention.norm
        arrays, stacks = (ops.array(one.copy()) for one in (x, residual)), (mlp.router, mlp.gate_up, mlp.down)
        pair = ops.normed_experts(*arrays, mlp.norm, *stacks, mlp.routing, next_norm=after if next_norm else None)
        return pair[0], [ops.to_host(one).astype(np.float32) for one in ops.add_norm(*pair, after)]

    (begun, ours), (_, theirs) = stream(CudaOps("bfloat16", simulated=True)), stream(NumpyOps("bfloat16"))
    assert isinstance(begun, NormedStream) == fused
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-2 * np.abs(other).max())


@pytest.mark.parametrize("tokens", [3, 7])
def test_a_deferred_norm_is_finished_beside_the_routers_logits(tokens, monkeypatch):
    """In one kernel, before GEMVs and before grouped GEMMs."""
    launched = []
    monkeypatch.setattr(cuda_experts, "normed_router", lambda *arguments: launched.append(arguments) or normed_router(*arguments))
    stream = np.random.default_rng(tokens).standard_normal((tokens, 16)).astype(ml_dtypes.bfloat16)

    def after(ops, x):
        layer = small_model("qwen3_moe", ops).weights.layers[0]
        mlp = layer.mlp
        pair = ops.normed_experts(x, None, mlp.norm, mlp.router, mlp.gate_up, mlp.down, mlp.routing, next_norm=layer.attention.norm)
        return [one.astype(np.float32) for one in ops.add_norm(*pair, layer.attention.norm)]

    ours = after(CudaOps("bfloat16", simulated=True), DeferredNorm(stream.copy(), None, None, 1e-6))
    theirs = after(NumpyOps("bfloat16"), stream.copy())
    assert len(launched) == 1
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-2 * np.abs(other).max())
