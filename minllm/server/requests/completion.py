"""The body of POST /v1/completions."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, SkipValidation

from minllm.server.requests.sampling import MEANINGS, SamplingFields


def checked_prompt(given: object) -> Any:
    """The prompts as they are, after a quick look at all types: pydantic tries every alternative, for half a second per million ids.

    Raises ValueError for other types; the engine checks the ids.
    """
    kinds = set(map(type, given)) if isinstance(given, list) else {type(given)}
    is_one = isinstance(given, str) or (isinstance(given, list) and (not given or kinds in ({str}, {int})))
    if not is_one and not (kinds == {list} and isinstance(given, list) and all(set(map(type, one)) <= {int} for one in given)):
        raise ValueError("a prompt is a text, a list of token ids, or a list of either")
    return given


Prompt = Annotated[str | list[str] | list[int] | list[list[int]], SkipValidation, AfterValidator(checked_prompt)]


class CompletionBody(SamplingFields):
    """A text to continue."""

    REFUSED = SamplingFields.REFUSED | {"suffix": "not supported: no text can be put between two others"}

    prompt: Prompt = Field(description="A text, token ids, or a list of either.")
    max_tokens: int | None = Field(None, description=f"{MEANINGS.get('max_tokens')} Default: 16, or what the model's files suggest.")
    best_of: int | None = Field(None, description=MEANINGS.get("best_of"))
    logprobs: int | None = Field(None, description=MEANINGS.get("logprobs"))
    echo: bool = Field(False, description="Begin the text with the prompt; with logprobs, those of the prompt come too.")
    add_special_tokens: bool = Field(True, description="Ignored: a prompt gets the tokens that the model expects around it.")
