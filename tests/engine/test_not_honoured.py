"""Parameters that the engine does not honour yet are refused rather than ignored."""

import pytest

from minllm import SamplingParams
from minllm.engine.requests import NOT_HONOURED
from minllm.errors import InvalidRequestError

GIVEN = dict(best_of=2, logit_bias={1: 1}, allowed_token_ids=[1], bad_words="a", logits_processors=[len], prompt_logprobs=1)


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_what_the_engine_does_not_honour_is_refused_rather_than_ignored(llm, name):
    with pytest.raises(InvalidRequestError, match=f"{name}: not supported"):
        llm.generate("a", SamplingParams(**{name: GIVEN[name]}))


def test_requests_that_only_score_are_refused_until_they_are_supported(llm):
    with pytest.raises(InvalidRequestError, match="max_tokens=0: not supported"):
        llm.generate("a", SamplingParams(max_tokens=0))
