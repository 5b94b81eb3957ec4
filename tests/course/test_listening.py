import numpy as np
import pytest

from minllm import LLM
from minllm.course import linear_inputs
from minllm.errors import MinLLMError
from tests.engine.models import model_directory


@pytest.fixture(scope="module")
def llm():
    with LLM(model_directory("small"), device="cpu", max_model_len=64, max_num_seqs=1) as llm:
        yield llm


def test_every_linear_of_a_forward_is_heard_in_order(llm):
    before = llm.logits([5, 6, 7])
    heard = linear_inputs(llm, [5, 6, 7])
    assert len(heard) == 4 * 2 + 1  # four per layer, and the head
    assert all(x.shape == (3, weight.shape[1]) for x, weight in heard)
    x, head = heard[-1]
    assert np.allclose(x @ np.asarray(head, np.float32).T, before, atol=1e-4)


def test_the_model_is_as_before_even_after_an_error(llm):
    before = llm.logits([5, 6, 7])
    with pytest.raises(MinLLMError):
        linear_inputs(llm, [])
    assert "linear" not in vars(llm.engine.ops)
    assert np.array_equal(llm.logits([5, 6, 7]), before)
