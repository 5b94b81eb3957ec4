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
    shutil.copytree(model_directory("llama3"), directory)
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    with LLM(directory, device="cpu", max_model_len=128) as llm:
        yield llm


def test_chat_is_generation_from_the_templates_text(chat_llm):
    plain = chat_llm.generate("<user>write a loop\n<assistant>", PARAMS)[0]
    reply = chat_llm.chat(MESSAGES, PARAMS)
    assert len(reply) == 1 and reply[0].prompt_token_ids == plain.prompt_token_ids
    assert reply[0].outputs[0].text == plain.outputs[0].text == "".join(chat_llm.stream_chat(MESSAGES, PARAMS))


def test_bad_conversations(chat_llm, llm):
    for messages in ([], None, "hello", [{"content": "x"}], [{"role": "user"}], ["hello"]):
        with pytest.raises(InvalidRequestError):
            chat_llm.chat(messages)
    for reply in (chat_llm.chat, chat_llm.stream_chat):
        with pytest.raises(InvalidRequestError, match="cache_salt=''"):
            reply(MESSAGES, cache_salt="")
    with pytest.raises(InvalidRequestError, match="no chat template"):
        llm.chat(MESSAGES)
