"""The body of POST /v1/chat/completions."""

from typing import Any

from pydantic import Field

from minllm.engine.requests.sampling_params import MAX_LOGPROBS
from minllm.server.requests.sampling import MEANINGS, SamplingFields


class ChatFields(SamplingFields):
    """A conversation, and how the template renders it."""

    messages: list[dict[str, Any]] = Field(min_length=1, description='A conversation: [{"role": "user", "content": "Hello"}, ...].')
    add_generation_prompt: bool | None = Field(
        None, description="End the prompt with the beginning of the assistant's message. Default: unless continue_final_message."
    )
    continue_final_message: bool = Field(False, description="End the prompt with the final message's text, which the model continues.")
    chat_template: str | None = Field(None, description="A Jinja template; refused unless the server trusts those of requests.")
    chat_template_kwargs: dict[str, Any] | None = Field(None, description="More variables for the template, such as enable_thinking.")
    tools: list[dict[str, Any]] | None = Field(
        None, description="Functions that the model may call, for the template. With strict, arguments keep to the schema."
    )
    tool_choice: str | dict[str, Any] | None = Field(None, description='"auto", "none", "required" or a function, which is called.')


class ChatBody(ChatFields):
    """A conversation to continue."""

    REFUSED = SamplingFields.REFUSED | {"audio": "not supported"}

    max_tokens: int | None = Field(None, description="As max_completion_tokens.")
    max_completion_tokens: int | None = Field(None, description=f"{MEANINGS.get('max_tokens')} Default: what the context allows.")
    logprobs: bool = Field(False, description="Return the log-probability of every token.")
    top_logprobs: int = Field(0, ge=0, le=MAX_LOGPROBS, description="Return those of this many likeliest tokens too; needs logprobs.")
    parallel_tool_calls: bool = Field(True, description="false: only the first call of a tool is returned.")
