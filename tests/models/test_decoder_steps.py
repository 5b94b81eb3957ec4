"""Chains of decoder steps against the tokenizers library's decoding of all tokens at once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders

from minllm.errors import UnsupportedModelError
from minllm.models.decoder_steps import TEXT_STEPS, TOKEN_STEPS, DecoderChain

NAMES = "▁a ▁▁ b ##b <0x41> <0xE6> <0x9D> <0xB1> <0xFF> <0x+7> <0x4 1> it</w> </w> <pad> | a| 's aa aab Ġthe æĿ ± 東".split()
NAMES += [" ", "\n", "\n ", " .", " n't", " do not", ""]
REPLACE = [("▁", " "), ("\n ", "\n"), ("aa", "b"), ("aab", ""), ("", "-"), ("b", "")]


def regex(pattern, content):
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


STEPS = [
    *({"type": "Replace", "pattern": {"String": pattern}, "content": content} for pattern, content in REPLACE),
    regex("a+", "-"),
    regex(r"\s*$", ""),
    {"type": "ByteFallback"},
    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    {"type": "Fuse"},
    *({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True} for scheme in ("always", "never", "first")),
    *({"type": "Strip", "content": " ", "start": start, "stop": 0} for start in (0, 1, 2)),
    *({"type": "WordPiece", "prefix": prefix, "cleanup": clean} for prefix, clean in (("##", True), ("##", False), ("", True))),
    *({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": clean} for clean in (True, False)),
    *({"type": "BPEDecoder", "suffix": suffix} for suffix in ("</w>", "")),
]


def library(decoder):
    """The library's decoder of an entry of tokenizer.json."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": "x"}
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "model": model, "decoder": decoder}
    return Tokenizer.from_str(json.dumps(content | {"normalizer": None, "pre_tokenizer": None, "post_processor": None})).decoder


def decoded(decoder, chunks):
    chain = DecoderChain(decoder)
    return "".join(map(chain.push, chunks)) + chain.finish()


def of_kind(kind):
    return [step for step in STEPS if step["type"] == kind]


ANY = st.lists(st.sampled_from(STEPS), max_size=3)
JOIN = st.sampled_from(of_kind("Fuse") + of_kind("ByteLevel"))
CHAINS = st.one_of(
    st.sampled_from(STEPS).map(lambda step: [step]), ANY, st.tuples(ANY, JOIN, ANY).map(lambda parts: [*parts[0], parts[1], *parts[2]])
)


@given(CHAINS, st.lists(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4), max_size=6))
def test_pieces_are_the_librarys_text(steps, chunks):
    sequence = {"type": "Sequence", "decoders": steps}
    names = [name for chunk in chunks for name in chunk]
    expected = library(sequence).decode(names)
    assert decoded(sequence, chunks) == expected
    assert decoded(sequence, [[name] for name in names]) == expected


def test_every_step_of_the_library_is_known():
    kinds = {name for name in dir(decoders) if name[0].isupper()} - {"Decoder", "DecodeStream", "Sequence"}
    assert kinds <= {step["type"] for step in STEPS}
    assert kinds <= set(TEXT_STEPS) and kinds <= set(TOKEN_STEPS) | {"Fuse", "ByteLevel"}
    with pytest.raises(UnsupportedModelError, match="Whisper"):
        DecoderChain({"type": "Whisper"})


@pytest.mark.parametrize("token, text", [("  ab  ", " ab"), (" a b ", "a b"), ("ab", "ab"), ("  ", ""), (" ", ""), ("", "")])
def test_strip_at_both_ends(token, text):
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 2}
    if len(token) > 3:  # the library fails for shorter tokens
        assert library(strip).decode([token]) == text
    for decoder in (strip, {"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]}):
        assert decoded(decoder, [[token]]) == text
    assert decoded({"type": "Sequence", "decoders": [{"type": "Fuse"}, strip]}, [[character] for character in token] or [[""]]) == text


@pytest.mark.parametrize(
    "steps, prompt, tokens, text",
    [
        ([{"type": "WordPiece", "prefix": "##", "cleanup": True}], ["a"], ["##b", "c"], "b c"),
        (of_kind("Metaspace")[:1], ["▁a"], ["▁a"], " a"),
        (of_kind("BPEDecoder")[:1], ["it</w>"], ["it</w>", "it</w>"], " it it"),
        (of_kind("CTC")[:1], ["a"], ["a", "b"], "b"),
        ([{"type": "Fuse"}, STEPS[1]], ["a", "\n"], [" ", "b"], "b"),
        ([{"type": "Fuse"}, STEPS[1]], ["a", "\n"], ["b", " "], "b "),
        ([{"type": "Fuse"}, regex("a+", "-")], ["b", "a"], ["a", "b"], "b"),
        ([{"type": "ByteFallback"}], ["<0xE6>", "<0x9D>", "<0xB1>", "<0xE6>"], ["<0x9D>", "<0xB1>", "b"], "東b"),
        ([{"type": "ByteFallback"}], ["<0xE6>"], ["b"], "\ufffdb"),
        ([{"type": "ByteLevel"}, STEPS[1]], ["Ċ", "æĿ"], ["±"], "東"),
    ],
)
def test_a_text_continues_a_prompt(steps, prompt, tokens, text):
    chain = DecoderChain({"type": "Sequence", "decoders": steps})
    chain.follow(prompt)
    assert "".join(chain.push([token]) for token in tokens) + chain.finish() == text


def test_a_run_of_byte_tokens_is_returned_at_its_end():
    steps = [STEPS[0], {"type": "ByteFallback"}, {"type": "Fuse"}]
    chain = DecoderChain({"type": "Sequence", "decoders": steps})
    run = [f"<0x{byte:02X}>" for byte in "é東".encode()]
    assert [chain.push([name]) for name in [*run, "▁a", run[0]]] == ["", "", "", "", "", "é東 a", ""]
    assert chain.finish() == "\ufffd"
