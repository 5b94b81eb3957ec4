"""The tokenizer of a GGUF file: the ids of llama.cpp's algorithm for every kind of splitting, special tokens, and what is refused."""

import json

import numpy as np
import pytest

from minllm.errors import CheckpointError, UnsupportedModelError
from minllm.models.gguf.gguf_model import GgufModel
from minllm.models.gguf.pre_tokenizers import SPLITTINGS
from tests.models.gguf.llama_cpp_bpe import EXPRESSIONS, encode
from tests.models.gguf.small_model import MERGES, SPECIALS, TOKENS, metadata
from tests.models.gguf.writer import float32, write_gguf
from tests.models.tokenizers_for_tests import TEXT, byte_level

TEXTS = [
    "hello world, hello 12345 worlds",
    "  two   spaces\tand\r\n\r\nlines \n  then 4½ and Ⅻ, ٣٤٥",
    "I'll you'd IT'S we're 'tis",
    "Größe, naïve café, 東京の天気は晴れです。 👩‍👩‍👧‍👦🎉",
    "def f(x):\n    return x**2 # !!\n",
    "<|im_start|>user\nhello<|im_end|>\n",
    "",
    " ",
]


def tokenizer(tmp_path, **changes):
    path = write_gguf(tmp_path / "model.gguf", metadata(**changes), {"a": float32([1])})
    return GgufModel(path).tokenizer()


def refuse(tmp_path, match, error=CheckpointError, **changes):
    with pytest.raises(error, match=match):
        tokenizer(tmp_path, **changes)


@pytest.fixture(scope="module")
def trained():
    """(tokens, merges) of a vocabulary with a few dozen merges."""
    model = json.loads(byte_level("<|im_start|>").to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return [*tokens, "<|im_end|>"], [" ".join(pair) for pair in model["merges"]]


def test_every_splitting_has_an_oracle():
    assert set(EXPRESSIONS) == set(SPLITTINGS)


@pytest.mark.parametrize("pre", SPLITTINGS)
@pytest.mark.parametrize("text", [*TEXTS, *TEXT[:3]])
def test_ids_are_llama_cpps(tmp_path, trained, pre, text):
    tokens, merges = trained
    kinds = np.array([3 if token.startswith("<|") else 1 for token in tokens], np.int32)
    changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__merges": merges, "tokenizer__ggml__token_type": kinds}
    changes |= {"tokenizer__ggml__bos_token_id": None, "tokenizer__ggml__eos_token_id": None, "tokenizer__ggml__pre": pre}
    ours = tokenizer(tmp_path, **changes)
    assert ours.encode(text, add_special_tokens=False) == encode(text, pre, tokens, merges, ["<|im_start|>", "<|im_end|>"])
    assert ours.decode(ours.encode(text), skip_special_tokens=False) == text


def test_a_word_that_is_a_token_needs_no_merges_in_llama_3_only(tmp_path):
    merges = [merge for merge in MERGES if merge != "hell o"]
    whole = [TOKENS.index("hello")]
    assert tokenizer(tmp_path, tokenizer__ggml__pre="llama-bpe", tokenizer__ggml__merges=merges).encode("hello") == whole
    assert tokenizer(tmp_path, tokenizer__ggml__pre="qwen2", tokenizer__ggml__merges=merges).encode("hello") != whole


def test_qwen_normalises_to_composed_characters(tmp_path):
    decomposed = "cafe\u0301"
    assert tokenizer(tmp_path, tokenizer__ggml__pre="qwen2").decode(tokenizer(tmp_path).encode("café")) == "café"
    qwen = tokenizer(tmp_path, tokenizer__ggml__pre="qwen2")
    assert qwen.encode(decomposed) == qwen.encode("café")


def test_special_tokens_and_the_chat_template(tmp_path):
    ours = tokenizer(tmp_path)
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, len(TOKENS))
    assert ours.special_token_ids == {0, 1, 2}
    assert ours.encode("<|im_start|>hello") == [1, TOKENS.index("hello")]
    assert ours.decode([1, TOKENS.index("hello"), 2]) == "hello"
    assert ours.apply_chat_template([dict(role="user", content="hi")]) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert not tokenizer(tmp_path, tokenizer__chat_template=None).has_chat_template
    source = GgufModel(write_gguf(tmp_path / "eot.gguf", metadata(tokenizer__ggml__eot_token_id=0), {"a": float32([1])}))
    assert source.config().eos_token_ids == (2, 0) and source.config().bos_token_ids == (1,)


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({}, [], []),
        (dict(tokenizer__ggml__add_bos_token=True), [1], []),
        (dict(tokenizer__ggml__add_eos_token=True), [], [2]),
        (dict(tokenizer__ggml__add_bos_token=None), [], []),
        (dict(tokenizer__ggml__add_bos_token=None, tokenizer__ggml__pre="llama-bpe"), [1], []),  # llama.cpp's default for Llama 3
        (dict(tokenizer__ggml__pre="llama-bpe"), [], []),
    ],
)
def test_tokens_around_a_text(tmp_path, changes, before, after):
    assert tokenizer(tmp_path, **changes).encode("hello") == [*before, TOKENS.index("hello"), *after]


def test_user_defined_tokens_are_whole_and_stay_in_the_text_and_unused_ones_do_not_exist(tmp_path):
    kinds = np.array([3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)) + [4, 5], np.int32)
    ours = tokenizer(tmp_path, tokenizer__ggml__tokens=[*TOKENS, "<tool>", "[PAD9]"], tokenizer__ggml__token_type=kinds)
    assert ours.encode("<tool>") == [len(TOKENS)] and ours.decode([len(TOKENS)]) == "<tool>"
    assert len(ours.encode("[PAD9]")) > 1 and ours.decode([len(TOKENS) + 1]) == ""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(tokenizer__ggml__model=None), "lacks 'tokenizer.ggml.model'"),
        (dict(tokenizer__ggml__tokens=None), "lacks 'tokenizer.ggml.tokens'"),
        (dict(tokenizer__ggml__tokens="abc"), "lacks 'tokenizer.ggml.tokens'"),
        (dict(tokenizer__ggml__tokens=[*TOKENS[:-1], "!"]), "holds a token twice"),
        (dict(tokenizer__ggml__token_type=None), "'tokenizer.ggml.token_type' must hold a whole number for each of"),
        (dict(tokenizer__ggml__token_type=np.ones(3, np.int32)), "'tokenizer.ggml.token_type' must hold"),
        (dict(tokenizer__ggml__token_type=np.ones(len(TOKENS), np.float32)), "'tokenizer.ggml.token_type' must hold"),
        (dict(tokenizer__ggml__token_type=np.full(len(TOKENS), 7, np.int32)), "holds 7, and types go from 1 to 6"),
        (dict(tokenizer__ggml__merges=None), "lacks 'tokenizer.ggml.merges'"),
        (dict(tokenizer__ggml__merges=["h e", "nospace"]), "merges holds 'nospace'"),
        (dict(tokenizer__ggml__merges=["h zz"]), "make no tokenizer"),
        (dict(tokenizer__ggml__bos_token_id=len(TOKENS)), "bos_token_id = .* and has .* tokens"),
        (dict(tokenizer__ggml__eos_token_id="2"), "eos_token_id = '2'"),
        (dict(tokenizer__ggml__add_bos_token=1), "add_bos_token = 1, and it must be true or false"),
        (dict(tokenizer__chat_template=5), "chat_template must be a text"),
    ],
)
def test_a_damaged_vocabulary_is_refused(tmp_path, changes, words):
    refuse(tmp_path, words, **changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(tokenizer__ggml__model="llama"), r"tokenizer.ggml.model 'llama' \(SentencePiece\)"),
        (dict(tokenizer__ggml__model="bert"), "tokenizer.ggml.model 'bert'"),
        (dict(tokenizer__ggml__pre="tekken"), "tokenizer.ggml.pre 'tekken', and minllm splits texts as gpt-2, smollm"),
        (dict(tokenizer__ggml__pre=None), "tokenizer.ggml.pre ''"),
    ],
)
def test_other_tokenizers_are_refused_by_name(tmp_path, changes, words):
    refuse(tmp_path, words, UnsupportedModelError, **changes)
