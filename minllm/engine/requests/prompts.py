"""Check users' prompts and convert them to token ids before anything is computed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from typing import Any, NamedTuple, NotRequired, TypedDict

import numpy as np

from minllm.errors import Contained, ContextLengthError, ForeignError, InvalidRequestError, shown


class TextPrompt(TypedDict):
    """A prompt as text. cache_salt: only prompts with the same salt share cached keys and values."""

    prompt: str  # the text
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    """A prompt as token ids. prompt: their text, if known; it is returned with the output."""

    prompt_token_ids: list[int]  # each from 0 to below the vocabulary's size
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]  # only prompts with the same salt share cached keys and values


Prompt = str | list[int] | TextPrompt | TokensPrompt
KEYS = ("prompt", "prompt_token_ids", "cache_salt")
EXAMPLE = '{"prompt": "text"} or {"prompt_token_ids": [1, 2, 3]}'


class PromptTokens(NamedTuple):
    """A prompt's text (None if it was given as ids), its token ids, and the cache salt given with it ("" for none)."""

    text: str | None
    token_ids: list[int]
    cache_salt: str = ""


def is_single(prompts: object) -> bool:
    """Whether this is one prompt (a text, a dictionary, or a list that contains a number) rather than a list of prompts."""
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    if isinstance(prompts, list | tuple):
        return any(isinstance(item, int | float | np.number) for item in prompts)
    return isinstance(prompts, str | Mapping)


def check_chars(text: str, most_chars_per_token: int | None, max_model_len: int | None) -> None:
    """Raises ContextLengthError for a text too long to fit, before tokenising it: 30 MB would take more than a minute.

    max_model_len: None for a text that is truncated to what fits.
    """
    most = None if most_chars_per_token is None or max_model_len is None else max_model_len * most_chars_per_token
    if most is not None and len(text) > most:
        raise ContextLengthError(
            f"The prompt has {len(text):,} characters; max_model_len={max_model_len} tokens have at most {most:,}, as the longest token "
            f"stands for {most_chars_per_token:,}: shorten it, or raise max_model_len if the model allows."
        )


def parse_prompts(
    prompts: object, encode: Callable[[str], list[int]], vocab_size: int, max_model_len: int | None, most_chars_per_token: int | None = None
) -> list[PromptTokens]:
    """Convert one prompt or a list of them, each a text, a list of token ids, or a dictionary with either, to token ids.

    Raises InvalidRequestError for other types, for an empty prompt, for ids outside the vocabulary, and for a text of more characters
    than `max_model_len` tokens can have (None: as many as are given). request_checks.check_context checks whether the tokens fit.
    """
    many = [prompts] if is_single(prompts) else prompts
    if not isinstance(many, list | tuple | np.ndarray) or (isinstance(many, np.ndarray) and many.ndim == 0):
        raise InvalidRequestError(
            f"{shown(prompts)} is not a prompt: give a string, a list of token ids, a dictionary such as {EXAMPLE}, or a list of those."
        )
    if len(many) == 0:
        raise InvalidRequestError("The list of prompts is empty: give at least one prompt.")

    def encode_text(text: str) -> list[int]:
        if not text:
            raise InvalidRequestError("The prompt is an empty string: there is nothing to continue; give at least one character.")
        check_chars(text, most_chars_per_token, max_model_len)
        return encode(text)

    parsed = []
    for index, prompt in enumerate(many):
        with naming_the_prompt(index, len(many)):
            parsed.append(_parse(prompt, encode_text, vocab_size))
    return parsed


@contextmanager
def naming_the_prompt(index: int, count: int) -> Iterator[None]:
    """Add the prompt's index to an error of minllm raised inside, if the call has several prompts; foreign errors are contained."""
    try:
        with Contained():
            yield
    except (InvalidRequestError, ForeignError) as error:
        if count == 1:
            raise
        raise type(error)(f"Prompt {index} of {count}, counted from 0: {error} Nothing was computed.") from error


def _parse(prompt: object, encode: Callable[[str], list[int]], vocab_size: int) -> PromptTokens:
    if isinstance(prompt, str):
        return PromptTokens(prompt, checked_token_ids(encode(prompt), vocab_size))
    if not isinstance(prompt, Mapping):
        return PromptTokens(None, checked_token_ids(prompt, vocab_size))
    text, token_ids, salt = _checked_fields(prompt)
    return PromptTokens(text, checked_token_ids(encode(text or "") if token_ids is None else token_ids, vocab_size), salt)


def _checked_fields(prompt: Mapping[str, Any]) -> tuple[str | None, Any, str]:
    """The text, token ids and salt of a prompt's dictionary: TextPrompt or TokensPrompt."""
    for key in prompt:
        if key not in KEYS:
            raise InvalidRequestError(f"{shown(key)} is not a key of a prompt: the keys are {', '.join(KEYS)}, as in {EXAMPLE}.")
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and token_ids is None:
        raise InvalidRequestError(f"{shown(dict(prompt))} has neither prompt nor prompt_token_ids: write {EXAMPLE}.")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f'"prompt" of a prompt is a string, and {shown(text)} is not: write {EXAMPLE}.')
    return text, token_ids, checked_salt(prompt.get("cache_salt"))


def checked_token_ids(token_ids: object, vocab_size: int) -> list[int]:
    """A list of at least one int from 0 to vocab_size - 1. Raises InvalidRequestError otherwise."""
    if not isinstance(token_ids, list | tuple | np.ndarray) or (isinstance(token_ids, np.ndarray) and token_ids.ndim == 0):
        raise InvalidRequestError(f"{shown(token_ids)} is not a prompt: give a string or a list of token ids.")
    if len(token_ids) == 0:
        raise InvalidRequestError("The list of token ids is empty: give at least one.")
    if set(map(type, token_ids)) == {int}:  # the usual case, without a loop in Python; a bool's type is not int
        ids = list(token_ids)
        if min(ids) >= 0 and max(ids) < vocab_size:
            return ids
    for token_id in token_ids:
        if isinstance(token_id, bool) or not isinstance(token_id, Integral):
            raise InvalidRequestError(f"{shown(token_id)} is not a token id: a prompt of ids is a flat list of integers.")
        if not 0 <= int(token_id) < vocab_size:
            raise InvalidRequestError(f"Token id {shown(token_id)} is outside the vocabulary: ids go from 0 to {vocab_size - 1}.")
    return [int(token_id) for token_id in token_ids]


def checked_salt(salt: object) -> str:
    """A cache salt; "" for None. Raises InvalidRequestError for one that is not a text, or empty."""
    if not (salt is None or (isinstance(salt, str) and salt)):
        raise InvalidRequestError(f"cache_salt={shown(salt)} is not allowed: it is a text of at least one character, or None for no salt.")
    return "" if salt is None else salt


def checked_salts(cache_salt: object, prompts: list[PromptTokens]) -> list[str]:
    """The salt of each prompt: its own, or else the call's `cache_salt`, one for all prompts or a list with one for each.

    Raises InvalidRequestError for a wrong salt, for a list of the wrong length, and for a prompt that is given two different salts.
    """
    many = list(cache_salt) if isinstance(cache_salt, list | tuple) else [cache_salt] * len(prompts)
    if len(many) != len(prompts):
        raise InvalidRequestError(f"{len(many)} cache salts were given for {len(prompts)} prompts: give one for all, or one for each.")
    salts = []
    for index, (salt, prompt) in enumerate(zip(map(checked_salt, many), prompts, strict=True)):
        if salt and prompt.cache_salt and salt != prompt.cache_salt:
            with naming_the_prompt(index, len(prompts)):
                raise InvalidRequestError("The prompt's own cache_salt differs from the call's: give one of them.")
        salts.append(prompt.cache_salt or salt)
    return salts
