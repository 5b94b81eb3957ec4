"""Messages in OpenAI's form, and what a template gets to see of them; the oracle is transformers."""

import enum
import json
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from minllm.errors import InvalidRequestError
from minllm.models.chat_template import ChatTemplate
from minllm.models.conversation import checked_messages

PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TRIMMED = PLAIN.replace("m.content", "m['content'] | trim")
LOOP = "{% for part in CONTENT %}[{{ part.text }}]{% endfor %}"
PARTS = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}" + LOOP + "{% endif %}{% endfor %}"
READS_PARTS = {
    "attribute": PARTS.replace("CONTENT", "m.content"),
    "item": PARTS.replace("CONTENT", "m['content']"),
    "filter": PARTS.replace("CONTENT", "m.content | list"),
    "variable": "{% for m in messages %}{% set c = m.content %}" + LOOP.replace("CONTENT", "c") + "{% endfor %}",
    "macro": "{% macro show(content) %}" + LOOP.replace("CONTENT", "content") + "{% endmacro %}"
    "{% for m in messages %}{{ show(m.content) }}{% endfor %}",
}
TWO_PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("template", READS_PARTS.values(), ids=READS_PARTS)
def test_templates_that_read_parts_get_parts(template):
    assert ChatTemplate(template).render(TWO_PARTS) == "[one][two]"


@pytest.mark.parametrize("template", [PLAIN, TRIMMED, "{% for word in messages[0].content.split() %}{{ word }} {% endfor %}"])
def test_other_templates_get_one_text(template):
    joined = [{"role": "user", "content": "one\ntwo"}]
    assert ChatTemplate(template).render(TWO_PARTS) == ChatTemplate(template).render(joined)


TEXTS = ["for i", "for i ", " for i\n", "a </s> b"]
CASES = [*product([PLAIN, TRIMMED, READS_PARTS["attribute"]], TEXTS), *product(READS_PARTS.values(), [None])]  # None: a list of parts


@pytest.mark.parametrize("template, final", CASES)
def test_a_continued_message_ends_as_in_transformers(template, final):
    content = [{"type": "text", "text": "for"}, {"type": "text", "text": "i "}] if final is None else final
    messages = [*TWO_PARTS, {"role": "assistant", "content": content}]
    texts = [{"role": "user", "content": "one\ntwo"}, messages[1]]  # transformers shows a list of parts as Python writes it
    given = messages if "part" in template else texts
    (expected,), _ = render_jinja_template([given], chat_template=template, continue_final_message=True)
    assert ChatTemplate(template).render(messages, add_generation_prompt=False, continue_final_message=True) == expected


TWICE = "{{ messages[-1].content }}{% for m in messages %}{{ m.content }}{% endfor %}"  # the place in the first copy would stay in the text


@pytest.mark.parametrize("template", ["{{ messages[0].content }}", "{{ messages[1].content | upper }}", "nothing", TWICE])
def test_a_template_that_drops_the_final_message_cannot_continue_it(template):
    messages = [{"role": "user", "content": "loop"}, {"role": "assistant", "content": "for"}]
    with pytest.raises(InvalidRequestError, match="leaves the final message out, or changes it"):
        ChatTemplate(template).render(messages, False, continue_final_message=True)


@pytest.mark.parametrize("content", [None, []])
def test_a_final_message_without_text_cannot_be_continued(content):
    with pytest.raises(InvalidRequestError, match="the final message has no text to continue"):
        ChatTemplate(PLAIN).render([{"role": "assistant", "content": content}], False, continue_final_message=True)


@pytest.mark.parametrize("value", [b"hello", bytearray(b"a"), {"a"}, object()])
def test_what_is_no_text_does_not_become_one(value):
    """A template gets the type's name of other objects, which is no content, role or text of a part."""
    part = dict(type="text", text=value)
    for message in (dict(role="user", content=value), dict(role=value, content="a"), dict(role="user", content=[part])):
        with pytest.raises(InvalidRequestError, match=f"<{type(value).__name__}>|is not a message with a role and a content"):
            checked_messages([message])
    assert ChatTemplate("{{ x }}").render([dict(role="user", content="a")], template_kwargs={"x": value}) == f"<{type(value).__name__}>"


def test_tools_and_other_names_reach_the_template_as_in_transformers():
    template = "{{ tools | tojson }}{{ enable_thinking }}{{ bos_token }}{{ documents is none }}{{ messages[0].content }}"
    names = dict(enable_thinking=False, bos_token="<s>")
    messages = [{"role": "user", "content": "one"}]
    (expected,), _ = render_jinja_template([messages], tools=TOOLS, chat_template=template, **names)
    assert ChatTemplate(template, {"bos_token": "?"}).render(messages, tools=TOOLS, template_kwargs=names) == expected


def test_arguments_of_tool_calls_become_dictionaries():
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": ["x"]}'}}
    message = {"role": "assistant", "tool_calls": [call]}
    (checked,) = checked_messages([message])
    assert checked["tool_calls"][0]["function"]["arguments"] == {"at": ["x"]} and "content" not in checked
    assert json.loads(call["function"]["arguments"]) == {"at": ["x"]}, "the caller's message stays as it was"
    call["function"]["arguments"] = {"at": 1}
    assert checked_messages([message])[0]["tool_calls"] == [call]


@pytest.mark.parametrize(
    "message,words",
    [
        ({"role": "user", "content": 5}, "content=5 of a message is not allowed"),
        ({"role": "user", "content": {"type": "text"}}, "content=.* is not allowed"),
        ({"role": "user", "content": ["a"]}, "'a' is not a part of a message that minllm can read"),
        ({"role": "user", "content": [{"type": "text"}]}, "is not a part"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "is not a part"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "image_url.* it reads text alone"),
        ({"role": "assistant", "tool_calls": []}, "is not a message"),
        ({"role": 5, "content": "a"}, "is not a message"),
        ({"role": "assistant", "tool_calls": "look"}, "tool_calls='look' is not allowed"),
        ({"role": "assistant", "tool_calls": ["look"]}, "tool_calls=.* is not allowed"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}, "are not valid JSON"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[]"}}]}, "are not a JSON object"),
        ({"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 10**5}}]}, "are not valid JSON"),
    ],
)
def test_messages_that_are_none(message, words):
    with pytest.raises(InvalidRequestError, match=words):
        ChatTemplate(PLAIN).render([message])


@dataclass
class Message:
    role: str
    content: str | None
    tool_calls: list | None = None


class Model:
    """As pydantic's models, of which OpenAI's client makes its messages."""

    def __init__(self, **values):
        self.values = values

    def model_dump(self):
        return self.values


class Colour(str, enum.Enum):  # noqa: UP042 - str() of this kind is its name
    RED = "red"


SEES = "{% for m in messages %}{{ m | tojson }}{% for part in m.content %}{% endfor %}{% endfor %}{{ tools | tojson }}{{ extra }}"
FOREIGN = [
    {"role": "user", "content": Colour.RED, "name": None, "count": np.int64(3), "yes": np.True_, "pair": (1, np.float32(0.5))},
    Message("assistant", None, [{"id": "1", "function": {"name": "f", "arguments": {"x": np.int8(1)}}}]),
    Model(role="assistant", content="hi", refusal=None, reasoning=None),
    {"role": "assistant", "content": "hi", "reasoning": "so", "thinking": None},
    {"role": "assistant", "content": "hi", "reasoning": "so", "thinking": "or so"},
    {"role": "assistant", "content": "hi", "reasoning": "so", "thinking": "or so", "reasoning_content": ""},
    {"role": "assistant", "reasoning_content": "so"},
    {"role": "user", "content": [{"type": "text", "text": "one", "cache_control": None}], "image": object()},
]


@pytest.mark.parametrize("message", FOREIGN)
def test_a_template_sees_what_transformers_shows_it(message):
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    given = dict(tools=[{"function": {"name": "look", "strict": None, "limit": np.int64(2)}}], extra=Colour.RED)
    expected = PreTrainedTokenizerFast(tokenizer_object=backend).apply_chat_template([message], tokenize=False, chat_template=SEES, **given)
    assert ChatTemplate(SEES).render([message], False, tools=given["tools"], template_kwargs=dict(extra=Colour.RED)) == expected


@pytest.mark.parametrize("message", FOREIGN[1:2] + FOREIGN[6:7])
def test_a_message_without_content_is_not_shown_as_none(message):
    assert ChatTemplate(PLAIN).render([message], False) == "<assistant></s>\n"


def test_values_that_hold_themselves_are_refused():
    endless = {"role": "user", "content": "hello", "more": []}
    endless["more"].append(endless)
    wide = [0] * 8
    for _ in range(8):
        wide = [wide] * 8
    for message, words in ((endless, "contains itself"), ({"role": "user", "content": "hello", "more": wide}, "may have 1,048,576 values")):
        with pytest.raises(InvalidRequestError, match=words):
            ChatTemplate(PLAIN).render([message])


LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=9)
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", 5]), "text": st.text() | JSON}) | JSON
CONTENT = st.text() | st.lists(PART, max_size=3) | JSON
MESSAGE = st.fixed_dictionaries({}, optional=dict(role=st.text() | JSON, content=CONTENT, tool_calls=st.lists(JSON) | JSON)) | JSON


@given(messages=st.lists(MESSAGE, max_size=3), tools=st.none() | st.lists(st.dictionaries(st.text(), JSON)) | JSON, continues=st.booleans())
def test_any_conversation_is_rendered_or_refused(messages, tools, continues):
    for template in (PLAIN, READS_PARTS["attribute"], "{{ tools | tojson }}{{ messages | tojson }}"):
        try:
            assert isinstance(ChatTemplate(template).render(messages, not continues, continues, tools), str)
        except InvalidRequestError:
            pass
