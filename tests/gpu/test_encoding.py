"""Weights that a GPU encodes while a checkpoint loads: the arrays of the host's encoder, bit for bit."""

import numpy as np
import pytest

from minllm.models.layout import layout_of
from minllm.models.random_checkpoint import RandomCheckpoint
from minllm.models.shapes import named_config
from minllm.models.weights import WeightReader
from minllm.weights.formats import WEIGHT_FORMATS, quantizations


@pytest.mark.parametrize("name", quantizations())
def test_a_matrix_of_a_model_is_the_hosts(name, device):
    from minllm.ops.cuda_ops import CudaOps

    ops, config, weight_format = CudaOps("bfloat16"), named_config("llama-3.2-1b"), WEIGHT_FORMATS[name]
    checkpoint, layout = RandomCheckpoint(config), layout_of(config, weight_format=weight_format)
    with ops.uploads():
        reader = WeightReader(ops, checkpoint, layout)
        for stored in (layout.model.layers[0].attention.qkv, layout.model.layers[0].mlp.down):
            found = reader.linear(stored)
            wanted = weight_format.load(stored.projections, checkpoint, found.shard)
            for one, other in zip(found.weight, wanted, strict=True):
                assert (one is None) == (other is None)
                if one is not None:
                    np.testing.assert_array_equal(ops.to_host(one).view(np.uint8), other.view(np.uint8))
