"""The blocks of an encoder's launch."""

import numpy as np

from minllm.kernels.encoding.lanes import THREADS, grid_of
from minllm.kernels.quantization.lanes import EACH
from minllm.sim.simulator import LARGEST_GRID_Y


def test_all_experts_of_a_layer_are_one_matrix_of_more_rows_than_a_grid_has_blocks_along_y():
    experts = np.empty((128 * 1536, 2048), np.float16)  # never touched
    x, y = grid_of(experts, 128)
    assert y <= LARGEST_GRID_Y < x
    assert (x, y * THREADS * EACH) == experts.shape
