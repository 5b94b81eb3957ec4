"""The tokenizer against transformers, and its errors."""

import warnings

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors
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


SENTENCE = {"bos_token": "<s>", "eos_token": "</s>"}


def test_flags_of_a_gguf_file_say_what_is_added():
    """add_bos_token and add_eos_token as gguf/vocabulary.py gives them; a flag that is missing leaves its side to the post-processor."""

    def encode(add_special_tokens=True, backend=None, **flags):
        return Tokenizer(backend or sentencepiece(), {**SENTENCE, **flags}).encode("hello", add_special_tokens)

    words = encode(False)
    assert encode() == [1, *words]  # the BOS of the post-processor
    assert encode(add_bos_token=False) == words
    assert encode(add_bos_token=True) == [1, *words]
    assert encode(add_eos_token=False) == encode(add_eos_token=False, add_bos_token=None) == [1, *words]
    assert encode(add_eos_token=True) == encode(add_eos_token=True, add_bos_token=True) == [1, *words, 2]
    assert encode(False, add_bos_token=True, add_eos_token=True) == words
    both = sentencepiece()
    both.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    assert encode(backend=both, add_bos_token=False) == [*words, 2]


def test_flags_of_a_directory_are_left_to_tokenizer_json(tmp_path):
    """As in transformers: a directory's tokenizer.json has a post-processor."""
    flags = {"add_bos_token": False, "add_eos_token": True, "tokenizer_class": "PreTrainedTokenizerFast"}
    tokenizer = write_tokenizer(tmp_path, sentencepiece(), SENTENCE | flags)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.encode("hello") == theirs.encode("hello") == [1, *tokenizer.encode("hello", add_special_tokens=False)]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)


@pytest.mark.parametrize(
    "config, named",
    [
        ({"fast_tokenizer_files": ["a"], "sp_model_kwargs": {}, "fix_mistral_regex": True}, ["fast_tokenizer_files", "fix_mistral_regex"]),
        ({"tokenizer_class": "Qwen2TokenizerFast"}, ["pre_tokenizer of tokenizer.json", "TokenizersBackend keeps it"]),
        ({"tokenizer_class": "GPT2TokenizerFast"}, []),
        ({"tokenizer_class": "XLMRobertaTokenizerFast"}, ["tokenizer_class", "XLMRobertaTokenizer", "tokenizer.json is followed"]),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": True, "eos_token": "</s>", "auto_map": None}, []),
    ],
)
def test_keys_that_are_not_followed_are_named_in_one_warning(config, named, tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        write_tokenizer(tmp_path, byte_level(), config)
    assert [all(word in str(warning.message) for word in named) for warning in caught] == [True] * bool(named)


@pytest.mark.parametrize(
    "config, message",
    [
        ({"eos_token": 3}, "special token must be a text"),
        ({"extra_special_tokens": "a"}, "list of tokens"),
        ({"extra_special_tokens": [1]}, "special token must be a text"),
        ({"added_tokens_decoder": {"a": {"content": "x"}}}, "from ids to tokens"),
        ({"added_tokens_decoder": [1]}, "must be an object"),
        ({"model_specific_special_tokens": ["x"]}, "must be an object"),
        ({"added_tokens_decoder": {"1": "x"}}, 'object with "content"'),
        ({"added_tokens_decoder": {"1": {"content": "x", "lstrip": "no"}}}, "true or false"),
    ],
)
def test_special_tokens_of_another_form_are_refused(config, message, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        write_tokenizer(tmp_path, byte_level(), config)


def test_ids_of_added_tokens_are_numbers(tmp_path):
    (tmp_path / "added_tokens.json").write_text('{"x": "one"}', encoding="utf-8")
    with pytest.raises(CheckpointError, match="from tokens to ids"):
        write_tokenizer(tmp_path, byte_level(), {})


def test_objects_are_tokens_wherever_texts_are(tmp_path):
    """Older files have them, with and without a "__type"; transformers 5 refuses some of these."""
    token = {"__type": "AddedToken", "content": "<|a|>", "lstrip": True}
    tokenizer = write_tokenizer(tmp_path, byte_level(), {"eos_token": token, "extra_special_tokens": [{"content": "<|b|>"}]})
    assert tokenizer.decode(tokenizer.encode("x <|a|><|b|>y")) == "xy"
    assert tokenizer.eos_token_id == tokenizer.encode("<|a|>")[0]


def test_a_number_under_a_name_like_that_of_a_token_is_not_followed_and_said_so(tmp_path):
    with pytest.warns(UserWarning, match="does not follow: num_image_token, x_token"):
        write_tokenizer(tmp_path, byte_level(), {"num_image_token": 256, "x_token": {"content": "<|x|>"}, "y_token": "<|y|>"})


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
    for bad in ([-1], [2**32], [1.5], ["1"], "1", [None], [[1]], None, 1):
        with pytest.raises(InvalidRequestError, match="cannot be decoded: give a list of whole numbers"):
            tokenizer.decode(bad)
    assert tokenizer.decode([10_000]) == ""


@pytest.mark.parametrize("words", ["you", "you " * 1000])
def test_a_word_without_a_token_is_refused_if_there_is_no_unknown_token(words):
    backend = tokenizers.Tokenizer(models.WordLevel({"hi": 0}))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = Tokenizer(backend)
    assert tokenizer.encode("hi hi") == [0, 0]
    with pytest.raises(InvalidRequestError, match="cannot encode this text: .*UNK"):
        tokenizer.encode(f"hi {words}")


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
    with pytest.raises(ForeignError, match="failed with Panic"):
        ChatTemplate("{{ value }}").render(MESSAGES, template_kwargs={"value": Panicking()})
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(tokenizers, "Tokenizer", Panicking())
    with pytest.raises(CheckpointError, match="cannot be read as a tokenizer: .* failed with Panic"):
        Tokenizer.from_directory(tmp_path)
