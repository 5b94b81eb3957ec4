"""Errors as HTTP replies, in OpenAI's form and in Anthropic's.

    {"error": {"message": "...", "type": "invalid_request_error", "param": "temperature", "code": null}}
    {"type": "error", "error": {"type": "invalid_request_error", "message": "..."}}
"""  # fmt: skip

import re
from typing import Any

from minllm import errors
from minllm.server.wire import PARAMETERS, Failure

ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip
STATUS = {  # others of minllm are the request's fault
    "DeadlineError": 504, "EngineDeadError": 503, "EngineBusyError": 503, "PreemptedError": 503,
}  # fmt: skip
CODES = {"ContextLengthError": "context_length_exceeded", "PreemptedError": "preempted"}  # by which clients of OpenAI tell errors apart
PARAM = re.compile(r"(\w+)(?:\[[^]]*\])?[ =]")


class ApiError(Exception):
    """A request that is refused. param: the field at fault, as "messages[0].content". retry_after: seconds."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str | None = None, code: str | None = None,
        retry_after: int | None = None,
    ):  # fmt: skip
        super().__init__(message)
        self.message, self.param, self.status, self.code, self.retry_after = message, param, status, code, retry_after
        self.kind = kind or ("invalid_request_error" if status < 500 else "server_error")

    def openai(self) -> dict[str, Any]:
        """The body in OpenAI's form."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body in Anthropic's form."""
        kind = ANTHROPIC_TYPES.get(self.status, "api_error" if self.status >= 500 else "invalid_request_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    @property
    def headers(self) -> dict[str, str]:
        """Retry-After, if a later attempt may succeed."""
        return {} if self.retry_after is None else {"retry-after": str(self.retry_after)}


def refused(param: str, given: object, allowed: str) -> ApiError:
    """The error of a field with a value that is not allowed."""
    return ApiError(f"{param}={errors.shown(given)} is not allowed: {param} is {allowed}.", param)


def too_many(message: str) -> ApiError:
    """The error of a request for which there is no room now."""
    return ApiError(message, None, 429, "rate_limit_error", "rate_limit_exceeded", retry_after=1)


def error_of(kind: str, message: str) -> ApiError:
    """The reply for an error of minllm, by the name of its class."""
    status = STATUS.get(kind, 400 if hasattr(errors, kind) else 500)
    if status == 503:
        return ApiError(message, None, 503, "server_error", CODES.get(kind, "engine_dead"), retry_after=5)
    begins = PARAM.match(message)
    param = begins[1] if begins and begins[1] in PARAMETERS else None
    return ApiError(message, param, status, code=CODES.get(kind))


def error_from(error: errors.MinLLMError) -> ApiError:
    """The reply for an error that was raised in this process."""
    return error_of(type(error).__name__, str(error))


def error_from_failure(failure: Failure) -> ApiError:
    """The reply for an error that the engine reported."""
    return error_of(*failure)
