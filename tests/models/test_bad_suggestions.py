"""Templates, names and suggestions that are damaged, hostile or mistaken: each is refused by name, when it is read or by the request."""

import json
import os

import numpy as np
import pytest

from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models import template_sandbox
from minllm.models.chat_template import LARGEST_TEMPLATE
from minllm.models.generation_config import read_generation_config
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.tokenizer import Tokenizer
from tests.models.gguf.small_model import metadata
from tests.models.gguf.writer import float32, write_gguf
from tests.models.tokenizers_for_tests import byte_level

MESSAGES = [{"role": "user", "content": "hello"}]
BROKEN = [{"name": "default", "template": "fine"}, {"name": "broken", "template": "{% for"}]
LOOP = "{% for i in range(9) %}{{ i }}{% endfor %}"
CYCLE = {"role": "user", "content": "hello"}
CYCLE["previous"] = [CYCLE]

FILES = {  # name: (file, content, words)
    "a template in Latin-1": ("chat_template.jinja", "Größe".encode("latin-1"), "chat_template.jinja cannot be read as UTF-8 text"),
    "a template too long to read": ("chat_template.jinja", b"a" * (4 * LARGEST_TEMPLATE + 1), "is longer than 262,144 characters"),
    "a template that is a FIFO": ("additional_chat_templates/rag.jinja", None, "rag.jinja is a FIFO, a socket or a device"),
    "a template that is a folder": ("additional_chat_templates/rag.jinja/a.txt", b"", "rag.jinja cannot be read as UTF-8 text"),
    "names without templates": ("tokenizer_config.json", b'{"chat_template": [{"name": "default"}]}', "must hold chat_template as a text"),
    "a list of templates without names": ("tokenizer_config.json", b'{"chat_template": ["a", "b"]}', "must hold chat_template as a text"),
    "suggestions that are no object": ("generation_config.json", b"[1]", "generation_config.json must hold a JSON object"),
    "a temperature that is no number": ("generation_config.json", b'{"temperature": NaN}', "temperature = nan, and it must be a finite"),
    "words in place of token ids": ("generation_config.json", b'{"bad_words_ids": [["no"]]}', "a list of lists of token ids"),
    "a fractional limit": ("generation_config.json", b'{"max_new_tokens": 2.5}', "max_new_tokens = 2.5"),
}
REQUESTS = {  # name: (chat_template of tokenizer_config.json, messages, options, words)
    "an unknown name": (BROKEN, MESSAGES, dict(chat_template="rag"), "'rag' is neither Jinja source nor the name .*: broken, default"),
    "a name of a broken template": (BROKEN, MESSAGES, dict(chat_template="broken"), "chat template 'broken' is not valid Jinja, line 1"),
    "a file's path as a name": ("fine", MESSAGES, dict(chat_template="chat.jinja"), "'chat.jinja' is neither Jinja source nor the name"),
    "a template without an end of time": (LOOP, MESSAGES, {}, "was stopped: it was still running after 0 seconds"),
    "a template that calls itself": ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", MESSAGES, {}, "was stopped|does not take these"),
    "a message that contains itself": ("fine", [CYCLE], {}, "a value that contains itself"),
    "tools that are functions": ("fine", MESSAGES, dict(tools=[print]), "tools=.* is not allowed: it is a list of dictionaries"),
}


@pytest.fixture
def directory(tmp_path):
    byte_level().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("name", FILES)
def test_a_bad_file_is_refused_when_it_is_read(directory, name):
    file, content, words = FILES[name]
    (directory / file).parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        os.mkfifo(directory / file)
    else:
        (directory / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.from_directory(directory)
        read_generation_config(directory)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_bad_request_is_refused_and_harms_no_other(directory, monkeypatch, name):
    template, messages, options, words = REQUESTS[name]
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    tokenizer = Tokenizer.from_directory(directory)
    with monkeypatch.context() as patch:
        if "time" in name:
            patch.setattr(template_sandbox, "SECONDS", 0.0)
        with pytest.raises(CheckpointError if "broken" in name else InvalidRequestError, match=words):
            tokenizer.apply_chat_template(messages, **options)
    assert tokenizer.apply_chat_template(MESSAGES, chat_template="{{ messages[0].content }}") == "hello"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(tokenizer__chat_template__rag=5), "tokenizer.chat_template.rag must be a text"),
        (dict(tokenizer__ggml__eot_token_id=np.array([1], np.int32)), "eot_token_id = 'an array of 1'"),
        (dict(tokenizer__ggml__fim_sep_token_id="<|file_sep|>"), "fim_sep_token_id = '<|file_sep|>', and it must be a token id"),
        (dict(general__sampling__temp="hot"), "general.sampling.temp = 'hot', and it must be a finite number"),
        (dict(general__sampling__top_k=0.5), "general.sampling.top_k = 0.5"),
    ],
)
def test_a_bad_key_of_a_gguf_file_is_refused_by_name(tmp_path, changes, words):
    source = GgufModel(write_gguf(tmp_path / "model.gguf", metadata(**changes), {"a": float32([1])}))
    with pytest.raises(CheckpointError, match=words):
        source.config(), source.tokenizer(), source.generation_config()
