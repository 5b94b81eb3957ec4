"""Requests against the model that is to run them, and the token sequences of bad words."""

import pytest

from minllm import SamplingParams
from minllm.engine.requests.prompts import PromptTokens
from minllm.engine.requests.request_checks import check_context, check_vocabulary
from minllm.errors import InvalidRequestError

PROMPT = PromptTokens("text", list(range(10)))


@pytest.mark.parametrize(
    "params,words",
    [
        (dict(stop_token_ids=[3, 10]), "stop_token_ids holds 10, outside the vocabulary: ids go from 0 to 9"),
        (dict(logit_bias={3: 1.0, 10: 1.0}), "logit_bias holds 10"),
        (dict(allowed_token_ids=[10]), "allowed_token_ids holds 10"),
        (dict(logprobs=11), "logprobs=11 is more than the vocabulary's 10"),
        (dict(prompt_logprobs=11), "prompt_logprobs=11 is more than the vocabulary's 10"),
        (dict(allowed_token_ids=[2], min_tokens=1), "allowed_token_ids holds only ids that end the text, and min_tokens=1 bans those"),
    ],
)
def test_a_vocabulary_of_ten(params, words):
    with pytest.raises(InvalidRequestError, match=words):
        check_vocabulary(SamplingParams(**params), 10, {2})


def test_what_a_vocabulary_of_ten_has():
    check_vocabulary(SamplingParams(stop_token_ids=[9], logit_bias={9: 1}, allowed_token_ids=[2, 9], min_tokens=1, logprobs=10), 10, {2})


def test_a_prompt_that_is_only_scored_may_fill_the_context():
    check_context(PROMPT, SamplingParams(max_tokens=0), 10)
    with pytest.raises(InvalidRequestError, match="10 tokens, and max_model_len=10 allows 9, with one more for the first new token"):
        check_context(PROMPT, SamplingParams(), 10)
    with pytest.raises(InvalidRequestError, match="10 tokens, and max_model_len=9 allows 9: shorten it"):
        check_context(PROMPT, SamplingParams(max_tokens=0), 9)
