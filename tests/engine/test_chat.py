"""Conversations go through the model's chat template."""

import json
import shutil

import pytest

from minllm import LLM, SamplingParams
from minllm.errors import InvalidRequestError
from tests.engine.models import model_directory

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
MESSAGES = [{"role": "user", "content": "write a loop"}]
PARAMS = SamplingParams(temperature=1.0, seed=0, max_tokens=16, ignore_eos=True)


@pytest.fixture
def chat_llm(tmp_path):
    directory = tmp_path / "chat"
    shutil.copytree(model_directory("small"), directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    with LLM(directory, device="cpu", max_model_len=128) as llm:
        yield llm


def test_chat_is_generation_from_the_templates_text(chat_llm):
    plain = chat_llm.generate("<user>write a loop\n<assistant>", PARAMS)[0]
    reply = chat_llm.chat(MESSAGES, PARAMS)
    assert len(reply) == 1 and reply[0].prompt_token_ids == plain.prompt_token_ids
    assert reply[0].outputs[0].text == plain.outputs[0].text == "".join(chat_llm.stream_chat(MESSAGES, PARAMS))


def test_several_conversations_at_once(chat_llm):
    other = [{"role": "user", "content": "and a list"}]
    first, second = chat_llm.chat([MESSAGES, other], PARAMS)
    assert first.prompt == "<user>write a loop\n<assistant>" and second.prompt == "<user>and a list\n<assistant>"
    assert first.outputs == chat_llm.chat(MESSAGES, PARAMS)[0].outputs and second.outputs == chat_llm.chat(other, PARAMS)[0].outputs
    with pytest.raises(InvalidRequestError, match="Prompt 1 of 2, counted from 0: A conversation is a list of at least one message"):
        chat_llm.chat([MESSAGES, []])
    with pytest.raises(InvalidRequestError, match="stream.. takes one prompt"):
        chat_llm.stream_chat([MESSAGES, other])


def test_how_the_prompt_ends(chat_llm):
    begun = [*MESSAGES, {"role": "assistant", "content": "for i"}]
    texts = [
        chat_llm.chat(begun, PARAMS, add_generation_prompt=prompts, continue_final_message=continues)[0].prompt
        for prompts, continues in ((True, False), (False, False), (False, True))
    ]
    plain = "<user>write a loop\n<assistant>for i"
    assert texts == [plain + "\n<assistant>", plain + "\n", plain]
    with pytest.raises(InvalidRequestError, match="continue_final_message=True is not allowed with add_generation_prompt=True"):
        chat_llm.chat(begun, continue_final_message=True)


def test_a_template_of_the_calls_own(chat_llm, llm):
    template = "{{ tools[0].function.name }} {{ word }} {{ messages[0].content }}{{ add_generation_prompt }}"
    options = dict(chat_template=template, tools=[{"function": {"name": "look"}}], chat_template_kwargs={"word": "up"})
    for one in (chat_llm, llm):  # the second one's model has no template
        assert one.chat(MESSAGES, PARAMS, **options)[0].prompt == "look up write a loopTrue"
        with one.stream_chat(MESSAGES, PARAMS, **options) as stream:
            assert stream.output.prompt == "look up write a loopTrue"


@pytest.mark.parametrize(
    "options,words",
    [
        (dict(chat_template=""), "chat_template='' is not allowed"),
        (dict(chat_template=5), "chat_template=5 is not allowed"),
        (dict(chat_template="{% for"), "The given chat_template is not valid Jinja"),
        (dict(chat_template="{{ raise_exception('no') }}"), "The given chat_template does not take these messages: no"),
        (dict(add_generation_prompt=1), "add_generation_prompt=1 is not allowed"),
        (dict(continue_final_message=None), "continue_final_message=None is not allowed"),
        (dict(tools={"a": 1}), "tools={'a': 1} is not allowed"),
        (dict(tools=[len]), "tools=.* is not allowed"),
        (dict(chat_template_kwargs=["a"]), "chat_template_kwargs=.* is not allowed"),
        (dict(chat_template_kwargs={5: 6}), "chat_template_kwargs=.* is not allowed"),
        (dict(chat_template_kwargs={"messages": []}), "chat_template_kwargs holds messages"),
    ],
)
def test_wrong_options_of_a_chat(chat_llm, options, words):
    for reply in (chat_llm.chat, chat_llm.stream_chat):
        with pytest.raises(InvalidRequestError, match=words):
            reply(MESSAGES, **options)


def test_bad_conversations(chat_llm, llm):
    for messages in ([], None, "hello", [{"content": "x"}], [{"role": "user"}], ["hello"], [[MESSAGES[0]], MESSAGES[0]], [[]]):
        with pytest.raises(InvalidRequestError):
            chat_llm.chat(messages)
    for reply in (chat_llm.chat, chat_llm.stream_chat):
        with pytest.raises(InvalidRequestError, match="cache_salt=''"):
            reply(MESSAGES, cache_salt="")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat(MESSAGES)
