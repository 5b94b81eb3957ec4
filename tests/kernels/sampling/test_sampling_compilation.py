"""The sampling kernels compile for every generation without spills and without local memory."""

import numpy as np
import pytest

from minllm.kernels.sampling.advance import advance_kernel
from minllm.kernels.sampling.argmax import argmax_of_parts_kernel, argmax_parts_kernel
from minllm.kernels.sampling.penalties import ban_stop_tokens_kernel, penalize_kernel
from minllm.kernels.sampling.sample import draw_parts_kernel
from minllm.kernels.sampling.thresholds import thresholds_kernel

INTS, FLOATS = np.zeros(2, np.int32), np.zeros(2, np.float32)
INT_ROWS, FLOAT_ROWS = np.zeros((2, 8), np.int32), np.zeros((2, 8), np.float32)
MASK, SEED = np.zeros((2, 8), np.uint8), np.zeros((2, 2), np.uint32)
KERNELS = [
    (argmax_parts_kernel, (FLOAT_ROWS, FLOAT_ROWS, INT_ROWS)),
    (argmax_of_parts_kernel, (FLOAT_ROWS, INT_ROWS, INTS)),
    (penalize_kernel, (FLOAT_ROWS, MASK, INT_ROWS, FLOATS, FLOATS, FLOATS, FLOAT_ROWS)),
    (ban_stop_tokens_kernel, (FLOAT_ROWS, INT_ROWS, INTS, INTS, FLOAT_ROWS)),
    (thresholds_kernel, (FLOAT_ROWS, FLOATS, INTS, FLOATS, FLOATS, FLOATS)),
    (draw_parts_kernel, (FLOAT_ROWS, FLOATS, FLOATS, SEED, INTS, FLOAT_ROWS, INT_ROWS)),
    (advance_kernel, (INTS, INTS, INTS, INTS, INTS, INT_ROWS, INTS, INTS, INT_ROWS, 1, 16)),
]


@pytest.mark.parametrize(("kernel", "arguments"), KERNELS, ids=lambda value: getattr(value, "__name__", ""))
def test_registers_hold_everything(kernel, arguments):
    for compute_capability in ((8, 0), (9, 0)):
        compiled = kernel.compile(*arguments, compute_capability=compute_capability)
        assert (compiled.spill_bytes, compiled.stack_bytes) == (0, 0), compiled
