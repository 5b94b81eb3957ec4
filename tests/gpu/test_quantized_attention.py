"""Decoding over quantised caches on a GPU: two runs give the same bits."""

import numpy as np
import pytest

from minllm.catalogue.attention.codes import LARGE_STEPS, of_model, step
from minllm.catalogue.attention.paged import lengths
from minllm.catalogue.launch import on_device
from minllm.catalogue.noise import SHORT, Noise
from minllm.kernels.quantization.formats import TOKEN_FORMATS
from tests.kernels.launches import GuardedOps


@pytest.mark.covering("sizes", "form")
@pytest.mark.parametrize("form", TOKEN_FORMATS)
@pytest.mark.parametrize("sizes", [(lengths(one), lengths(other), *sizes) for one, other, *sizes in LARGE_STEPS], ids=str)
def test_two_runs_give_the_same_bits(device, sizes, form):
    tokens, keys, *others = sizes
    launch, outs = of_model(step, tokens, keys, form, *others), []
    for _ in range(2):
        ops = GuardedOps(device)
        given = {name: on_device(ops, one) for name, one in launch.arrays(Noise(length=SHORT)).items()}
        outs.append(device.host(launch.run(ops, given)["out"]))
    np.testing.assert_array_equal(*(np.asarray(out).view(np.uint8) for out in outs))
