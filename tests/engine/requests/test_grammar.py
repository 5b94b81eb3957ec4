"""Masks against what they mean: a token is allowed if some text of a finite language goes on with its bytes."""

import sys

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from minllm.engine.requests.grammar import Grammars, mask_of
from minllm.engine.requests.structured_outputs import StructuredOutputsParams
from minllm.errors import InvalidOptionError, InvalidRequestError, SamplingError
from minllm.models.token_texts import TokenTexts
from tests.engine.requests.test_bad_words import TOKENIZERS

pytest.importorskip("llguidance")
TOKENIZER_GRAMMARS = {}  # kind of decoder -> its Grammars
ENDS = frozenset([0, 3])
TEXTS = [b"</s>", b"a", b"b", b"<end>", b"ab", b"ba", b"aba", b"", b"a", b'"', b"\xc3", b"\xa9", "é".encode(), b"abb", b"\n", b"\\", b"<x>"]
VOCAB = 40  # more than the tokenizer has: the rest is padding


class Words:
    """A tokenizer with these texts."""

    token_texts = TokenTexts(TEXTS)
    special_token_ids = frozenset([0, 3, 16])

    def encode(self, text, add_special_tokens=True):
        raise AssertionError("no text is spelled by the tokenizer")


@pytest.fixture(scope="module")
def grammars():
    return Grammars(Words(), VOCAB, ENDS)


def allowed(mask):
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def expected(choices, output):
    """The ids that may follow an output, by definition."""
    after = {
        token for token, text in enumerate(TEXTS)
        if text and token not in Words.special_token_ids and any(choice.startswith(output + text) for choice in choices)
    }  # fmt: skip
    return after | (ENDS if output in choices else frozenset())


def filled(grammar, drafts=()):
    masks = grammar.grammars.fill([(grammar, list(drafts))])
    assert masks.shape == (1 + len(drafts), 2) and masks.dtype == np.int32
    return [allowed(mask) for mask in masks]


CHOICES = st.lists(st.text('abé"\n\\', max_size=5), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(CHOICES, st.data())
def test_masks_are_those_of_the_definition(grammars, choices, data):
    grammar, output, encoded = grammars.start(StructuredOutputsParams(choice=choices)), b"", [choice.encode() for choice in choices]
    while True:
        [found] = filled(grammar)
        assert found == expected(encoded, output)
        token = data.draw(st.sampled_from(sorted(found)))
        grammar.accept(token)
        if token in ENDS:
            break
        output += TEXTS[token]
    assert output in encoded
    assert filled(grammar) == [set(ENDS)]  # with ignore_eos the sequence goes on, and only ends


@settings(max_examples=60, deadline=None)
@given(CHOICES, st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5))
def test_masks_behind_drafts(grammars, choices, drafts):
    """As if the drafts before were accepted, in any spelling; behind a wrong one only the end; the place in the grammar stays."""
    grammar, encoded, output = grammars.start(StructuredOutputsParams(choice=choices)), [choice.encode() for choice in choices], b""
    found = filled(grammar, drafts)
    for token, mask in zip([None, *drafts], found, strict=True):
        if token is not None:
            if output is None or token in ENDS or token not in expected(encoded, output):
                output = None
            else:
                output += TEXTS[token]
        assert mask == (set(ENDS) if output is None else expected(encoded, output))
    assert filled(grammar) == found[:1]


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(list(TOKENIZERS)), st.lists(st.text("abé ", min_size=1, max_size=6), min_size=1, max_size=4), st.data())
def test_the_text_is_a_choice_for_every_kind_of_decoder(kind, choices, data):
    """Behind a prompt: what a token adds to a text differs at its very beginning."""
    tokenizer = TOKENIZERS[kind]
    grammars = TOKENIZER_GRAMMARS.setdefault(kind, Grammars(tokenizer, tokenizer.vocab_size, frozenset([0])))
    grammar, decoder = grammars.start(StructuredOutputsParams(choice=choices)), tokenizer.incremental_decoder([0, 2], True)
    text, token = "", None
    while token != 0:
        token = data.draw(st.sampled_from(sorted(allowed(grammars.fill([(grammar, [])])[0]))))
        try:
            grammar.accept(token)
        except SamplingError as error:  # no token of this vocabulary goes on: the only id left is one that the grammar excludes
            assert token == 0 and "no token of the vocabulary continues the text" in str(error)
            assume(False)
        text += decoder.push(token)
    found = text + decoder.finish()
    assert found in choices or (kind == "BPEDecoder" and f"{found} " in choices)  # BPEDecoder drops a space at the end of a text


def test_drafts_that_end_leave_the_place(grammars):
    """LLMatcher.rollback would take back the token before an end that it did not count."""
    for choices, drafts in ((["ab"], [4, 0]), (["ab", "aba"], [4, 0, 1]), (["ab"], [1, 2, 3, 0])):
        grammar = grammars.start(StructuredOutputsParams(choice=choices))
        assert filled(grammar, drafts)[0] == filled(grammar)[0] == {1, 4, 8} | ({6} if len(choices) > 1 else set())


def test_several_places_are_filled_together(grammars):
    one, other, third = (grammars.start(StructuredOutputsParams(choice=[text])) for text in ("a", "ba", "b"))
    masks = grammars.fill([(one, []), (other, [2]), (third, [])])
    assert [allowed(mask) for mask in masks] == [{1, 8}, {2, 5}, {1, 8}, {2}]


def test_a_token_that_is_excluded_ends_the_sequence_and_no_copy(grammars):
    params = StructuredOutputsParams(choice=["ab"])
    one, other = grammars.start(params), grammars.start(params)
    with pytest.raises(SamplingError, match=r"choice=\('ab',\).*llguidance says"):
        one.accept(2)
    assert filled(other) == [{1, 4, 8}]


@pytest.mark.parametrize("fields", [dict(json={"type": "no type"}), dict(regex="("), dict(grammar="start: ]"), dict(json={"enum": []})])
def test_what_llguidance_refuses_is_named_with_its_message(grammars, fields):
    with pytest.raises(InvalidRequestError) as error:
        grammars.start(StructuredOutputsParams(**fields))
    assert next(iter(fields)) in str(error.value) and "llguidance says" in str(error.value) and "no_forcing" not in str(error.value)


def test_rules_that_lead_to_rules_are_compiled_on_a_stack_of_their_own(grammars):
    """Recursion of llguidance; 300 rules fit any stack."""
    rules = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(300)) + 'r300: "ab"\n'
    assert filled(grammars.start(StructuredOutputsParams(grammar=rules))) == [{1, 4, 8}]


def test_a_model_without_an_end_cannot_follow_a_grammar():
    for ends in ([], [VOCAB]):
        with pytest.raises(InvalidRequestError, match="no end-of-sequence id"):
            Grammars(Words(), VOCAB, frozenset(ends)).start(StructuredOutputsParams(regex="a"))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(InvalidOptionError, match=r"minllm\[structured\]"):
        Grammars(Words(), VOCAB, ENDS)


def test_the_mask_of_ids():
    assert allowed(mask_of(frozenset([0, 31, 32, 39]), 40)) == {0, 31, 32, 39}
