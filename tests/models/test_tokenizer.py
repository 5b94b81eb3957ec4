"""The tokenizer against transformers, and its errors."""

import pytest
import tokenizers
from tokenizers import processors
from transformers import PreTrainedTokenizerFast
from transformers.utils.chat_template_utils import render_jinja_template

from minllm.errors import CheckpointError, ForeignError, InvalidRequestError
from minllm.models.chat_template import ChatTemplate
from minllm.models.tokenizer import Tokenizer
from tests.models.tokenizers_for_tests import TEXT, byte_level, sentencepiece, write_tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie geht's? <b>東京</b>"},
    {"role": "assistant", "content": "Fine & well."},
    {"role": "user", "content": "Bye"},
]
CHATML = (
    "{%- for message in messages %}\n{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n{{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ bos_token }}"
    "{% for m in rest %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}[INST] {{ system if loop.first }} {{ m['content'] | trim }} [/INST]"
    "{% else %}{% generation %} {{ m['content'] }} {{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}"
)
ODD = (
    "{% set ns = namespace(n=0) %}\n    {% for m in messages %}\n  {% if m.role == 'assistant' %}{% continue %}{% endif %}\n"
    "{{ m | tojson }}{{ strftime_now('%Y') }}{% set ns.n = ns.n + 1 %}\n{% endfor %}\n{{ ns.n }}{{ tools is none }}{{ undefined_name }}"
)


@pytest.mark.parametrize("template", [CHATML, LLAMA2, ODD])
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_templates_render_as_in_transformers(template, add_generation_prompt):
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    expected, _ = render_jinja_template([MESSAGES], chat_template=template, add_generation_prompt=add_generation_prompt, **special)
    assert ChatTemplate(template, special).render(MESSAGES, add_generation_prompt) == expected[0]


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__subclasses__() }}",
        "{{ raise_exception('no') }}",
        "{{ messages[0].content + 1 }}",
        "{{ range(10**9) | list }}",
        "{% for m in missing.attribute %}{% endfor %}",
    ],
)
def test_a_template_that_misbehaves_is_an_error_of_ours(template):
    with pytest.raises(InvalidRequestError, match="does not take these messages"):
        ChatTemplate(template).render(MESSAGES)


def test_the_templates_own_message_reaches_the_user():
    with pytest.raises(InvalidRequestError, match="Roles must alternate"):
        ChatTemplate(LLAMA2).render([{"role": "assistant", "content": "x"}])


def test_a_template_that_is_not_jinja():
    with pytest.raises(CheckpointError, match="not valid Jinja, line 2"):
        ChatTemplate("fine\n{% for x %}")


@pytest.mark.parametrize("messages", [[], "hello", None, ["hello"], [{"role": "user"}], [{"content": "x"}], [{"role": 1, "content": "x"}]])
def test_messages_of_another_form_are_refused(messages):
    with pytest.raises(InvalidRequestError, match="role"):
        ChatTemplate(CHATML).render(messages)


def test_where_the_template_is_found(tmp_path):
    named = {"chat_template": [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "default {{ bos_token }}"}]}
    config = {**named, "bos_token": {"content": "<|endoftext|>", "special": True}}
    tokenizer = write_tokenizer(tmp_path, byte_level(), config)
    assert tokenizer.apply_chat_template(MESSAGES) == "default <|endoftext|>"
    assert tokenizer.encode_chat(MESSAGES) == tokenizer.encode("default ") + [tokenizer.bos_token_id]
    (tmp_path / "chat_template.jinja").write_text("from the file", encoding="utf-8")
    assert Tokenizer.from_directory(tmp_path).apply_chat_template(MESSAGES) == "from the file"
    assert write_tokenizer(tmp_path, byte_level(), {}).has_chat_template
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = write_tokenizer(tmp_path, byte_level(), {})
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.apply_chat_template(MESSAGES)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
def test_ids_and_texts_equal_transformers(make, tmp_path):
    tokenizer = write_tokenizer(tmp_path, make())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"))
    for text in [*TEXT, "", " ", "unseen: Ωß漢"]:
        for special in (True, False):
            ids = tokenizer.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
        assert tokenizer.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_add_bos_token_and_add_eos_token_are_obeyed(tmp_path):
    plain = write_tokenizer(tmp_path, sentencepiece(), {"bos_token": "<s>", "eos_token": "</s>"})
    neither = write_tokenizer(tmp_path, sentencepiece(), {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": False})
    both = write_tokenizer(
        tmp_path, sentencepiece(), {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True, "add_eos_token": True}
    )
    words = plain.encode("hello", add_special_tokens=False)
    assert plain.encode("hello") == [1, *words]  # the BOS that its tokenizer.json adds
    assert neither.encode("hello") == words
    assert both.encode("hello") == [1, *words, 2]
    assert both.encode("hello", add_special_tokens=False) == words
    assert (both.bos_token_id, both.eos_token_id) == (1, 2)


def test_a_flag_that_is_missing_leaves_its_side_to_tokenizer_json(tmp_path):
    def encode(**flags):
        return write_tokenizer(tmp_path, sentencepiece(), {"bos_token": "<s>", "eos_token": "</s>", **flags}).encode("hello")

    plain = encode()
    assert plain[0] == 1 and plain[-1] != 2
    assert encode(add_eos_token=False) == encode(add_eos_token=False, add_bos_token=None) == plain
    assert encode(add_eos_token=True) == [*plain, 2]
    assert encode(add_bos_token=False) == plain[1:]
    assert encode(add_bos_token=True) == plain
    both = sentencepiece()
    both.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    assert write_tokenizer(tmp_path, both, {"bos_token": "<s>", "add_bos_token": False}).encode("hello") == [*plain[1:], 2]


def test_limits_of_the_training_run_are_not_taken_over(tmp_path):
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = write_tokenizer(tmp_path, backend)
    assert tokenizer.decode(tokenizer.encode(TEXT[0])) == TEXT[0]
    assert len(tokenizer.encode("a")) == 1


def test_what_is_no_text_is_refused(tmp_path):
    tokenizer = write_tokenizer(tmp_path, byte_level())
    with pytest.raises(InvalidRequestError, match="Unicode"):
        tokenizer.encode("\ud800")
    with pytest.raises(InvalidRequestError, match="str"):
        tokenizer.encode(3)
    with pytest.raises(InvalidRequestError, match="whole numbers"):
        tokenizer.decode([-1])
    assert tokenizer.decode([10_000]) == ""


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(CheckpointError, match="tokenizer.json is missing"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer"):
        Tokenizer.from_directory(tmp_path)
    write_tokenizer(tmp_path, byte_level())
    (tmp_path / "tokenizer_config.json").write_text("[1", encoding="utf-8")
    with pytest.raises(CheckpointError, match="tokenizer_config.json is not valid JSON"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": 3}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="chat_template"):
        Tokenizer.from_directory(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(CheckpointError, match="UTF-8"):
        Tokenizer.from_directory(tmp_path)


def test_a_panic_of_the_library_is_an_error_of_this_package(tmp_path, monkeypatch):
    """While a directory is read, and in every call afterwards."""

    class Panic(BaseException):
        pass

    class Panicking:
        decoder = None

        def __str__(self):
            raise Panic("no text")

        def __getattr__(self, name):
            return lambda *_, **__: (_ for _ in ()).throw(Panic(name))

        def get_added_tokens_decoder(self):
            return {}

        no_truncation = no_padding = get_added_tokens_decoder

    tokenizer = Tokenizer(Panicking())
    tokenizer.decoder = {"type": "ByteLevel"}
    for call in (lambda: tokenizer.encode("a"), lambda: tokenizer.decode([1]), lambda: tokenizer.incremental_decoder().push(1)):
        with pytest.raises(ForeignError, match="failed with Panic") as raised:
            call()
        assert isinstance(raised.value.__cause__, Panic)
    with pytest.raises(InvalidRequestError, match="does not take these messages: .* failed with Panic"):
        ChatTemplate("{{ value }}").render(MESSAGES, template_kwargs={"value": Panicking()})
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking())
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer: .* failed with Panic"):
        Tokenizer.from_directory(tmp_path)
