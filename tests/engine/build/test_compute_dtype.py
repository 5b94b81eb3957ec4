"""The dtype that an engine computes in, on GPUs with bfloat16 and without."""

import dataclasses
import warnings

import pytest

from minllm.engine.build.compute_dtype import compute_dtype
from minllm.errors import InvalidOptionError
from minllm.runtime.device import assume
from tests.runtime.h200 import H200

T4 = dataclasses.replace(H200, name="Tesla T4", compute_capability=(7, 5))


@pytest.mark.parametrize(
    "gpu, wanted, stored, dtype",
    [
        (H200, "auto", "bfloat16", "bfloat16"),
        (H200, "bfloat16", "float16", "bfloat16"),
        (T4, "auto", "float16", "float16"),
        (T4, "auto", "float32", "float32"),
        (T4, "float32", "bfloat16", "float32"),
        (T4, "float16", "bfloat16", "float16"),
    ],
)
def test_what_the_gpu_has_is_taken_as_it_is(gpu, wanted, stored, dtype):
    with assume(gpu), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compute_dtype(wanted, stored, "cuda") == dtype


def test_a_bfloat16_checkpoint_becomes_float16_with_a_word():
    with assume(T4), pytest.warns(UserWarning, match="Tesla T4, of compute capability 7.5, has no bfloat16.*computed in float16"):
        assert compute_dtype("auto", "bfloat16", "cuda") == "float16"


def test_bfloat16_that_was_asked_for_is_refused():
    with assume(T4), pytest.raises(InvalidOptionError, match='Take "auto" or "float16", or "float32"'):
        compute_dtype("bfloat16", "float16", "cuda")


def test_a_cpu_computes_in_any_dtype():
    assert compute_dtype("auto", "bfloat16", "cpu") == compute_dtype("bfloat16", "float16", "cpu") == "bfloat16"
