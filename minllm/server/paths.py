"""Every path of the API: its handler, its body, and the form of its errors."""

import re
from typing import NamedTuple

from minllm.server.endpoint import ErrorForm, Handler
from minllm.server.errors import ApiError
from minllm.server.handlers.chat import chat
from minllm.server.handlers.completions import complete
from minllm.server.handlers.messages import count_tokens, message
from minllm.server.handlers.page import page
from minllm.server.handlers.responses import respond
from minllm.server.handlers.status import health, metrics, model, models, version
from minllm.server.handlers.tokens import detokenize, tokenize
from minllm.server.requests.body import Body
from minllm.server.requests.chat import ChatBody
from minllm.server.requests.completion import CompletionBody
from minllm.server.requests.messages import MessagesBody, MessagesFields
from minllm.server.requests.responses import ResponsesBody
from minllm.server.requests.tokens import DetokenizeBody, TokenizeBody

STREAMED = ("application/json", "text/event-stream")


class Path(NamedTuple):
    """A path of the API, parameters in braces. is_open: needs no API key. content: the types of its answer."""

    path: str
    handler: Handler
    body: type[Body] | None = None
    error_form: ErrorForm = ApiError.openai
    is_open: bool = False
    content: tuple[str, ...] = ("application/json",)

    @property
    def method(self) -> str:
        """GET without a body, POST with one."""
        return "GET" if self.body is None else "POST"

    @property
    def parameters(self) -> list[str]:
        """The names of the path's parameters."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def route(self) -> str:
        """The path in Starlette's form, in which a parameter may hold slashes, as names of models do."""
        return self.path.replace("}", ":name}")


PATHS = (
    Path("/v1/models", models),
    Path("/v1/models/{model}", model),
    Path("/v1/completions", complete, CompletionBody, content=STREAMED),
    Path("/v1/chat/completions", chat, ChatBody, content=STREAMED),
    Path("/v1/responses", respond, ResponsesBody, content=STREAMED),
    Path("/v1/messages", message, MessagesBody, ApiError.anthropic, content=STREAMED),
    Path("/v1/messages/count_tokens", count_tokens, MessagesFields, ApiError.anthropic),
    Path("/tokenize", tokenize, TokenizeBody),
    Path("/detokenize", detokenize, DetokenizeBody),
    Path("/", page, is_open=True, content=("text/html",)),
    Path("/health", health, is_open=True),
    Path("/version", version, is_open=True),
    Path("/metrics", metrics, is_open=True, content=("text/plain",)),
)
