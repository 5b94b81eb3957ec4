"""The bodies of POST /tokenize and POST /detokenize, which are vLLM's."""

from typing import Any

from pydantic import Field

from minllm.server.requests.body import ModelBody


class TokenizeBody(ModelBody):
    """A text or a conversation to tokenise."""

    prompt: str | None = Field(None, description="A text; give it or messages.")
    messages: list[dict[str, Any]] | None = Field(None, description="A conversation; give it or prompt.")
    add_special_tokens: bool | None = Field(None, description="Add tokens such as BOS. Default: to a prompt, not to messages.")
    add_generation_prompt: bool = Field(True, description="End a conversation with the beginning of the assistant's message.")
    continue_final_message: bool = Field(False, description="End a conversation with the final message's text.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the template.")
    tools: list[dict[str, Any]] | None = Field(None, description="Functions, for the template.")
    return_token_strs: bool = Field(False, description="Return the text of each token too.")


class DetokenizeBody(ModelBody):
    """Token ids to turn into text."""

    tokens: list[int] = Field(description="Token ids.")
