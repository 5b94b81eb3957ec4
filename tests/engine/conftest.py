"""One loaded model for all tests that only generate with it."""

import pytest

from minllm import LLM
from tests.engine.models import model_directory


@pytest.fixture(scope="session")
def llm():
    """A random Llama 3 in float32 with a byte-level tokenizer; 1,003 ids, greedy by default."""
    with LLM(model_directory("small"), device="cpu", max_model_len=256, max_num_seqs=8) as llm:
        yield llm


@pytest.fixture(autouse=True)
def nothing_leaks(request):
    """After every test that used the model, all cache blocks are free again, and no request is left."""
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        assert llm.engine.cache_policy.usage().allocated == 0 and llm.engine.scheduler.queues.num_unfinished == 0
