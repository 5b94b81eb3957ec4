"""Sizes that kernels of experts do not take are refused, with the kernel that does."""

import ml_dtypes
import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.experts.combine_norm import combine_norm
from minllm.kernels.experts.grouped_wgmma import GroupedWgmmaTiling, wgmma_gate_up

BFLOAT16 = ml_dtypes.bfloat16


def zeros(*shape, dtype=BFLOAT16):
    return np.zeros(shape, dtype)


@pytest.mark.parametrize("hidden", [12, 32768])
def test_rows_that_registers_do_not_hold(hidden):
    rows, weights = zeros(1, hidden), zeros(1, 1, dtype=np.float32)
    with pytest.raises(KernelArgumentError, match="take combine and rms_norm"):
        combine_norm(rows.copy(), weights, rows, zeros(hidden), rows.copy(), 1e-6)


@pytest.mark.parametrize(("inner", "tiling", "reason"), [
    (12, None, "begin on multiples of 16 bytes"), (8, GroupedWgmmaTiling(1, 40, 2), "whole 32s of tokens"),
    (8, GroupedWgmmaTiling(2, 256, 5), "bytes of shared memory; a block has"),
])  # fmt: skip
def test_tiles_that_do_not_fit(inner, tiling, reason):
    with pytest.raises(KernelArgumentError, match=reason):
        offsets = np.array([0, 1], np.int32)
        wgmma_gate_up(zeros(1, 8), zeros(1, dtype=np.int32), offsets, zeros(2 * inner, 8), zeros(1, inner), tiling=tiling)
