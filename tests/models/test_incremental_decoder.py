"""Pieces of text against the tokenizers library's decoding of the whole."""

import codecs
import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minllm.models import decoder_steps
from minllm.models.decoder_steps import BYTE_TOKEN, byte_level_bytes, byte_of_character
from minllm.models.incremental_decoder import IncrementalDecoder
from minllm.models.tokenizer import Tokenizer
from tests.models.tokenizers_for_tests import KINDS

TEXTS = [
    "hello world",
    " leading space",
    "    def f(x):\n        return x  # naïve café",
    "東京の天気は晴れです。🎉👩‍👩‍👧‍👦 end",
    "é",
    "tab\there, Größe",
]


@functools.cache
def tokenizer_of(kind: str) -> Tokenizer:
    return Tokenizer(KINDS[kind]())


def pieces_of(tokenizer, ids, prompt=(), skip_special_tokens=True):
    decoder = IncrementalDecoder(tokenizer, prompt, skip_special_tokens)
    return [decoder.push(token_id) for token_id in ids] + [decoder.finish()]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_together_are_the_whole(kind, text):
    tokenizer = tokenizer_of(kind)
    ids = tokenizer.encode(text)
    assert "".join(pieces_of(tokenizer, ids)) == tokenizer.decode(ids)


def whole_characters(tokenizer, ids):
    """The characters all of whose bytes are in these tokens."""
    names = [tokenizer.backend.id_to_token(token_id) for token_id in ids if token_id not in tokenizer.special_token_ids]
    if tokenizer.decoder["type"] == "ByteLevel":
        return b"".join(map(byte_level_bytes, names)).decode(errors="ignore")
    bytes_of = (bytes([int(name[3:5], 16)]) if BYTE_TOKEN.fullmatch(name) else name.replace("▁", " ").encode() for name in names)
    return b"".join(bytes_of).decode(errors="ignore")


@settings(deadline=None)
@given(st.text(max_size=30), st.data())
def test_a_text_may_be_split_into_prompt_and_continuation_anywhere(text, data):
    for kind in ("byte_level", "sentencepiece"):
        tokenizer = tokenizer_of(kind)
        ids = tokenizer.encode(text)
        whole = tokenizer.decode(ids)
        cut = data.draw(st.integers(0, len(ids)))
        before = whole_characters(tokenizer, ids[:cut]).removeprefix(" " if kind == "sentencepiece" else "")
        assert before + "".join(pieces_of(tokenizer, ids[cut:], ids[:cut])) == whole


@settings(deadline=None)
@given(st.lists(st.integers(0, 375), max_size=25))
def test_pieces_and_the_whole_are_the_librarys_text_for_any_ids(ids):
    """Also where the bytes are no UTF-8."""
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        for skip in (True, False):
            expected = tokenizer.backend.decode(ids, skip_special_tokens=skip)
            assert tokenizer.decode(ids, skip_special_tokens=skip) == expected
            assert "".join(pieces_of(tokenizer, ids, skip_special_tokens=skip)) == expected


def test_no_piece_holds_half_a_character():
    tokenizer = tokenizer_of("byte_level")
    letters = {byte: character for character, byte in byte_of_character().items()}
    ids = [tokenizer.backend.token_to_id(letters[byte]) for byte in "é東🎉".encode()]
    assert pieces_of(tokenizer, ids) == ["", "é", "", "", "東", "", "", "", "🎉", ""]
    assert pieces_of(tokenizer, ids[:4]) == ["", "é", "", "", "\ufffd"]  # cut off inside 東


def test_byte_tokens_of_sentencepiece_join_into_characters():
    tokenizer = tokenizer_of("sentencepiece")
    euro = [tokenizer.backend.token_to_id(f"<0x{byte:02X}>") for byte in "€".encode()]
    assert pieces_of(tokenizer, euro) == ["", "", "", "€"]
    word = tokenizer.backend.token_to_id("h")
    assert "".join(pieces_of(tokenizer, [*euro[:2], word])) == "\ufffd\ufffdh" == tokenizer.decode([*euro[:2], word])


def test_the_leading_space_belongs_to_the_first_word_only():
    tokenizer = tokenizer_of("sentencepiece")
    space_hello, bos = tokenizer.encode("hello"), tokenizer.backend.token_to_id("<s>")
    assert space_hello[0] == bos
    assert "".join(pieces_of(tokenizer, space_hello[1:])) == "hello"
    assert "".join(pieces_of(tokenizer, space_hello[1:], prompt=[bos])) == "hello"  # nothing but a special token before
    assert "".join(pieces_of(tokenizer, space_hello[1:], prompt=space_hello)) == " hello"


def test_special_tokens_are_skipped_or_shown():
    tokenizer = tokenizer_of("byte_level")
    end = tokenizer.backend.token_to_id("<|endoftext|>")
    ids = [*tokenizer.encode("a"), end, *tokenizer.encode("b")]
    assert "".join(pieces_of(tokenizer, ids)) == "ab"
    assert "".join(pieces_of(tokenizer, ids, skip_special_tokens=False)) == "a<|endoftext|>b"


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 340), max_size=9), max_size=6), st.lists(st.integers(0, 329), max_size=5), st.booleans())
def test_many_tokens_at_once_are_the_same_as_one_by_one(chunks, prompt, skips):
    for kind in KINDS:
        tokenizer = tokenizer_of(kind)
        known = [[token_id for token_id in chunk if token_id < tokenizer.vocab_size] for chunk in chunks]
        before = [token_id for token_id in prompt if token_id < tokenizer.vocab_size]
        one, many = (IncrementalDecoder(tokenizer, before, skips) for _ in range(2))
        for chunk in known:
            assert many.push_all(chunk) == "".join(map(one.push, chunk))
        assert many.finish() == one.finish()


def test_ids_without_a_token_are_left_out():
    assert pieces_of(tokenizer_of("byte_level"), [100_000]) == ["", ""]


def test_cost_a_token_does_not_grow(monkeypatch):
    """20,000 tokens that never make a valid character: each is looked up once, and each of its bytes is decoded once."""
    tokenizer, looked_up, decoded = tokenizer_of("byte_level"), [], []
    bytes_of, utf8 = byte_level_bytes, codecs.getincrementaldecoder("utf-8")

    class CountingDecoder(utf8):
        def decode(self, data, final=False):
            decoded.append(len(data))
            return super().decode(data, final)

    monkeypatch.setattr(decoder_steps, "byte_level_bytes", lambda token: looked_up.append(token) or bytes_of(token))
    monkeypatch.setattr(codecs, "getincrementaldecoder", lambda name: CountingDecoder)
    monkeypatch.setattr(type(tokenizer), "decode", None)  # nobody decodes a window of ids again
    letters = {byte: character for character, byte in byte_of_character().items()}
    decoder = IncrementalDecoder(tokenizer)
    broken = tokenizer.backend.token_to_id(letters[0xE6])
    text = "".join(decoder.push(broken) for _ in range(20_000)) + decoder.finish()
    assert text == "\ufffd" * 20_000
    assert (len(looked_up), len(decoded), sum(decoded)) == (20_000, 20_001, 20_000)
