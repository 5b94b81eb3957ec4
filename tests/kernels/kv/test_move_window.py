"""The window that moves between decode steps: callers' mistakes; its results: tests/kernels/test_launches.py."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.kv.move_window import move_window


def test_mistakes_are_explained():
    lines, table = np.zeros(3, np.int32), np.zeros((3, 3), np.int32)
    with pytest.raises(KernelArgumentError, match="residual_window is 48; it must be a multiple of 32"):
        move_window(*[lines] * 5, table, 48)
    with pytest.raises(KernelArgumentError, match=r"recent_tables is int32 \[3, 3\]; .*blocks=2"):
        move_window(*[lines] * 5, table, 32)
    with pytest.raises(KernelArgumentError, match="rings is int32"):
        move_window(lines, lines, lines[:2], lines, lines, table, 64)
