"""Bad words: exactly the tokens are banned with which the text would contain a word, for every kind of decoder."""

import pytest
import tokenizers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from minllm.engine.requests.bad_words import BadWords
from minllm.models.tokenizer import Tokenizer

PIECES = ["a", "b", "ab", "ba", "aba", "bb", "abba", "é", "aé"]
MARK = "\u2581"
LLAMA = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
DECODERS = {
    "byte level": decoders.ByteLevel(), "Llama 2": decoders.Sequence(LLAMA), "Metaspace": decoders.Metaspace(),
    "WordPiece": decoders.WordPiece(), "BPEDecoder": decoders.BPEDecoder(), "none": None,
}  # fmt: skip


def vocabulary(kind):
    """Names of tokens: pieces with and without a space before or after them, as this kind of tokenizer writes them, and bytes of an é."""
    if kind == "byte level":
        return [piece.replace("é", "Ã©") for piece in PIECES] + ["Ġ" + piece for piece in PIECES if piece.isascii()] + ["Ġ", "Ã", "©", "aÃ"]
    if kind == "WordPiece":
        return PIECES + ["##" + piece for piece in PIECES]
    if kind == "BPEDecoder":
        return PIECES + [piece + "</w>" for piece in PIECES]
    spaced = [MARK + piece for piece in PIECES] if kind != "none" else []
    return PIECES + spaced + ([MARK, "<0xC3>", "<0xA9>", "<0x61>"] if kind == "Llama 2" else [])


def made(kind):
    names = ["<s>", *vocabulary(kind)]
    backend = tokenizers.Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="a"))
    if DECODERS[kind] is not None:
        backend.decoder = DECODERS[kind]
    backend.add_special_tokens(["<s>"])
    return Tokenizer(backend)


TOKENIZERS = {kind: made(kind) for kind in DECODERS}
WORDS = st.lists(st.text("abé ", min_size=1, max_size=4).filter(str.strip), min_size=1, max_size=3)


@settings(max_examples=50)
@given(st.sampled_from(list(DECODERS)), WORDS, st.data())
def test_a_token_is_banned_if_the_text_would_contain_a_word(kind, words, data):
    tokenizer = TOKENIZERS[kind]
    words, size = [word.rstrip() for word in words], tokenizer.vocab_size
    bad = BadWords(words, tokenizer.token_texts, tokenizer.special_token_ids)
    always, output, before = set(bad.always_banned(size)), [1 + PIECES.index("b")], "b"
    assume(not any(word.lstrip() in before for word in words))
    for _ in range(6):
        banned = always | set(bad.banned_next(output))
        for token in range(size):
            text = tokenizer.decode([*output, token])
            if "\ufffd" not in text and not (kind == "BPEDecoder" and text != tokenizer.decode([*output, token, 1])[: len(text)]):
                assert (token in banned) == any(word.lstrip() in text for word in words), (token, text)
        if not (allowed := sorted(set(range(size)) - banned)):
            break
        output.append(data.draw(st.sampled_from(allowed)))
    assert not any(word.lstrip() in tokenizer.decode(output) for word in words)


@pytest.mark.parametrize(("word", "hidden", "banned"), [("<s>", True, [0]), ("s", True, []), ("s", False, [0]), ("s>x", True, [])])
def test_a_special_token_that_is_not_shown_is_banned_by_its_own_text_alone(word, hidden, banned):
    bad = BadWords([word], TOKENIZERS["byte level"].token_texts, frozenset([0]) if hidden else frozenset())
    assert list(bad.always_banned(99)) == banned
    assert bad.banned_next([0]) == []


def test_ids_outside_the_tokenizer_or_the_model_do_no_harm():
    bad = BadWords(["ab"], TOKENIZERS["byte level"].token_texts)
    assert bad.banned_next([1, 10_000]) == bad.banned_next([1]) != []
    assert max(bad.always_banned(99)) > max(bad.always_banned(4)) and max(bad.always_banned(4)) < 4
