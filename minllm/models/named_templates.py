"""The chat templates of a model by name: which files hold them, and which of them renders a conversation.

    chat_template.jinja                     the one named "default"
    additional_chat_templates/NAME.jinja    one for another purpose
    tokenizer_config.json, chat_template    without these files: a text, or [{"name": NAME, "template": TEXT}, ...]

A request may name one. Otherwise "tool_use" renders conversations with tools, and "default" all others. Files and rules are those of
transformers 5 (tokenization_utils_base.py, get_chat_template).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minllm.errors import CheckpointError, InvalidRequestError, shown
from minllm.models.chat_template import LARGEST_TEMPLATE, ChatTemplate
from minllm.models.json_files import refuse_special_file

TEMPLATE_FILE, TEMPLATE_FOLDER = "chat_template.jinja", "additional_chat_templates"
DEFAULT, WITH_TOOLS = "default", "tool_use"


class ChatTemplates:
    """The templates of one model; each is compiled when it is first used."""

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]):
        """sources: Jinja source by name. special_tokens: see ChatTemplate."""
        self.sources, self._special_tokens = dict(sources), special_tokens
        self._compiled: dict[str, ChatTemplate] = {}
        self._given: tuple[str, ChatTemplate] | None = None  # source and template of the last request with its own

    @property
    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self.sources)

    def choose(self, given: object, tools: object) -> ChatTemplate:
        """The template for a request.

        given: what the request gives: None, the name of a template, or Jinja source. tools: None if the request has none. Raises
        InvalidRequestError if there is no such template, or if `given` is not valid Jinja.
        """
        if given is None:
            return self._named(self._usual_name(tools))
        if not isinstance(given, str) or not given:
            raise InvalidRequestError(
                f"chat_template={shown(given)} is not allowed: it is the text of a Jinja template, or the name of one of the model's."
            )
        if given in self.sources:
            return self._named(given)
        if not set(given) & set("{}\n"):  # as vLLM tells a name from source
            raise InvalidRequestError(
                f"chat_template={shown(given)} is neither Jinja source nor the name of one of the model's templates: "
                f"{', '.join(self.names) or 'it has none'}."
            )
        return self._from_source(given)

    def _usual_name(self, tools: object) -> str:
        if tools is not None and WITH_TOOLS in self.sources:
            return WITH_TOOLS
        if DEFAULT in self.sources:
            return DEFAULT
        if self.sources:
            raise InvalidRequestError(
                f"This model has no default chat template: give chat_template the name of one of its own, {', '.join(self.names)}."
            )
        raise InvalidRequestError(
            "This model has no chat template, it continues texts: give it a prompt, take a model for chat, or give a chat_template."
        )

    def _named(self, name: str) -> ChatTemplate:
        if name not in self._compiled:
            owner = "The model's chat template" + (f" {shown(name)}" if len(self.sources) > 1 else "")
            self._compiled[name] = ChatTemplate(self.sources[name], self._special_tokens, owner)
        return self._compiled[name]

    def _from_source(self, source: str) -> ChatTemplate:
        """The template that a request brings. The last one stays compiled for the next turn of the conversation."""
        given = self._given  # another thread may replace it
        if given is None or given[0] != source:
            try:
                given = self._given = source, ChatTemplate(source, self._special_tokens, "The given chat_template")
            except CheckpointError as error:
                raise InvalidRequestError(str(error)) from error
        return given[1]


def find_templates(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """{name: Jinja source} of a model directory; empty without any. Raises CheckpointError if one cannot be read."""
    files = {path.stem: path for path in sorted((directory / TEMPLATE_FOLDER).glob("*.jinja"))}
    if (directory / TEMPLATE_FILE).exists():
        files.setdefault(DEFAULT, directory / TEMPLATE_FILE)
    if files:
        return {name: _read(path) for name, path in files.items()}
    template = tokenizer_config.get("chat_template")
    if template is None:
        return {}
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        named = {entry.get("name"): entry.get("template") for entry in template}
    else:
        named = template if isinstance(template, dict) else {DEFAULT: template}
    if not all(isinstance(text, str) for pair in named.items() for text in pair):
        raise CheckpointError(
            f"tokenizer_config.json of {directory} must hold chat_template as a text, or as a list of named ones, "
            '[{"name": "default", "template": "..."}].'
        )
    return named


def _read(path: Path) -> str:
    refuse_special_file(path)
    try:
        if path.stat().st_size > 4 * LARGEST_TEMPLATE:  # UTF-8 has up to 4 bytes per character
            raise CheckpointError(f"{path} is longer than {LARGEST_TEMPLATE:,} characters: copy the file again from the model's source.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read as UTF-8 text: {error}.") from error
