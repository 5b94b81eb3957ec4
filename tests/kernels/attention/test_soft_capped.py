"""Attention with a soft cap: what it refuses, and that the catalogue's launches would show a missing cap."""

import numpy as np
import pytest

from minllm.catalogue.attention.caps import GEMMA_2, small
from minllm.catalogue.noise import SHORT, Noise
from minllm.errors import KernelArgumentError
from minllm.kernels.attention import VARIANTS
from tests.kernels.attention.cases import AttentionCase, make_arrays
from tests.kernels.attention.oracles import attention


@pytest.mark.parametrize("launch", [*small()], ids=str)
def test_a_cap_below_the_scores_changes_the_output(launch):
    arrays, options = launch.arrays(Noise(length=SHORT)), launch.shape["options"]
    capped, uncapped = (attention({**launch.shape, "options": chosen}, **arrays)["out"] for chosen in (options, {}))
    assert (np.abs(capped - uncapped).max() > 0.02) == (options["soft_cap"] < GEMMA_2)


@pytest.mark.parametrize("cap", [0.0, -1.0, float("inf"), float("nan")])
def test_a_cap_that_is_none_is_refused(cap):
    arrays = make_arrays(AttentionCase((1,), (3,)))
    with pytest.raises(KernelArgumentError, match="soft_cap is .*; it must be a positive number"):
        inputs = arrays.query, arrays.key_cache, arrays.value_cache, np.zeros_like(arrays.query)
        VARIANTS["soft_capped"].attention(*inputs, arrays.query_start, arrays.context_lens, arrays.block_tables, arrays.scale, cap)
