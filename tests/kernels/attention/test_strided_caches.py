"""Caches in which the layers of a token lie side by side: every variant computes the same, and touches no other layer."""

import numpy as np
import pytest

from minllm.errors import KernelArgumentError
from minllm.kernels.arguments import check_layout
from minllm.kernels.attention import VARIANTS
from minllm.kernels.attention.flash_attention_2 import flash_attention_2
from minllm.kernels.kv.layout import layer_of
from tests.kernels.attention.case_lists import STRIDED_CASES, STRIDED_PROMPT
from tests.kernels.attention.cases import among_layers, make_arrays, run_variant


@pytest.mark.results_only
@pytest.mark.parametrize(("name", "case", "options", "workspace"), STRIDED_CASES, ids=lambda value: value if type(value) is str else None)
def test_a_layer_among_others(device, name, case, options, workspace):
    run_variant(device, VARIANTS[name], case, workspace_options=workspace, layers=(3, 1), **options)


def test_a_layout_that_kernels_cannot_follow_is_explained():
    cache = np.zeros((4, 8, 3, 2, 16), np.float32)
    check_layout("key_cache", layer_of(cache, 2))
    check_layout("key_cache", cache[:1, :, 1])
    for wrong in (cache[:, :, 0, :, ::2], cache[:, :, 0, :, :8], cache[::2, :, 0], cache[:, :, 0].swapaxes(0, 1)):
        with pytest.raises(KernelArgumentError, match="must lie side by side, and tokens at equal distances"):
            check_layout("key_cache", wrong)


def test_keys_and_values_that_lie_differently_are_refused():
    arrays = make_arrays(STRIDED_PROMPT)
    value_cache = layer_of(among_layers(arrays.value_cache, 2, 0), 0)
    batch = (arrays.query_start, arrays.context_lens, arrays.block_tables)
    with pytest.raises(KernelArgumentError, match="it must lie like the key_cache"):
        flash_attention_2.attention(arrays.query, arrays.key_cache, value_cache, np.ascontiguousarray(arrays.out), *batch, arrays.scale)
