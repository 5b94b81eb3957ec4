"""Quantised experts: what a pair's bits depend on, and the weights that are refused."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.experts.codes import CodeKind, codes_of
from minllm.kernels.experts.counting_sort import sort_by_expert_reference
from minllm.kernels.experts.gather_gemv import gate_up_gemv
from minllm.kernels.experts.grouped_gemm import GroupedTiling, grouped_gate_up
from minllm.kernels.quantization.fp8 import FP8
from minllm.kernels.quantization.int4 import INT4
from minllm.weights.formats import WEIGHT_FORMATS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ["int4", "fp8"])
def test_a_pair_has_the_same_bits_among_others_and_alone(name):
    random = np.random.default_rng(0)
    x = random.standard_normal((14, 96)).astype(BFLOAT16)
    expert_ids = np.stack([random.permutation(3)[:2] for _ in range(14)]).astype(np.int32)
    gate_up = WEIGHT_FORMATS[name].encode(random.standard_normal((4 * 64, 96)).astype(np.float32))

    def activated(tokens):
        pairs, offsets = sort_by_expert_reference(expert_ids[tokens], 4)
        out, in_order = np.empty((2, len(pairs), 32), BFLOAT16)
        grouped_gate_up(np.ascontiguousarray(x[tokens]), pairs, offsets, gate_up, out, tiling=GroupedTiling(64, 8, 4, 1, 2))
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
