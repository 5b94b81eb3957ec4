"""Checks of a request against the model that is to run it: ids within the vocabulary, a prompt within the context."""

from collections.abc import Iterable

from minllm.engine.requests.prompts import PromptTokens
from minllm.engine.requests.sampling_params import SamplingParams
from minllm.errors import ContextLengthError, InvalidRequestError, shown


def check_request(request_id: object, params: object) -> None:
    """Raise InvalidRequestError unless the id is a text, and the parameters are a SamplingParams, or None for the model's defaults."""
    if not isinstance(request_id, str):
        raise InvalidRequestError(f"request_id={shown(request_id)} is not allowed: it is a text.")
    if not (params is None or isinstance(params, SamplingParams)):
        raise InvalidRequestError(f"{shown(params)} is not a SamplingParams: write SamplingParams(max_tokens=...).")


def check_vocabulary(params: SamplingParams, vocab_size: int, ending_token_ids: Iterable[int] = ()) -> None:
    """Raise InvalidRequestError for ids and counts beyond the vocabulary, and if min_tokens bans all allowed tokens.

    ending_token_ids: the ids that end this request's text, which min_tokens bans.
    """
    for name in ("stop_token_ids", "logit_bias", "allowed_token_ids"):
        for token_id in getattr(params, name) or ():
            if token_id >= vocab_size:
                raise InvalidRequestError(f"{name} holds {shown(token_id)}, outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    for name in ("logprobs", "prompt_logprobs"):
        wanted = getattr(params, name)
        if wanted is not None and wanted > vocab_size:
            raise InvalidRequestError(f"{name}={wanted} is more than the vocabulary's {vocab_size} tokens: lower it.")
    if params.min_tokens and params.allowed_token_ids and set(params.allowed_token_ids) <= set(ending_token_ids):
        raise InvalidRequestError(
            f"allowed_token_ids holds only ids that end the text, and min_tokens={params.min_tokens} bans those: add others, or set "
            "min_tokens=0."
        )


def check_context(prompt: PromptTokens, params: SamplingParams, max_model_len: int) -> None:
    """Raise ContextLengthError if a prompt leaves no room for a new token.

    With max_tokens=0 nothing is generated, so the prompt may fill the whole context.
    """
    room = max_model_len if params.max_tokens == 0 else max_model_len - 1
    if len(prompt.token_ids) > room:
        new = "" if params.max_tokens == 0 else ", with one more for the first new token"
        raise ContextLengthError(
            f"The prompt has {len(prompt.token_ids)} tokens, and max_model_len={max_model_len} allows {room}{new}: shorten it, or raise "
            "max_model_len if the model allows."
        )
