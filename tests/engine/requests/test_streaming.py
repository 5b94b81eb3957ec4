"""Streams: the pieces are the text, no half character or half stop string is ever shown, and leaving early leaks nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minllm import LLM, SamplingParams
from minllm.engine.requests.sequence import Sequence
from minllm.errors import EngineBusyError, InvalidRequestError
from minllm.models.tokenizer import Tokenizer
from tests.engine.models import byte_level_tokenizer, model_directory
from tests.models.random_models import prompt

PARAMS = SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True)


def test_the_pieces_are_the_text(llm):
    stream = llm.stream("def f(x):", PARAMS)
    pieces = list(stream)
    whole = llm.generate("def f(x):", PARAMS)[0].outputs[0]
    assert "".join(pieces) == whole.text == stream.output.outputs[0].text
    assert len(pieces) > 10 and all(type(piece) is str and piece for piece in pieces)
    assert stream.output.finished and stream.output.outputs[0] == whole


def test_output_grows_with_the_stream(llm):
    stream = llm.stream("def f(x):", PARAMS)
    assert not stream.output.finished and stream.output.metrics.time_to_first_token is None
    first = next(stream)
    assert stream.output.outputs[0].text == first and stream.output.outputs[0].finish_reason is None
    stream.close()
    with pytest.raises(EngineBusyError, match="closed before its text was complete"):
        next(stream)
    assert stream.output.outputs[0].text == first


def test_a_stream_that_has_ended_or_never_began(llm):
    stream = llm.stream("def f(x):", PARAMS)
    assert list(stream) and list(stream) == []
    stream.close()
    assert list(stream) == []
    for close in (lambda one: one.close(), lambda one: one.__exit__()):
        stream = llm.stream("def f(x):", PARAMS)
        close(stream)
        with pytest.raises(EngineBusyError, match="closed"):
            next(stream)


@pytest.mark.parametrize("leave", ["close", "with", "drop"])
def test_leaving_early_frees_all_blocks(llm, leave):
    policy = llm.engine.cache_policy
    stream = llm.stream("def f(x):", PARAMS)
    assert policy.usage().allocated == 0, "nothing is taken before the first piece is asked for"
    next(stream)
    assert policy.usage().allocated > 0
    if leave == "close":
        stream.close()
        stream.close()
    elif leave == "with":
        with stream:
            pass
    else:
        del stream
    assert policy.usage().allocated == 0
    assert len(llm.generate("again", PARAMS)[0].outputs[0].token_ids) == 40


def test_several_streams_and_calls_side_by_side(llm):
    """Each step computes a token for all that have begun, whoever asks for it; every one gets the text that it gets alone."""
    texts = ["def f(x):", "class A:", "import"]
    alone = [output.outputs[0].text for output in llm.generate(texts, PARAMS)]
    streams = [llm.stream(text, PARAMS) for text in texts]
    pieces = [[next(stream)] for stream in streams]
    streams[2].close()
    for turn in range(20):
        for stream, found in zip(streams[: 1 + turn % 2], pieces, strict=False):
            found += [piece for piece in [next(stream, None)] if piece]
    assert not streams[0].output.finished, "the streams are under way"
    assert llm.generate("class A:", PARAMS)[0].outputs[0].text == alone[1]
    assert llm.logits(prompt(5)).shape == (5, 1003)
    for stream, found in zip(streams[:2], pieces, strict=False):
        found += list(stream)
    assert ["".join(found) for found in pieces[:2]] == alone[:2]
    assert "".join(pieces[2]) == streams[2].output.outputs[0].text and alone[2].startswith("".join(pieces[2]))
    assert streams[2].output.outputs[0].finish_reason == "abort"


def test_a_stream_says_so_when_its_model_is_closed():
    with LLM(model_directory("small"), device="cpu", max_model_len=64) as llm:
        stream, later = (llm.stream("def f(x):", PARAMS) for _ in range(2))
        first = next(stream)
    for one in (stream, later):
        with pytest.raises(EngineBusyError, match="This LLM was closed"):
            next(one)
    assert stream.output.outputs[0].text == first and stream.output.outputs[0].finish_reason == "abort"


def test_an_exception_in_the_readers_loop_frees_all_blocks(llm):
    with pytest.raises(ZeroDivisionError):
        for _ in llm.stream("def f(x):", PARAMS):
            raise ZeroDivisionError
    assert llm.engine.cache_policy.usage().allocated == 0


def test_a_stream_takes_one_prompt(llm):
    with pytest.raises(InvalidRequestError, match="one prompt and 2"):
        llm.stream(["a", "b"])


TOKENIZER = Tokenizer(byte_level_tokenizer())
WORDS = ["a", "b", " ", "\n", "é", "日", "🙂", "👩‍💻", "return"]
TEXT = st.lists(st.sampled_from(WORDS), min_size=1, max_size=12).map("".join)


def sequence_of(token_ids, **options):
    params = SamplingParams(max_tokens=len(token_ids), seed=0, **options)
    return Sequence("0", None, [5], params, len(token_ids), frozenset([0]), TOKENIZER.incremental_decoder([5]))


@given(text=TEXT, stops=st.lists(TEXT, max_size=2))
def test_whole_characters_and_no_stop_string(text, stops):
    """Any text, token by token (a byte at a time for emoji): what was shown never has to be taken back."""
    sequence = sequence_of(TOKENIZER.encode(text), stop=stops)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    shown = ""
    for token_id in TOKENIZER.encode(text):
        sequence.append(token_id)
        shown += sequence.take_text()
        assert "\ufffd" not in shown and text.startswith(shown)
        assert not any(stop in shown for stop in stops)
        if sequence.is_finished:
            break
    assert shown == sequence.text
    if ends:
        assert sequence.stop_reason in stops and shown + sequence.stop_reason == text[: min(ends)]
    else:
        assert shown == text and sequence.finish_reason == "length"


def test_a_text_cut_within_a_character_says_so():
    token_ids = TOKENIZER.encode("x🙂")
    sequence = sequence_of(token_ids[:-1])
    for token_id in token_ids[:-1]:
        sequence.append(token_id)
    assert sequence.is_finished and sequence.take_text() == sequence.text
    assert sequence.text.startswith("x") and set(sequence.text[1:]) == {"\ufffd"}


def test_special_tokens_are_hidden_unless_wanted():
    for skip, expected in ((True, "ab"), (False, "a<|endoftext|>b")):
        token_ids = [*TOKENIZER.encode("a"), 0, *TOKENIZER.encode("b")]
        params = SamplingParams(skip_special_tokens=skip, ignore_eos=True, seed=0)
        sequence = Sequence("0", None, [5], params, 3, frozenset(), TOKENIZER.incremental_decoder([5], skip))
        for token_id in token_ids:
            sequence.append(token_id)
        assert sequence.text == expected
