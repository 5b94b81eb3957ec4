"""The body of POST /v1/responses, in the stateless form: the whole history comes with every request, and nothing is stored."""

from typing import Any

from pydantic import Field

from minllm.server.requests.sampling import MEANINGS, RequestFields

STATELESS = "not supported: nothing is stored; send the whole history as input"


class ResponsesBody(RequestFields):
    """A history to continue."""

    REFUSED = {
        "previous_response_id": STATELESS, "conversation": STATELESS, "background": STATELESS, "prompt": "not supported: give input",
    }  # fmt: skip

    input: str | list[dict[str, Any]] = Field(min_length=1, description="A text, or items: messages, function calls and their outputs.")
    instructions: str | None = Field(None, description="The system message.")
    max_output_tokens: int | None = Field(None, description=f"{MEANINGS.get('max_tokens')} Default: what the context allows.")
    temperature: float | None = Field(None, description=MEANINGS.get("temperature"))
    top_p: float | None = Field(None, description=MEANINGS.get("top_p"))
    text: dict[str, Any] | None = Field(None, description="format: the form of the text.")
    tools: list[dict[str, Any]] | None = Field(None, description="Functions that the model may call; other kinds of tools are left out.")
    tool_choice: str | dict[str, Any] | None = Field(None, description='"auto", "none", "required" or a function, which is called.')
    parallel_tool_calls: bool = Field(True, description="false: only the first call of a tool is returned.")
    store: bool = Field(False, description="Ignored: nothing is stored.")
    stream: bool = Field(False, description="Send the answer as server-sent events while it is generated.")
    metadata: dict[str, Any] | None = Field(None, description="Returned as it is.")
