"""The accuracy of cache formats, on a small random model: its rows, and that worse formats are measured as worse."""

import numpy as np
import pytest

from minllm import LLM
from minllm.bench.accuracy import Comparison, compare, rows
from tests.engine.models import model_directory


def test_rows_of_a_small_model():
    with LLM(model_directory("small"), device="cpu", dtype="float32", max_num_seqs=1, max_model_len=128) as llm:
        caches = (("int8", 0), ("fp8_e5m2", 0), ("fp8_e5m2", 32), ("kivi_int4", 32))
        compared = compare(llm, [5 * i % 1003 for i in range(200)], caches)
        found = rows("small", 200, "float32", compared)
    assert compared["auto"].logit_error == 0 and compared["auto"].same_top == 1 and compared["auto"].tokens == 199
    assert 0 < compared["int8"].logit_error < compared["fp8_e5m2"].logit_error < 0.2
    assert 0 < compared["fp8_e5m2, window 32"].logit_error < 0.8 * compared["fp8_e5m2"].logit_error
    assert [row.variant for row in found] == [name for name in compared if name != "auto"] and found[-1].variant == "kivi_int4, window 32"
    plain, first = found[0].metrics["perplexity with a float32 cache"], found[0].metrics["perplexity"]
    assert plain == round(compared["auto"].perplexity, 4) and found[0].value == pytest.approx(100 * (first / plain - 1), abs=2e-3)


def test_a_comparison_is_its_definition():
    """Logits twice as far apart: an error of 100 %, the same likeliest token; a number added to a whole row changes nothing."""
    plain, one = np.array([[0.0, 1, 2], [4, 0, -4]], np.float32), Comparison()
    one.add(2 * plain + 7, plain, np.array([2, 1]))
    assert one.logit_error == pytest.approx(1) and one.same_top == 1
    expected = np.exp(-np.log([np.exp(4) / np.exp([0, 2, 4]).sum(), 1 / np.exp([8, 0, -8]).sum()]).mean())
    assert one.perplexity == pytest.approx(expected, rel=1e-5)
