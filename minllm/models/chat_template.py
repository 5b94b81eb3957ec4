"""A model's chat template: Jinja source that turns a conversation into a prompt in the model's format.

A template is an untrusted program, so it runs in Jinja's immutable sandbox, with limits on time and size (template_sandbox.py) and with the
few functions that templates expect (template_environment.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jinja2

from minllm.errors import CheckpointError, InvalidRequestError, as_exception, shown
from minllm.models.conversation import checked_messages, checked_tools, plain_data, with_joined_parts, with_mark
from minllm.models.template_environment import loops_over_content, template_environment
from minllm.models.template_sandbox import LARGEST_VALUE, BudgetError, budget_of

LARGEST_TEMPLATE = 256 << 10  # characters; templates with tools have about 20,000
LONGEST_MESSAGE = 500  # characters of a template's error message that are shown
FINAL_MARK = "<<<the final message ends here>>> "  # the space shows whether a template trims its messages
RESERVED_NAMES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")


class ChatTemplate:
    """A compiled chat template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None, owner: str = "The model's chat template"):
        """special_tokens: names that templates use (bos_token, eos_token, ...). owner: begins error messages.

        Raises CheckpointError if `source` is too long or is not valid Jinja.
        """
        self._owner = owner
        if len(source) > LARGEST_TEMPLATE:
            raise CheckpointError(
                f"{owner} has {len(source):,} characters, and at most {LARGEST_TEMPLATE:,} are allowed: "
                "copy the file again from the model's source."
            )
        environment = template_environment()
        self._special_tokens = dict(special_tokens or {})
        self._chars = len(source)
        try:
            self._template = environment.from_string(source)
            self._reads_parts = loops_over_content(environment.parse(source))
        except jinja2.TemplateSyntaxError as error:
            raise CheckpointError(f"{owner} is not valid Jinja, line {error.lineno}: {error.message}.") from error
        except (RecursionError, SyntaxError, MemoryError):  # Python's limits on the code that Jinja generates
            raise CheckpointError(f"{owner} is nested too deeply to compile.") from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation, [{"role": "user", "content": "..."}, ...].

        add_generation_prompt: begin the assistant's turn. continue_final_message: end the prompt with the final message's text, which the
        model continues. tools: descriptions of functions, for the template. template_kwargs: more variables for the template, such as
        enable_thinking. Raises InvalidRequestError if the messages have another form, or if the template refuses them.
        """
        _check_flags(add_generation_prompt, continue_final_message)
        messages, tools = checked_messages(messages), checked_tools(tools)
        if continue_final_message:
            messages = with_mark(messages, FINAL_MARK)
        if not self._reads_parts:
            messages = with_joined_parts(messages)
        names = {**self._special_tokens, "documents": None, **_checked_names(template_kwargs)}
        text = self._rendered(names | dict(messages=messages, tools=tools, add_generation_prompt=add_generation_prompt))
        return self._up_to_the_mark(text) if continue_final_message else text

    def _rendered(self, names: dict[str, Any]) -> str:
        try:
            with budget_of(self._chars) as budget:
                budget.weigh(names)
                return "".join(self._pieces(names))
        except BudgetError as error:
            raise InvalidRequestError(f"{self._owner} was stopped: {error}. Shorten the messages, or mend the template.") from error
        except BaseException as error:  # a template, and the values that it reads, can raise anything
            words = str(as_exception(error))
            words = words if len(words) <= LONGEST_MESSAGE else f"{words[:LONGEST_MESSAGE]}..."
            raise InvalidRequestError(f"{self._owner} does not take these messages: {words}") from error

    def _pieces(self, names: dict[str, Any]) -> Iterator[str]:
        """The prompt, piece by piece. Raises BudgetError if it becomes too long."""
        chars = 0
        for piece in self._template.generate(names):
            chars += len(piece)
            if chars > LARGEST_VALUE:
                raise BudgetError(f"it writes more than {LARGEST_VALUE:,} characters")
            yield piece

    def _up_to_the_mark(self, text: str) -> str:
        """The prompt up to the end of the final message.

        It is trimmed if the template trims messages, which removes the space of the mark.
        """
        mark = FINAL_MARK.rstrip()
        if text.count(mark) != 1:
            raise InvalidRequestError(
                f"{self._owner} leaves the final message out, or changes it or repeats it, so that continue_final_message=True cannot "
                "continue it."
            )
        end = text.index(mark)
        return text[:end] if text.startswith(FINAL_MARK, end) else text[:end].rstrip()


def _check_flags(add_generation_prompt: object, continue_final_message: object) -> None:
    for name, value in (("add_generation_prompt", add_generation_prompt), ("continue_final_message", continue_final_message)):
        if not isinstance(value, bool):
            raise InvalidRequestError(f"{name}={shown(value)} is not allowed: it is True or False.")
    if add_generation_prompt and continue_final_message:
        raise InvalidRequestError(
            "continue_final_message=True is not allowed with add_generation_prompt=True, which begins a new message: set one to False."
        )


def _checked_names(template_kwargs: object) -> dict[str, Any]:
    """A copy of chat_template_kwargs.

    Raises InvalidRequestError unless it is a dictionary without reserved names.
    """
    names = {} if template_kwargs is None else template_kwargs
    if not isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError(f"chat_template_kwargs={shown(names)} is not allowed: it is a dictionary from names to values.")
    for name in names:
        if name in RESERVED_NAMES:
            raise InvalidRequestError(f"chat_template_kwargs holds {name}, which is an argument of its own: give it there.")
    return plain_data(names)
