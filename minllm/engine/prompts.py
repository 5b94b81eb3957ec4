"""Check users' prompts and convert them to token ids before anything is computed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np

from minllm.errors import InvalidRequestError

Prompt = str | list[int]


@dataclass(frozen=True)
class PromptTokens:
    """A prompt's text (None if it was given as ids) and its token ids."""

    text: str | None
    token_ids: list[int]


def is_single(prompts: Any) -> bool:
    """Whether this is one prompt (a text, or a list that contains a number) rather than a list of prompts."""
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    if isinstance(prompts, list | tuple):
        return any(isinstance(item, int | float | np.number) for item in prompts)
    return isinstance(prompts, str)


def check_chars(text: str, most_chars_per_token: int | None, max_model_len: int) -> None:
    """Raises InvalidRequestError for a text that cannot fit, however it is tokenised: tokenising 30 MB takes more than a minute."""
    most = None if most_chars_per_token is None else max_model_len * most_chars_per_token
    if most is not None and len(text) > most:
        raise InvalidRequestError(
            f"The prompt has {len(text):,} characters; max_model_len={max_model_len} tokens have at most {most:,}, as the longest token "
            f"stands for {most_chars_per_token:,}: shorten it, or raise max_model_len if the model allows."
        )


def parse_prompts(
    prompts: Any, encode: Callable[[str], list[int]], vocab_size: int, max_model_len: int, most_chars_per_token: int | None = None
) -> list[PromptTokens]:
    """Convert one prompt or a list of them, each a text or a list of token ids, to token ids.

    Raises InvalidRequestError for other types, for an empty prompt, for ids outside the vocabulary, and for a prompt that leaves no room
    for a new token within `max_model_len`.
    """
    many = [prompts] if is_single(prompts) else prompts
    if not isinstance(many, list | tuple | np.ndarray) or (isinstance(many, np.ndarray) and many.ndim == 0):
        raise InvalidRequestError(f"{prompts!r} is not a prompt: give a string, a list of token ids, or a list of those.")
    if len(many) == 0:
        raise InvalidRequestError("The list of prompts is empty: give at least one prompt.")
    parsed = []
    for index, prompt in enumerate(many):
        with naming_the_prompt(index, len(many)):
            if isinstance(prompt, str):
                check_chars(prompt, most_chars_per_token, max_model_len)
            parsed.append(_parse(prompt, encode, vocab_size, max_model_len))
    return parsed


@contextmanager
def naming_the_prompt(index: int, count: int) -> Iterator[None]:
    """Add the prompt's index to an InvalidRequestError raised inside, if the call has several prompts."""
    try:
        yield
    except InvalidRequestError as error:
        if count == 1:
            raise
        raise InvalidRequestError(f"Prompt {index} of {count}, counted from 0: {error} Nothing was computed.") from error


def _parse(prompt: Any, encode: Callable[[str], list[int]], vocab_size: int, max_model_len: int) -> PromptTokens:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidRequestError("The prompt is an empty string: there is nothing to continue; give at least one character.")
        text, token_ids = prompt, checked_token_ids(encode(prompt), vocab_size)
    else:
        text, token_ids = None, checked_token_ids(prompt, vocab_size)
    if len(token_ids) >= max_model_len:
        raise InvalidRequestError(
            f"The prompt has {len(token_ids)} tokens, and max_model_len={max_model_len} allows {max_model_len - 1}, with one more for the "
            "first new token: shorten it, or raise max_model_len if the model allows."
        )
    return PromptTokens(text, token_ids)


def checked_token_ids(token_ids: Any, vocab_size: int) -> list[int]:
    """A list of at least one int from 0 to vocab_size - 1. Raises InvalidRequestError otherwise."""
    if not isinstance(token_ids, list | tuple | np.ndarray) or (isinstance(token_ids, np.ndarray) and token_ids.ndim == 0):
        raise InvalidRequestError(f"{token_ids!r} is not a prompt: give a string or a list of token ids.")
    if len(token_ids) == 0:
        raise InvalidRequestError("The list of token ids is empty: give at least one.")
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise InvalidRequestError(f"{token_id!r} is not a token id: a prompt of ids is a flat list of integers.")
        if not 0 <= token_id < vocab_size:
            raise InvalidRequestError(f"Token id {token_id} is outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return [int(token_id) for token_id in token_ids]


def checked_salts(cache_salt: Any, num_prompts: int) -> list[str]:
    """The cache_salt of each prompt: one for all, or a list with one for each; "" for None.

    Raises InvalidRequestError for a salt that is not a text, for an empty one, and for a list of the wrong length.
    """
    many = list(cache_salt) if isinstance(cache_salt, list | tuple) else [cache_salt] * num_prompts
    if len(many) != num_prompts:
        raise InvalidRequestError(f"{len(many)} cache salts were given for {num_prompts} prompts: give one for all, or one for each.")
    for salt in many:
        if not (salt is None or (isinstance(salt, str) and salt)):
            raise InvalidRequestError(f"cache_salt={salt!r} is not allowed: it is a text of at least one character, or None for no salt.")
    return ["" if salt is None else salt for salt in many]
