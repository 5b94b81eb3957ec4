"""Log-probabilities in the forms of completions and of chat completions."""

from typing import Any

from minllm.server.wire import TokenLogprob


def chosen(position: list[TokenLogprob], token_id: int) -> TokenLogprob:
    """The token that was taken at a position."""
    return next(one for one in position if one.token_id == token_id)


def of_completion(positions: list[Any], token_ids: list[int], most: int, offset: int = 0, first: str = "") -> dict[str, Any]:
    """The `logprobs` of a completion. A position is None for the first token of a prompt, which has the text `first`.

    most: the number of likeliest tokens asked for. offset: characters of the tokens before these, whose
    texts are longer than the text itself where a character has several tokens.
    """
    tokens, values, tops, offsets = [], [], [], []
    for position, token_id in zip(positions, token_ids, strict=True):
        one = None if position is None else chosen(position, token_id)
        tokens.append(first if one is None else one.text)
        values.append(None if one is None else one.logprob)
        tops.append(None if position is None else {other.text: other.logprob for other in with_chosen(position, one, most)})
        offsets.append(offset)
        offset += len(tokens[-1])
    return {"text_offset": offsets, "token_logprobs": values, "tokens": tokens, "top_logprobs": tops}


def with_chosen(position: list[TokenLogprob], one: TokenLogprob, most: int) -> list[TokenLogprob]:
    """The likeliest tokens, and the chosen one if it is not among them."""
    likeliest = position[:most]
    return likeliest if one in likeliest else [*likeliest, one]


def of_chat(positions: list[list[TokenLogprob]], token_ids: list[int], most: int) -> dict[str, Any]:
    """The `logprobs` of a choice of a chat completion."""
    content = []
    for position, token_id in zip(positions, token_ids, strict=True):
        content.append(entry(chosen(position, token_id)) | {"top_logprobs": [entry(one) for one in position[:most]]})
    return {"content": content, "refusal": None}


def entry(one: TokenLogprob) -> dict[str, Any]:
    """A token in OpenAI's form."""
    return {"token": one.text, "logprob": one.logprob, "bytes": list(one.text.encode())}
