"""The bodies of POST /v1/messages and /v1/messages/count_tokens, which are Anthropic's."""

from typing import Any

from pydantic import Field

from minllm.server.requests.sampling import MEANINGS, RequestFields


class MessagesFields(RequestFields):
    """A conversation, with all its turns each time."""

    messages: list[dict[str, Any]] = Field(min_length=1, description="Turns of user and assistant, with tool_use and tool_result blocks.")
    system: str | list[dict[str, Any]] | None = Field(None, description="The system message: a text, or text blocks.")
    tools: list[dict[str, Any]] | None = Field(None, description="Functions that the model may call: name, description, input_schema.")
    tool_choice: dict[str, Any] | None = Field(None, description="auto, none, any, or tool with a name, which the model must call.")


class MessagesBody(MessagesFields):
    """A conversation to continue."""

    max_tokens: int = Field(ge=0, description=MEANINGS.get("max_tokens"))
    temperature: float | None = Field(None, description=MEANINGS.get("temperature"))
    top_p: float | None = Field(None, description=MEANINGS.get("top_p"))
    top_k: int | None = Field(None, description=MEANINGS.get("top_k"))
    stop_sequences: list[str] | None = Field(None, description="As `stop` of a completion.")
    stream: bool = Field(False, description="Send the answer as server-sent events while it is generated.")
