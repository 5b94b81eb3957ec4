"""The body of POST /v1/completions."""

from pydantic import Field

from minllm.server.requests.sampling import GUIDED, MEANINGS, SamplingFields


class CompletionBody(SamplingFields):
    """A text to continue."""

    REFUSED = SamplingFields.REFUSED | {"suffix": "not supported: no text can be put between two others", "response_format": GUIDED}

    prompt: str | list[str] | list[int] | list[list[int]] = Field(description="A text, token ids, or a list of either.")
    max_tokens: int | None = Field(None, description=f"{MEANINGS.get('max_tokens')} Default: 16, or what the model's files suggest.")
    best_of: int | None = Field(None, description=MEANINGS.get("best_of"))
    logprobs: int | None = Field(None, description=MEANINGS.get("logprobs"))
    echo: bool = Field(False, description="Begin the text with the prompt; with logprobs, those of the prompt come too.")
    add_special_tokens: bool = Field(True, description="Ignored: a prompt gets the tokens that the model expects around it.")
