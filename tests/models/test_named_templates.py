"""Several chat templates of one model: the one that renders is transformers' choice, whichever files hold them."""

import json
import shutil

import pytest
from transformers import PreTrainedTokenizerFast

from minllm.errors import CheckpointError, InvalidRequestError
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.named_templates import TEMPLATE_FOLDER
from minllm.models.tokenizer import Tokenizer
from tests.models.gguf.small_model import metadata
from tests.models.gguf.writer import float32, write_gguf
from tests.models.tokenizers_for_tests import byte_level

MESSAGES = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
PLAIN, USES_TOOLS, RAG = (f"{name} {{{{ tools | tojson }}}}{{{{ messages[0].content }}}}" for name in ("plain", "uses tools", "rag"))
ALL = {"default": PLAIN, "tool_use": USES_TOOLS, "rag": RAG}
LISTED = {"chat_template": [dict(name=name, template=text) for name, text in ALL.items()]}
LAYOUTS = {  # tokenizer_config.json, files
    "a text": (dict(chat_template=PLAIN), {}),
    "a list": (LISTED, {}),
    "no default": (dict(chat_template=LISTED["chat_template"][1:]), {}),
    "the last of a name": (dict(chat_template=[*LISTED["chat_template"], dict(name="default", template=RAG)]), {}),
    "an object": (dict(chat_template=ALL), {}),
    "a file over the config": (LISTED, {"chat_template.jinja": PLAIN}),
    "a folder over the config": (LISTED, {f"{TEMPLATE_FOLDER}/rag.jinja": RAG}),
    "a file and a folder": ({}, {"chat_template.jinja": PLAIN, f"{TEMPLATE_FOLDER}/tool_use.jinja": USES_TOOLS}),
    "the folder's default": ({}, {"chat_template.jinja": RAG, f"{TEMPLATE_FOLDER}/default.jinja": PLAIN}),
    "another file beside it": ({}, {"chat_template.jinja": PLAIN, f"{TEMPLATE_FOLDER}/rag.txt": RAG}),
    "processors' file": ({}, {"chat_template.json": json.dumps(dict(chat_template=PLAIN))}),
    "none": ({}, {}),
}


@pytest.fixture(scope="module")
def tokenizer_files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    byte_level().save(str(directory / "tokenizer.json"))
    return directory


def written(directory, tokenizer_files, config, files):
    shutil.copytree(tokenizer_files, directory, dirs_exist_ok=True)
    for name, text in {"tokenizer_config.json": json.dumps(config), **files}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    return directory


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_template_is_transformers_choice(tmp_path, tokenizer_files, layout):
    written(tmp_path, tokenizer_files, *LAYOUTS[layout])
    ours, theirs = Tokenizer.from_directory(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for options in (dict(tools=tools, chat_template=name) for tools in (None, [], TOOLS) for name in (None, "rag", RAG)):
        known = isinstance(theirs.chat_template, dict) and "rag" in theirs.chat_template
        if options["chat_template"] == "rag" and not known:  # transformers takes a text that names no template as the prompt itself
            with pytest.raises(InvalidRequestError, match="'rag' is neither Jinja source nor the name of one of the model's templates"):
                ours.apply_chat_template(MESSAGES, **options)
            continue
        try:
            expected = theirs.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True, **options)
        except ValueError:
            with pytest.raises(InvalidRequestError, match="has no (default )?chat template"):
                ours.apply_chat_template(MESSAGES, **options)
        else:
            assert ours.apply_chat_template(MESSAGES, **options) == expected


def test_errors_list_the_names(tmp_path, tokenizer_files):
    ours = Tokenizer.from_directory(written(tmp_path, tokenizer_files, *LAYOUTS["no default"]))
    for options in ({}, dict(chat_template="default"), dict(chat_template="gar")):
        with pytest.raises(InvalidRequestError, match="rag, tool_use"):
            ours.apply_chat_template(MESSAGES, **options)
    refusing = [dict(name="default", template="{{ raise_exception('no') }}"), dict(name="rag", template="{% for")]
    ours = Tokenizer.from_directory(written(tmp_path, tokenizer_files, dict(chat_template=refusing), {}))
    with pytest.raises(InvalidRequestError, match="The model's chat template 'default' does not take these messages: no"):
        ours.apply_chat_template(MESSAGES)
    with pytest.raises(CheckpointError, match="The model's chat template 'rag' is not valid Jinja"):
        ours.apply_chat_template(MESSAGES, chat_template="rag")


def test_a_gguf_file_names_templates(tmp_path):
    def model(**changes):
        return GgufModel(write_gguf(tmp_path / "model.gguf", metadata(**changes), {"a": float32([1])})).tokenizer()

    named = dict(tokenizer__chat_templates=["tool_use", "rag"], tokenizer__chat_template__rag=RAG)
    ours = model(tokenizer__chat_template=PLAIN, tokenizer__chat_template__tool_use=USES_TOOLS, **named)
    assert ours.apply_chat_template(MESSAGES) == "plain nullhello"
    assert ours.apply_chat_template(MESSAGES, tools=TOOLS) == f"uses tools {json.dumps(TOOLS)}hello"
    assert ours.apply_chat_template(MESSAGES, chat_template="rag") == "rag nullhello"
    ours = model(tokenizer__chat_template=None, **named)  # a name without a template
    with pytest.raises(InvalidRequestError, match="no default chat template.* its own, rag"):
        ours.apply_chat_template(MESSAGES, tools=TOOLS)
