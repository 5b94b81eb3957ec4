"""The base of all bodies. Fields that are unknown are ignored, and null means that a field was not given, as in vLLM."""

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from minllm.errors import shown
from minllm.server.errors import ApiError, refused


class Body(BaseModel):
    """A JSON object. REFUSED: {field: what is allowed} of fields whose value changes the answer and that minllm cannot follow."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())
    REFUSED: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: object) -> Any:
        """The object without fields that are null, so that they get their defaults."""
        if not isinstance(given, dict):
            return given
        for name, allowed in cls.REFUSED.items():
            if given.get(name):
                raise refused(name, given[name], allowed)
        return {name: value for name, value in given.items() if value is not None}


class ModelBody(Body):
    """A body that names a model."""

    model: str | None = Field(None, description="The served model's name, as GET /v1/models gives it; left out, it is that one.")


def parsed(kind: type[Body], given: object) -> Body:
    """The body. Raises ApiError that names the first wrong field."""
    if not isinstance(given, dict):
        raise ApiError(f"The body is {shown(given)}: it must be a JSON object.")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        ours = [one for one in found if one["loc"][:1] == found[0]["loc"][:1]]  # an error per allowed type of the first wrong field
        deepest = max(ours, key=lambda one: len(one["loc"]))
        param = path(deepest["loc"])
        messages = dict.fromkeys(one["msg"].removeprefix("Value error, ") for one in ours if len(one["loc"]) == len(deepest["loc"]))
        given = "" if deepest["type"] == "missing" else f", not {shown(deepest['input'])}"
        raise ApiError(f"{param or 'The body'}: {'; or: '.join(messages)}{given}.", param or None) from None


def path(location: tuple[int | str, ...]) -> str:
    """("messages", 0, "role") as "messages[0].role"; the names of types, with which pydantic tells alternatives apart, are left out."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "float", "bool"):
            text += f".{part}" if text else part
    return text
