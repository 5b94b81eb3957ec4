"""Quantised experts: GEMVs and grouped GEMMs over codes against float64, and the weights that they refuse."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.experts.codes import CodeKind, codes_of
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.gather_gemv import down_gemv, gate_up_gemv
from minllm.kernels.experts.grouped_gemm import GroupedTiling, grouped_down, grouped_gate_up
from minllm.kernels.experts.reference import route_reference
from minllm.kernels.quantization.fp8 import FP8
from minllm.kernels.quantization.int4 import INT4
from minllm.weights.formats import WEIGHT_FORMATS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
EXPERTS, CHOSEN, HIDDEN, INNER = 4, 2, 96, 32
TILING = GroupedTiling(64, 8, 4, 1, 2)
FORMATS = {"int4": dict(float32=1e-6, bfloat16=8e-3), "fp8": dict(float32=1e-6, bfloat16=8e-3)}


def silu(x):
    return x / (1 + np.exp(-x))


def case(name, dtype, tokens):
    """(x, logits, expert_ids, weights, gate_up, down), and in float64 what is activated per pair, and a function of the outputs."""
    random, form = np.random.default_rng(tokens), WEIGHT_FORMATS[name]
    x = random.standard_normal((tokens, HIDDEN)).astype(dtype)
    logits = random.standard_normal((tokens, EXPERTS)).astype(np.float32)
    logits[:, -1] = -9  # the last expert has no token
    expert_ids, weights = route_reference(logits, CHOSEN, normalized=True)
    gate_up = form.encode(random.standard_normal((EXPERTS * 2 * INNER, HIDDEN)).astype(np.float32))
    down = form.encode(random.standard_normal((EXPERTS * HIDDEN, INNER)).astype(np.float32))
    of_gate_up = form.dequantize(gate_up).astype(np.float64).reshape(EXPERTS, 2, INNER, HIDDEN)
    of_down = form.dequantize(down).astype(np.float64).reshape(EXPERTS, HIDDEN, INNER)
    activated = np.empty((tokens, CHOSEN, INNER))
    for token, ids in enumerate(expert_ids):
        for place, expert in enumerate(ids):
            gate, up = of_gate_up[expert] @ x[token].astype(np.float64)
            activated[token, place] = silu(gate) * up

    def projected(rows):
        """Outputs [tokens, CHOSEN, HIDDEN] of rows [tokens, CHOSEN, INNER]."""
        return np.einsum("tkhi,tki->tkh", of_down[expert_ids], rows.astype(np.float64))

    return x, logits, expert_ids, weights, gate_up, down, activated, projected


def assert_close(got, right, tolerance):
    np.testing.assert_allclose(got.astype(np.float64), right, rtol=0, atol=tolerance * np.abs(right).max())


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), BFLOAT16], ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_gemvs_are_those_of_float64(name, dtype):
    x, logits, _, weights, gate_up, down, right, projected = case(name, dtype, 3)
    activated, out = np.empty((3 * CHOSEN, INNER), dtype), np.empty((3, HIDDEN), dtype)
    gate_up_gemv(x, logits, gate_up, activated)
    assert_close(activated.reshape(right.shape), right, FORMATS[name][dtype.name])
    down_gemv(activated, logits, True, down, out)
    sums = (weights[..., None] * projected(activated.reshape(right.shape))).sum(axis=1)
    assert_close(out, sums, FORMATS[name][dtype.name])


@pytest.mark.parametrize("name", FORMATS)
def test_grouped_gemms_are_those_of_float64(name):
    """An expert has more pairs than a tile, and one has none."""
    x, _, expert_ids, _, gate_up, down, right, projected = case(name, BFLOAT16, 14)
    pairs, offsets = sort_by_expert_reference(expert_ids, EXPERTS)
    assert max(np.diff(offsets)) > TILING.tokens and 0 in np.diff(offsets)
    activated, out = np.empty((len(pairs), INNER), BFLOAT16), np.empty((len(pairs), HIDDEN), BFLOAT16)
    grouped_gate_up(x, pairs, offsets, gate_up, activated, tiling=TILING)
    in_order = np.empty_like(activated)
    in_order[pairs] = activated
    assert_close(in_order.reshape(right.shape), right, 1e-2)
    grouped_down(activated, pairs, offsets, down, out, tiling=TILING)
    assert_close(out.reshape(*right.shape[:2], HIDDEN), projected(in_order.reshape(right.shape)), 1e-2)


@pytest.mark.parametrize("name", FORMATS)
def test_a_pair_has_the_same_bits_among_others_and_alone(name):
    x, _, expert_ids, _, gate_up, *_ = case(name, BFLOAT16, 14)

    def activated(tokens):
        pairs, offsets = sort_by_expert_reference(expert_ids[tokens], EXPERTS)
        out, in_order = np.empty((2, len(pairs), INNER), BFLOAT16)
        grouped_gate_up(np.ascontiguousarray(x[tokens]), pairs, offsets, gate_up, out, tiling=TILING)
        in_order[pairs] = out
        return in_order

    assert activated([5]).tobytes() == activated(list(range(14)))[10:12].tobytes()


def test_what_is_no_weight_of_experts_is_refused():
    matrix = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)
    int4, fp8 = (WEIGHT_FORMATS[name].encode(matrix) for name in ("int4", "fp8"))
    assert codes_of("weight", int4, 64)[0] == CodeKind(INT4, 32) and codes_of("weight", fp8, 64)[0] == CodeKind(FP8, 0)
    wrong = {
        "zero points or minimums": (WEIGHT_FORMATS["int4_zeros"].encode(matrix), 64),
        "rows of 24 codes; in fp8 they are multiples of 16": (fp8._replace(codes=fp8.codes[:, :24].copy()), 24),
        "its shape must be": (fp8, 128),
        "groups are multiples of 32": (int4._replace(scales=np.ones((4, 8), np.float16)), 64),
        "its dtype must be float16": (int4._replace(scales=int4.scales.astype(np.float32)), 64),
    }
    for message, (weight, k) in wrong.items():
        with pytest.raises(KernelArgumentError, match=message):
            codes_of("weight", weight, k)
    x, logits = np.ones((1, 64), np.float32), np.zeros((1, 2), np.float32)
    with pytest.raises(KernelArgumentError, match="gate_up has 8 rows; 2 experts of 6 rows each have 12"):
        gate_up_gemv(x, logits, fp8, np.empty((1, 3), np.float32))
